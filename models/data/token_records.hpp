// models/data/token_records.hpp — the interface of records of token ids, with a mask of learnt
// tokens: every reader of training texts implements it, and training uses nothing else.
//
// Invariant: a record has at least one token, and its mask as many entries as it has tokens.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/util/enum_names.hpp"

namespace tandem {

/// The tokens that are labels: all; the assistant's; those behind the prompt.
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
  /// How many of them were longer, and cut at the longest length that was asked for.
  [[nodiscard]] virtual std::int64_t cut_records() const = 0;
  /// The hash of the ids and the masks of all records (Dataset::fingerprint()).
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  /// Replaces `ids` and `learnt` by record i's. learnt[k] = 1: token k is a label, so the model
  /// learns to say it after the tokens before it; 0: it is only read. Any thread, several at once.
  virtual void read(std::int64_t i, std::vector<std::int32_t>& ids,
                    std::vector<std::uint8_t>& learnt) const = 0;
};

}  // namespace tandem
