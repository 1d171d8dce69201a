#include "models/io/tokenizer/byte_level.hpp"

#include <simdjson.h>

#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

/// [character] The byte that it stands for; -1: none.
constexpr std::size_t kAlphabetEnd = 0x144;  // behind its last character

const std::array<std::int16_t, kAlphabetEnd>& bytes_by_code_point() {
  static const auto kTable = [] {
    std::array<std::int16_t, kAlphabetEnd> table{};
    table.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      table[byte_level_alphabet()[byte]] = static_cast<std::int16_t>(byte);
    }
    return table;
  }();
  return kTable;
}

/// Length of the valid character at `at` (positive), or minus the length of the maximal invalid
/// part (Unicode 3.9, D93b).
int character_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned char {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first < 0xC2 || first > 0xF4) {
    return -1;
  }
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : low;
  high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : high;
  if (byte(1) < low || byte(1) > high) {
    return -1;
  }
  const int length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (int i = 2; i < length; ++i) {
    if (!continues_character(static_cast<char>(byte(static_cast<std::size_t>(i))))) {
      return -i;
    }
  }
  return length;
}

}  // namespace

const std::array<char32_t, 256>& byte_level_alphabet() {
  static const auto kAlphabet = [] {
    std::array<char32_t, 256> alphabet{};
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      alphabet[static_cast<std::size_t>(byte)] =
          stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
    }
    return alphabet;
  }();
  return kAlphabet;
}

std::string byte_level_char(std::uint8_t byte) {
  std::string out;
  append_utf8(out, byte_level_alphabet()[byte]);
  return out;
}

std::optional<std::string> bytes_of_byte_level(std::string_view spelled) {
  const auto& table = bytes_by_code_point();
  std::string bytes;
  bytes.reserve(spelled.size());
  for (std::size_t at = 0; at < spelled.size();) {
    const char32_t c = next_code_point(spelled, at);
    if (c >= table.size() || table[c] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(table[c]));
  }
  return bytes;
}

std::string spell_byte_level(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) {
    append_utf8(out, byte_level_alphabet()[static_cast<unsigned char>(byte)]);
  }
  return out;
}

char32_t next_code_point(std::string_view text, std::size_t& at) noexcept {
  const auto first = static_cast<unsigned char>(text[at++]);
  if (first < 0x80) {
    return first;
  }
  int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  char32_t code = first & (0x3Fu >> more);
  for (; more > 0 && at < text.size(); --more) {
    code = (code << 6) | (static_cast<unsigned char>(text[at++]) & 0x3Fu);
  }
  return code;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) noexcept {
  return text.empty() || simdjson::validate_utf8(text.data(), text.size());
}

std::string with_replacement_characters(std::string_view bytes) {
  if (is_valid_utf8(bytes)) {
    return std::string(bytes);
  }
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const int length = character_length(bytes, at);
    if (length > 0) {
      out.append(bytes.substr(at, static_cast<std::size_t>(length)));
      at += static_cast<std::size_t>(length);
    } else {
      append_utf8(out, 0xFFFD);
      at += static_cast<std::size_t>(-length);
    }
  }
  return out;
}

bool is_white_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace tandem
