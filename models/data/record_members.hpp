// models/data/record_members.hpp — classifies the members of an instruction record: used, harmless,
// or refused because they would change the text.
//
// tools/prepare/members.py has the same lists; a test compares them. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "actors/storage/json.hpp"

namespace tandem {

enum class RecordMember : std::uint8_t {
  kUsed,
  kHarmless,   // describes the record, or repeats what is so anyway
  kRefused,    // would change what is learnt
  kBadAnswer,  // says that the answer must not be learnt
  kUnknown
};

/// Returns the class of a member with this value; an empty value, null, or a weight of 1 is
/// harmless.
[[nodiscard]] RecordMember meaning_of(std::string_view member, const JsonValue& value);

}  // namespace tandem
