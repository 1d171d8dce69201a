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
  std::int64_t learnt = 0;   // tokens; a record's first one has nothing before it, so it is none
  std::int64_t whole = 0;    // records of which every token is learnt
  std::int64_t nothing = 0;  // records of which none is
  std::int64_t double_start = 0;  // records that begin with the start token twice

  /// "512 records (196 cut at 128 tokens), 53012 tokens, 54.1 % of them trained".
  [[nodiscard]] std::string text() const;
};

/// Reads every record once. `start_token`: the tokenizer's, if it has one.
MaskSummary summarise(const TokenRecords& records, std::optional<std::int32_t> start_token);

/// Throws user_error, with counts, where prompts are learnt although `loss_on` leaves them out,
/// where nothing is to be learnt, or nothing in more than 5 % of the records, and where the start
/// token stands twice (put there by a template and by the tokenizer). `name`: what errors call the
/// data; `has_prompts`: whether its records have parts that `loss_on` should leave out.
void check_masks(const MaskSummary& summary, std::string_view name, LossOn loss_on,
                 bool has_prompts);

/// Record i as text, with >> before what is learnt and << behind it; long parts are shortened.
std::string marked_text(const TokenRecords& records, std::int64_t i, const Tokenizer& tokenizer);

}  // namespace tandem
