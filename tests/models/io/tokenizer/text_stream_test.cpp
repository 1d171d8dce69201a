// A text that is printed token by token is the text of all tokens, in whole characters.
#include "models/io/tokenizer/text_stream.hpp"

#include <array>
#include <random>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "models/io/tokenizer/byte_level.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"

namespace tandem {
namespace {

using Ids = std::vector<std::int32_t>;

/// A byte-level vocabulary: the 256 bytes and three special tokens.
Tokenizer byte_level() { return Tokenizer::parse(test::TinyTokenizer().json(), "tokenizer.json"); }

/// A vocabulary of characters: ids 0 to 255 are the bytes <0x00> to <0xFF>, then some characters;
/// 262 is special.
Tokenizer with_byte_fallback() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += fmt::format("\"<0x{:02X}>\": {}, ", byte, byte);
  }
  vocabulary +=
      "\"\u2581\": 256, \"a\": 257, \"\u00e9\": 258, \"\u2581b\": 259, \"\uFFFD\": 260, "
      "\"<unk>\": 261";
  return Tokenizer::parse(
      R"({"added_tokens": [{"id": 262, "content": "<s>", "special": true}],
          "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": ")"
      "\u2581"
      R"("}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
          "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [],
                    "vocab": {)" +
          vocabulary + "}}}",
      "tokenizer.json");
}

std::vector<std::string> pieces(const Tokenizer& tokenizer, const Ids& ids) {
  TextStream stream(tokenizer);
  std::vector<std::string> out;
  for (const std::int32_t id : ids) {
    out.push_back(stream.push(id));
  }
  out.push_back(stream.finish());
  return out;
}

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  return ids;
}

TEST(TextStream, CharactersComeWhole) {
  EXPECT_EQ(pieces(byte_level(), bytes_of("a\u00e9\U0001f600b")),
            (std::vector<std::string>{"a", "", "\u00e9", "", "", "", "\U0001f600", "b", ""}));
  // Bytes are a text only when their run has ended.
  Ids ids = bytes_of("\n\u4f60");
  ids.push_back(257);
  EXPECT_EQ(pieces(with_byte_fallback(), ids),
            (std::vector<std::string>{"", "", "", "", "\n\u4f60a", ""}));
  EXPECT_EQ(pieces(with_byte_fallback(), {259, 262, 256, 10}),
            (std::vector<std::string>{"b", "", " ", "", "\n"}))
      << "without the first space and special tokens";
}

TEST(TextStream, WhatIsNoTextComesAtTheEnd) {
  EXPECT_EQ(pieces(byte_level(), {0xE4, 0xBD}).back(), byte_level().decode(Ids{0xE4, 0xBD}, true));
  EXPECT_EQ(pieces(byte_level(), {}), (std::vector<std::string>{""}));
}

TEST(TextStream, AnyTokensGiveTheirText) {
  std::mt19937 random(1);
  for (const bool level : {true, false}) {
    const Tokenizer tokenizer = level ? byte_level() : with_byte_fallback();
    for (int round = 0; round < 300; ++round) {
      Ids ids;
      for (int i = 0; i < 24; ++i) {
        // Beginnings and middles of characters, newlines, characters, special tokens.
        constexpr std::array<std::int32_t, 12> kOften = {0xE4, 0xBD, 0xA0, 0xC3, 0xA9, 10,
                                                         256,  257,  258,  260,  0xF0, 262};
        ids.push_back(random() % 4 == 0 ? static_cast<std::int32_t>(random() % 264)
                                        : kOften[random() % kOften.size()]);
      }
      std::string text;
      for (const std::string& piece : pieces(tokenizer, ids)) {
        ASSERT_TRUE(is_valid_utf8(piece));
        text += piece;
      }
      ASSERT_EQ(text, tokenizer.decode(ids, true)) << fmt::format("{}", fmt::join(ids, " "));
    }
  }
}

}  // namespace
}  // namespace tandem
