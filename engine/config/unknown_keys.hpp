// engine/config/unknown_keys.hpp — what becomes of a key that no list of the table has: a slip or a
// key in the wrong place is an error, since its writer counts on it; one that is near to nothing
// stands where DeepSpeed passes unknown keys over, and is passed over and said.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/config/key_table.hpp"

namespace tandem {

/// The reason in the KeyReport of a key that was passed over.
inline constexpr std::string_view kUnknownKey =
    "unknown to DeepSpeed and here; passed over, as DeepSpeed does";

/// The end of an error message about the key ("did you mean ...?"), `prefix` being its block with a
/// dot behind ("" at the top level); empty where the key is passed over.
[[nodiscard]] std::string unknown_key_hint(std::string_view prefix, std::string_view key,
                                           std::span<const KeyRow> rows);

/// One line that names the keys that were passed over as unknown; empty where there is none.
[[nodiscard]] std::string unknown_keys_note(const Config& config);

}  // namespace tandem
