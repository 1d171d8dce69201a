#include "models/io/tokenizer/text_stream.hpp"

#include <algorithm>
#include <string_view>

namespace tandem {
namespace {

constexpr std::string_view kNoCharacter = "\uFFFD";  // what bytes become that are not UTF-8

}  // namespace

std::string TextStream::push(std::int32_t id) {
  ids_.push_back(id);
  if (tokenizer_.is_byte(id)) {
    in_bytes_ = true;
  } else if (!tokenizer_.decode({&id, 1}, true).empty()) {
    in_bytes_ = false;
  }
  if (in_bytes_) {
    return {};
  }
  std::string text = tokenizer_.decode(ids_, true);
  while (text.ends_with(kNoCharacter)) {
    text.resize(text.size() - kNoCharacter.size());
  }
  const std::size_t from = std::min(printed_, text.size());
  printed_ = std::max(printed_, text.size());
  return text.substr(from);
}

std::string TextStream::finish() { return tokenizer_.decode(ids_, true).substr(printed_); }

}  // namespace tandem
