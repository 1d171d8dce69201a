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

/// A max_length that leaves records whole.
inline constexpr std::int64_t kUncutLength = std::int64_t{1} << 30;

struct RecordOptions {
  std::int64_t max_length = 2048;
  double percentage = 100;         // of the records, from the first on
  std::optional<LossOn> loss_on;   // absent: kCompletion, or prepare's choice
  std::optional<bool> append_eos;  // absent: true, or prepare's choice
};

struct OpenedRecords {
  std::shared_ptr<const TokenRecords> tokens;
  std::vector<AlpacaRecord> instructions;  // the tokens' source; empty: it was not read
  MaskSummary masks;
  LossOn loss_on = LossOn::kCompletion;
  bool has_prompts = true;
  std::optional<std::int32_t> end_token;  // ends an answer; absent: not known
  std::string how;                        // "template alpaca, loss on completion"
  std::string note;                       // names members that are not used; empty: there are none
};

/// Opens a token file (.tokens) or instruction records (.json, .jsonl). `folder` holds the
/// tokenizer. Throws user_error if the file cannot be read, or was made with another tokenizer or
/// other options; for another format the message names the command that prepares it. The masks are
/// counted here; check_masks() judges them.
OpenedRecords open_records(const std::filesystem::path& file, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer, const RecordOptions& options);

}  // namespace tandem
