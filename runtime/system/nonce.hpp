// runtime/system/nonce.hpp — the endings of temporary names, by which a clean-up knows its own
// files.
//
// A process id comes again (in containers after each start), and a word, a number or a date may be
// a user's own ending.
// Invariant: is_nonce() is true for every text of fresh_nonce(), and for no other length or digit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

/// Returns the number as 16 hex digits, lower case.
[[nodiscard]] std::string nonce_text(std::uint64_t number);
/// Returns the same for a random number.
[[nodiscard]] std::string fresh_nonce();
/// True if `text` is exactly 16 of these digits.
[[nodiscard]] bool is_nonce(std::string_view text) noexcept;

}  // namespace tandem
