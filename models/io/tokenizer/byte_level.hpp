// models/io/tokenizer/byte_level.hpp — GPT-2's way of writing any byte as one printable character,
// and UTF-8 in general.
//
// Byte-level vocabularies spell the byte 0x20 as U+0120 and so on: a printable Latin-1 byte stands
// for itself, and the other 68 bytes take the code points from U+0100 in ascending order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

/// The code point that stands for each byte.
const std::array<char32_t, 256>& byte_level_alphabet();
/// The spelling of one byte, in UTF-8.
std::string byte_level_char(std::uint8_t byte);
/// Returns the bytes of a token that is spelled in the alphabet; nullopt if it has another
/// character, as added tokens may.
std::optional<std::string> bytes_of_byte_level(std::string_view spelled);
/// Returns the spelling of bytes in the alphabet.
std::string spell_byte_level(std::string_view bytes);

/// Decodes the character at `at` and moves behind it. `text` must be valid UTF-8.
char32_t next_code_point(std::string_view text, std::size_t& at) noexcept;
void append_utf8(std::string& out, char32_t code_point);
bool is_valid_utf8(std::string_view text) noexcept;
/// Replaces every maximal invalid part by U+FFFD (the rule of Unicode, 3.9, and of Rust and
/// Python).
std::string with_replacement_characters(std::string_view bytes);

/// Returns whether a character is Unicode's White_Space.
bool is_white_space(char32_t c) noexcept;

}  // namespace tandem
