// models/data/open_records.hpp — opens a data set's file as token records, and decides how it is
// read. Instruction records are tokenised here, a token file is mapped; for other data (chats,
// tables, texts) `tandem prepare` makes a token file first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/data/alpaca.hpp"
#include "models/data/mask_check.hpp"
#include "models/data/token_records.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

/// As max_length: records stay whole.
inline constexpr std::int64_t kUncutLength = std::int64_t{1} << 30;

struct RecordOptions {
  std::int64_t max_length = 2048;
  double percentage = 100;         // of the records, from the first on
  std::optional<LossOn> loss_on;   // nothing: what suits the data, or was asked of prepare
  std::optional<bool> append_eos;  // nothing: yes, or what was asked of prepare
};

struct OpenedRecords {
  std::shared_ptr<const TokenRecords> tokens;
  std::vector<AlpacaRecord> instructions;  // what the tokens were made of, where that was read
  MaskSummary masks;
  LossOn loss_on = LossOn::kCompletion;
  bool has_prompts = true;
  std::optional<std::int32_t> end_token;  // what ends an answer, if it is known
  std::string how;                        // "template alpaca, loss on completion"
  std::string note;                       // names members that are not used; empty: there are none
};

/// Opens a token file (.tokens) or instruction records (.json, .jsonl).
/// `folder` holds the tokenizer. Throws user_error for what cannot be read, was made with another
/// tokenizer or by other options, and for other formats, naming the command that prepares them.
/// Masks are counted, not judged (check_masks()).
OpenedRecords open_records(const std::filesystem::path& file, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer, const RecordOptions& options);

}  // namespace tandem
