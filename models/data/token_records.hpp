// models/data/token_records.hpp — the interface of records of token ids, with a mask of learnt
// tokens: every reader of training texts implements it, and training uses nothing else.
//
// Invariant: a record has at least one token, and its mask has one entry for each token.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/util/enum_names.hpp"

namespace tandem {

/// The tokens that are labels: all tokens, the assistant's, or the tokens behind the prompt.
enum class LossOn : std::uint8_t { kAll, kAssistant, kCompletion };

template <>
inline constexpr auto kEnumNames<LossOn> =
    std::array{EnumName{LossOn::kAll, "all"}, EnumName{LossOn::kAssistant, "assistant"},
               EnumName{LossOn::kCompletion, "completion"}};

class TokenRecords {
 public:
  virtual ~TokenRecords() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Tokens of record i.
  [[nodiscard]] virtual std::int64_t length(std::int64_t i) const = 0;
  /// Tokens of the longest record.
  [[nodiscard]] virtual std::int64_t longest() const = 0;
  /// Returns the number of records that were cut, because they were longer than the caller asked
  /// for.
  [[nodiscard]] virtual std::int64_t cut_records() const = 0;
  /// The hash of the ids and the masks of all records (Dataset::fingerprint()).
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// Replaces `ids` and `learnt` by record i's. learnt[k] is 1 if token k is a label, which the
  /// model learns to predict from the tokens before it; it is 0 if the token is input only. Any
  /// thread, several at once.
  virtual void read(std::int64_t i, std::vector<std::int32_t>& ids,
                    std::vector<std::uint8_t>& learnt) const = 0;
};

}  // namespace tandem
