// engine/config/unknown_keys.hpp — decides about a key that the table does not have. If it
// resembles a known key, or is a known key in the wrong section, it is an error, because its author
// expects an effect. Any other is ignored where DeepSpeed ignores unknown keys, and a note names
// it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/config/key_table.hpp"

namespace tandem {

/// The reason in the KeyReport of an ignored unknown key.
inline constexpr std::string_view kUnknownKey =
    "unknown to DeepSpeed and here; passed over, as DeepSpeed does";

/// Returns the end of an error message about the key ("did you mean ...?"); empty if the key is
/// ignored. `prefix`: its section with a dot after it, "" at the top level.
[[nodiscard]] std::string unknown_key_hint(std::string_view prefix, std::string_view key,
                                           std::span<const KeyRow> rows);

/// Returns a line that names the ignored unknown keys; empty if there are none.
[[nodiscard]] std::string unknown_keys_note(const Config& config);

}  // namespace tandem
