// models/data/record_members.hpp — classifies the members of an instruction record: used, harmless,
// or refused because they would change the text.
//
// The same lists as tools/prepare/members.py has; a test compares them. Any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "actors/storage/json.hpp"

namespace tandem {

enum class RecordMember : std::uint8_t {
  kUsed,
  kHarmless,   // it describes the record, or says what is so without it
  kRefused,    // it would change what is learnt
  kBadAnswer,  // it says that the answer is none to learn
  kUnknown
};

/// With its value: one that is empty, null or a weight of 1 is harmless.
[[nodiscard]] RecordMember meaning_of(std::string_view member, const JsonValue& value);

}  // namespace tandem
