#include "runtime/util/one_line.hpp"

#include <fmt/format.h>

#include "runtime/util/utf8.hpp"

namespace tandem {
namespace {

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

void append_escaped(std::string& out, unsigned char byte) {
  switch (byte) {
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += fmt::format("\\x{:02x}", byte);
  }
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = utf8_length(text, 0);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    if (bytes != 0 && !is_control(character)) {
      out += character;
    } else {
      for (const char byte : character) {
        append_escaped(out, static_cast<unsigned char>(byte));
      }
    }
    text.remove_prefix(character.size());
  }
  return out;
}

std::string escaped_lines(std::string_view text) {
  std::string all;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    all += one_line(text.substr(0, end));
    if (end == std::string_view::npos) {
      break;
    }
    all += '\n';
    text.remove_prefix(end + 1);
  }
  return all;
}

}  // namespace tandem
