// tests/models/io/tokenizer/tiny_tokenizer.hpp — tokenizers small enough to write down: the 256
// bytes, a few merges, three special tokens (<s> 256, </s> 257, <pad> 258), and any change to them.
#pragma once

#include <string>
#include <string_view>

#include "actors/storage/json.hpp"
#include "models/io/tokenizer/byte_level.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "tests/support/io_support.hpp"

namespace tandem::test {

/// "a": 64-like ids of all bytes, in byte order.
inline std::string byte_vocabulary() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte) {
    out += (byte > 0 ? "," : "") + json_quote(byte_level_char(static_cast<std::uint8_t>(byte))) +
           ":" + std::to_string(byte);
  }
  return out;
}

struct TinyTokenizer {
  std::string vocabulary = byte_vocabulary();
  std::string merges;
  std::string model_members;  // further ones, with a comma in front
  std::string added_tokens =
      R"({"id": 256, "content": "<s>", "special": true}, {"id": 257, "content": "</s>", "special": true},
         {"id": 258, "content": "<pad>", "special": true})";
  std::string pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false})";
  std::string members;  // further ones at the top, with a comma in front

  [[nodiscard]] std::string json() const {
    return R"({"added_tokens": [)" + added_tokens + R"(], "pre_tokenizer": )" + pre_tokenizer +
           R"(, "decoder": {"type": "ByteLevel"}, "model": {"vocab": {)" + vocabulary +
           R"(}, "merges": [)" + merges + "]" + model_members + "}" + members + "}";
  }
};

/// Loads the plain one with a further top member (or none) and this tokenizer_config.json.
inline Tokenizer tiny_tokenizer(std::string_view member, std::string_view config) {
  const TempDir dir;
  TinyTokenizer tiny;
  tiny.members = member.empty() ? "" : "," + std::string(member);
  put(dir / "tokenizer.json", tiny.json());
  put(dir / "tokenizer_config.json", config);
  return Tokenizer::load(dir.path());
}

}  // namespace tandem::test
