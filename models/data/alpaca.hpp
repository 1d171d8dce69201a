// models/data/alpaca.hpp — instruction records and the token rows that fine-tuning learns from.
//
// The prompt and the rows are those of the DeepSpeed example, except that padding is not learnt
// (label -100).
// Invariant: every record has its three texts, every row has exactly max_length entries.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

struct AlpacaRecord {
  std::string instruction;
  std::string input;  // often empty
  std::string output;
};

/// Reads a .json file (an array of records) or a .jsonl file (one record per line, blank lines are
/// skipped); other members of a record are ignored. Keeps the first `percentage` percent, rounded
/// down. Error: not readable, not JSON, a member missing or no string (names file, record and
/// line), or nothing left.
std::vector<AlpacaRecord> read_alpaca(const std::filesystem::path& path, double percentage = 100.0);

/// The text that is trained on; up to "### Response:\n" is what generation starts from.
std::string alpaca_question(const AlpacaRecord& record);
std::string alpaca_text(const AlpacaRecord& record);  // question and output

/// One row of a batch.
struct TokenRow {
  std::vector<std::int32_t> input_ids;  // max_length, padded on the right
  std::vector<std::int64_t> labels;     // input_ids, -100 on padding
  std::int64_t tokens = 0;              // how many are not padding
};

constexpr std::int64_t kIgnoredLabel = -100;

/// The token that fills rows up: the tokenizer's pad token, else its end token. Error if it has
/// neither.
std::int32_t padding_id(const Tokenizer& tokenizer);

/// Text -> ids with the tokenizer's special tokens, cut at `max_length` (special tokens at the end
/// stay). Throws user_error where the special tokens alone are more. Any thread.
std::vector<std::int32_t> cut_ids(const Tokenizer& tokenizer, const std::string& text,
                                  std::int64_t max_length);
/// The same, padded to `max_length`.
TokenRow make_row(const Tokenizer& tokenizer, const std::string& text, std::int64_t max_length);

}  // namespace tandem
