// Files and texts that ask for endless work or memory: each ends in one line, or in a moment with
// the ids that it always had.
#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/json.hpp"
#include "models/io/tokenizer/pre_tokenizer.hpp"
#include "models/io/tokenizer/tokenizer_impl.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TinyTokenizer;
using Clock = std::chrono::steady_clock;

Tokenizer parse(const TinyTokenizer& tiny) {
  return Tokenizer::parse(tiny.json(), "tokenizer.json");
}

Tokenizer with_pattern(std::string_view pattern) {
  TinyTokenizer tiny;
  tiny.pre_tokenizer =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": )" +
      json_quote(pattern) +
      R"(}}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";
  return parse(tiny);
}

Tokenizer with_normalizer(std::string_view normalizer) {
  TinyTokenizer tiny;
  tiny.members = R"(, "normalizer": )" + std::string(normalizer);
  return parse(tiny);
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += text;
  }
  return out;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

TEST(HostileTokenizer, APatternThatMatchesWhatIsBehindItIsRefused) {
  const Tokenizer tokenizer = with_pattern(R"((?(DEFINE)(?<k>\Ka))(?<=(?&k)))");
  expect_error([&] { (void)tokenizer.encode("aaaa"); }, {"begins before the place", "4 bytes"});
}

TEST(HostileTokenizer, APatternHasALimitForTheWholeText) {
  const Tokenizer tokenizer = with_pattern("(?=(?:a+)+b|)a| ");
  EXPECT_EQ(tokenizer.encode("aab ").size(), 4U);
  const Clock::time_point begin = Clock::now();
  expect_error([&] { (void)tokenizer.encode(repeated(std::string(24, 'a') + " ", 800)); },
               {"takes too long", "20000 bytes"});
  EXPECT_LT(seconds_since(begin), 60);
}

// Every start is far below the limit of one, and a single search tries them all.
TEST(HostileTokenizer, ASearchThatFindsNothingHasTheSameLimit) {
  const Tokenizer tokenizer = with_pattern("(?:a+)+b(?=c)");
  const std::string text = repeated(std::string(16, 'a') + " ", 40'000);
  expect_error([&] { (void)tokenizer.encode(text); }, {"takes too long", "680000 bytes"});
}

TEST(HostileTokenizer, LongRunsAreOneMatchStill) {
  const Tokenizer tokenizer = with_pattern(R"(\s+(?!\S)|\s+|\S+)");
  const std::string text = std::string(3'000'000, ' ') + "x" + std::string(3'000'000, 'a');
  EXPECT_EQ(tokenizer.encode(text).size(), text.size());
}

TEST(HostileTokenizer, ANormalizerThatDoublesTheTextIsRefused) {
  const std::string twice = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  const Tokenizer twice_twice =
      with_normalizer(R"({"type": "Sequence", "normalizers": [)" + twice + "," + twice + "]}");
  EXPECT_EQ(twice_twice.encode("a").size(), 4U);
  const Tokenizer bomb = with_normalizer(R"({"type": "Sequence", "normalizers": [)" +
                                         repeated(twice + ",", 40) + twice + "]}");
  expect_error([&] { (void)bomb.encode("aaaa"); }, {"more than 64 bytes for each byte"});
}

TEST(HostileTokenizer, LongRunsOfMarksTakeTimeWithTheirLength) {
  const std::string text = "a" + repeated("\u0301\u0323\u0344", 100'000);
  for (const UnicodeForm form :
       {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
    const Clock::time_point begin = Clock::now();
    const std::string normal = normalize(text, form);
    EXPECT_LT(seconds_since(begin), 10);
    EXPECT_EQ(normalize(normal, form), normal);
  }
  // Dots below come first, then all marks above in the order that they had.
  const std::string marks = repeated("\u0301\u0323\u0344", 40);
  EXPECT_EQ(normalize("b" + marks, UnicodeForm::kNfd),
            "b" + repeated("\u0323", 40) + repeated("\u0301\u0308\u0301", 40));
  EXPECT_EQ(normalize("a" + marks + "c", UnicodeForm::kNfc),
            "\u1ea1" + repeated("\u0323", 39) + repeated("\u0301\u0308\u0301", 40) + "c");
}

// U+FF9E decomposes to a mark in the compatibility forms alone.
TEST(HostileTokenizer, MarksOfCompatibilityFormsAreOrderedToo) {
  const std::string text = "a" + repeated("\u0301\uFF9E", 40);
  EXPECT_EQ(normalize(text, UnicodeForm::kNfkd),
            "a" + repeated("\u3099", 40) + repeated("\u0301", 40));
  EXPECT_EQ(normalize(text, UnicodeForm::kNfd), text);
}

TEST(HostileTokenizer, ManyAddedTokensAreFoundAtOnce) {
  TinyTokenizer tiny;
  const int count = 100'000;
  for (int i = 0; i < count; ++i) {
    tiny.added_tokens += R"(, {"id": )" + std::to_string(300 + i) + R"(, "content": "<t)" +
                         std::to_string(i) + R"(>", "special": true})";
  }
  const Clock::time_point begin = Clock::now();
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("<t7><t99999>"), (std::vector<std::int32_t>{307, 300 + 99'999}));
  EXPECT_EQ(tokenizer.encode(repeated("<", 20'000)).size(), 20'000U);
  EXPECT_LT(seconds_since(begin), 20);
}

TEST(HostileTokenizer, OfAddedTokensTheLongestThatFitsCounts) {
  TinyTokenizer tiny;
  tiny.added_tokens = R"({"id": 60, "content": "<", "special": true},
    {"id": 257, "content": "<a", "special": true}, {"id": 258, "content": "<abc", "special": true},
    {"id": 259, "content": "<abd", "special": true}, {"id": 260, "content": "<b", "special": true})";
  const Tokenizer tokenizer = parse(tiny);
  const std::vector<std::int32_t> expected = {258, 257, 'b', '<', 259, '<', 'c', 260, 257};
  EXPECT_EQ(tokenizer.encode("<abc<ab<<abd<c<b<a"), expected);
}

// As the `tokenizers` library has it: the next token is looked for behind the one before, and not
// behind the space that this one took along.
TEST(HostileTokenizer, ATokenThatBeginsWithASpaceIsFoundBehindOneThatTakesIt) {
  TinyTokenizer tiny;
  tiny.added_tokens = R"({"id": 256, "content": " x", "lstrip": true, "rstrip": true})";
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("a x  x x b"), (std::vector<std::int32_t>{'a', 256, 256, 256, 'b'}));
}

TEST(HostileTokenizer, AMarkIsOneCharacter) {
  TinyTokenizer tiny;
  tiny.model_members = R"(, "byte_fallback": true)";
  tiny.pre_tokenizer = R"({"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"})";
  expect_error([&] { (void)parse(tiny); }, {"replacement", "one character"});
}

}  // namespace
}  // namespace tandem
