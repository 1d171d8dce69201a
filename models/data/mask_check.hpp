// models/data/mask_check.hpp — counts the masks of all records, prints an example, and refuses
// masks that are most likely a mistake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/data/token_records.hpp"
#include "models/io/tokenizer/tokenizer.hpp"

namespace tandem {

struct MaskSummary {
  std::int64_t records = 0;
  std::int64_t cut = 0;      // records that were longer
  std::int64_t longest = 0;  // tokens of the longest one
  std::int64_t tokens = 0;   // of all records
  std::int64_t learnt = 0;   // labels; a record's first token is none, since no token precedes it
  std::int64_t whole = 0;    // records whose every token is learnt
  std::int64_t nothing = 0;  // records without a learnt token
  std::int64_t double_start = 0;  // records that begin with the start token twice

  /// "512 records (196 cut at 128 tokens), 53012 tokens, 54.1 % of them trained".
  [[nodiscard]] std::string text() const;
};

/// Reads every record once. `start_token`: the tokenizer's, if it has one.
MaskSummary summarise(const TokenRecords& records, std::optional<std::int32_t> start_token);

/// Throws user_error, with counts, in three cases: prompts are learnt in all records although
/// `loss_on` leaves them out; more than 5 % of the records have no learnt token; or a record begins
/// with two start tokens (a template and the tokenizer both add one). `name`: the data's name in
/// errors; `has_prompts`: whether its records have parts that `loss_on` should leave out.
void check_masks(const MaskSummary& summary, std::string_view name, LossOn loss_on,
                 bool has_prompts);

/// Returns record i as text, with each learnt part between >> and <<; long parts are shortened.
std::string marked_text(const TokenRecords& records, std::int64_t i, const Tokenizer& tokenizer);

}  // namespace tandem
