// The patterns that are matched by code cut every text as the engine for patterns does, and words
// that come back have the ids that they had.
#include "models/io/tokenizer/word_pattern.hpp"

#include <array>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/io/tokenizer/pre_tokenizer.hpp"
#include "models/io/tokenizer/word_cache.hpp"

namespace tandem {
namespace {

using Ids = std::vector<std::int32_t>;

const std::string kContractions = "'s|'t|'re|'ve|'m|'ll|'d";
const std::string kRest = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kCapitals = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
const std::string kSmalls = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
const std::string kLead = R"([^\r\n\p{L}\p{N}]?)";

std::string cased(const std::string& ending, const std::string& digits) {
  return kLead + kCapitals + "*" + kSmalls + "+" + ending + "|" + kLead + kCapitals + "+" +
         kSmalls + "*" + ending + "|" + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

/// The patterns of GPT-2, Qwen3, Llama 3 (and Phi-4), gpt-oss, Mistral, Seed-OSS.
const std::array<std::string, 6> kPublished = {
    std::string(gpt2_pattern()),
    "(?i:" + kContractions + R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)" + kRest,
    "(?i:" + kContractions + R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)" + kRest,
    cased("(?i:" + kContractions + ")?", R"(\p{N}{1,3})"),
    cased("", R"(\p{N})"),
    "(?i:" + kContractions +
        R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

std::vector<std::string_view> pieces_of(const SplitStep& step, std::string_view text) {
  Matcher matcher;
  std::vector<std::string_view> pieces = {text};
  std::vector<std::string_view> scratch;
  split(step, matcher, pieces, scratch);
  return pieces;
}

class Published : public ::testing::TestWithParam<int> {};

TEST_P(Published, CutsAsTheEngineDoes) {
  const std::string& pattern = kPublished[static_cast<std::size_t>(GetParam())];
  ASSERT_TRUE(WordPattern::parse(pattern)) << pattern;
  const std::string in_a_group = "(?:" + pattern + ")";  // the same, and not recognised
  ASSERT_FALSE(WordPattern::parse(in_a_group));
  const SplitStep by_code{SplitPattern(pattern, "test")};
  const SplitStep by_engine{SplitPattern(in_a_group, "test")};
  // Parts that meet in every way; some of them are letters, marks, digits and spaces beyond ASCII,
  // and U+017F is an s of either case.
  const std::array<std::string, 40> parts = {
      "a",    "b",    "s",    "S",      "t",      "T",      "re",     "RE",     "ll",     "lL",
      "m",    "d",    "v",    "e",      "Z",      "'",      "'",      "1",      "23",     "4567",
      " ",    " ",    "  ",   "\n",     "\r\n",   "\t",     "\v",     ".",      "/",      "-_",
      "\x01", "\x1c", "\x7f", "\u00e9", "\u017f", "\u00a0", "\u3000", "\u0301", "\u0663", "\u4e2d"};
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  for (int round = 0; round < 40'000; ++round) {
    std::string text;
    const auto length = 1 + random() % 12;
    const std::size_t kinds = round % 2 == 0 ? parts.size() : 33;  // ASCII alone
    for (unsigned i = 0; i < length; ++i) {
      text += parts[random() % kinds];
    }
    ASSERT_EQ(pieces_of(by_code, text), pieces_of(by_engine, text))
        << pattern << "\n"
        << ::testing::PrintToString(text);
  }
}

INSTANTIATE_TEST_SUITE_P(WordPattern, Published, ::testing::Range(0, 6));

TEST(WordPattern, AsksTheEngineForCharactersBeyondAscii) {
  const auto pattern = WordPattern::parse(kPublished[1]);
  ASSERT_TRUE(pattern);
  EXPECT_EQ(pattern->match("caf\u00e9", 0), 0u);
  EXPECT_EQ(pattern->match("cafe \u00e9", 0), 4u);
  EXPECT_EQ(pattern->match("cafe \u00e9", 4), 4u);
  EXPECT_EQ(pattern->match("1\u0663", 0), 1u);  // one digit is a match, whatever follows
}

TEST(WordPattern, KnowsNoOtherPattern) {
  for (const std::string& pattern :
       {std::string(), std::string(R"(\s+)"), kPublished[1] + "|x", "x|" + kPublished[1],
        cased("(?i:" + kContractions + ")?", R"(\p{N}{2})"),
        "(?i:" + kContractions + ")|" + kPublished[3]}) {
    EXPECT_FALSE(WordPattern::parse(pattern)) << pattern;
  }
}

TEST(WordCache, GivesBackWhatWasPut) {
  WordCache cache;
  EXPECT_TRUE(cache.find("word").empty());
  // Twice as many words as it has room for, of 1 to 24 bytes: those that are found are right.
  const auto word_of = [](int i) {
    return std::string(static_cast<std::size_t>(i % 20), 'x') + std::to_string(i).substr(0, 4) +
           std::string(1, static_cast<char>('a' + i / 10'000));
  };
  constexpr int kWords = 130'000;
  for (int i = 0; i < kWords; ++i) {
    const std::string word = word_of(i);
    if (cache.find(word).empty()) {
      cache.put(word, Ids{static_cast<std::int32_t>(std::hash<std::string>{}(word)), i % 3});
    }
  }
  int found = 0;
  for (int i = 0; i < kWords; ++i) {
    const std::string word = word_of(i);
    const auto ids = cache.find(word);
    found += ids.empty() ? 0 : 1;
    ASSERT_TRUE(ids.empty() ||
                ids.front() == static_cast<std::int32_t>(std::hash<std::string>{}(word)))
        << word;
  }
  EXPECT_GT(found, 20'000);
  // The cache does not keep an entry that does not fit its slots.
  cache.put(std::string(25, 'a'), Ids{1});
  cache.put("many", Ids{1, 2, 3, 4, 5, 6, 7, 8});
  cache.put("", Ids{1});
  EXPECT_TRUE(cache.find(std::string(25, 'a')).empty());
  EXPECT_TRUE(cache.find("many").empty());
  EXPECT_TRUE(cache.find("").empty());
}

TEST(WordCache, WordsThatDifferInOneByteAreTwo) {
  for (std::size_t bytes = 1; bytes <= 24; ++bytes) {
    WordCache cache;
    const std::string word(bytes, 'a');
    cache.put(word, Ids{1});
    for (std::size_t at = 0; at < bytes; ++at) {
      std::string other = word;
      other[at] = 'b';
      EXPECT_TRUE(cache.find(other).empty()) << other;
    }
    EXPECT_TRUE(cache.find(word + "a").empty());
    EXPECT_FALSE(cache.find(word).empty());
  }
}

}  // namespace
}  // namespace tandem
