// runtime/util/utf8.hpp — finds the characters of text whose bytes may be anything. Any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace tandem {

/// Returns the length in bytes of the UTF-8 character at `text[i]`, or 0 if there is none
/// (overlong, surrogate, cut off).
[[nodiscard]] constexpr std::size_t utf8_length(std::string_view text, std::size_t i) noexcept {
  const auto byte = [&](std::size_t k) {
    return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U;
  };
  const auto continues = [&](std::size_t k) { return (byte(k) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(i);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return continues(i + 1) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned second = byte(i + 1);
    const bool ok = continues(i + 1) && continues(i + 2) && !(lead == 0xE0 && second < 0xA0) &&
                    !(lead == 0xED && second > 0x9F);
    return ok ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned second = byte(i + 1);
    const bool ok = continues(i + 1) && continues(i + 2) && continues(i + 3) &&
                    !(lead == 0xF0 && second < 0x90) && !(lead == 0xF4 && second > 0x8F);
    return ok ? 4 : 0;
  }
  return 0;
}

/// True of a byte that goes on a character of UTF-8.
[[nodiscard]] constexpr bool continues_character(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// Returns the text behind its byte order mark, which editors of some systems put before it.
[[nodiscard]] constexpr std::string_view without_mark(std::string_view text) noexcept {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0);
}

/// Returns a line of a file, given without its LF, without the mark before the first one and
/// without the CR of lines that end in CR LF.
[[nodiscard]] constexpr std::string_view text_of_line(std::string_view line,
                                                      bool is_first) noexcept {
  line = is_first ? without_mark(line) : line;
  return line.substr(0, line.size() - (line.ends_with('\r') ? 1 : 0));
}

}  // namespace tandem
