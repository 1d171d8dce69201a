// runtime/system/nonce.hpp — what temporary names end in, so that a clean-up knows its own.
//
// A process id alone comes again, in containers after each start, and a word, a number or a date
// may be a user's. Invariant: is_nonce() holds for what fresh_nonce() makes, and for no other
// length or digit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

/// 16 hex digits, lower case.
[[nodiscard]] std::string nonce_text(std::uint64_t number);
/// The same of a random number.
[[nodiscard]] std::string fresh_nonce();
/// Whether `text` is exactly such digits.
[[nodiscard]] bool is_nonce(std::string_view text) noexcept;

}  // namespace tandem
