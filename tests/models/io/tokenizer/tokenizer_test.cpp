// Token ids agree with the `tokenizers` library; every way a file can be wrong has its own line.
#include "models/io/tokenizer/tokenizer.hpp"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/json.hpp"
#include "models/io/hf_config.hpp"
#include "models/io/tokenizer/bpe.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;
using test::TinyTokenizer;
using Ids = std::vector<std::int32_t>;

Tokenizer parse(const TinyTokenizer& tiny) {
  return Tokenizer::parse(tiny.json(), "tokenizer.json");
}

class IoTokenizerOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(IoTokenizerOracle, AgreesOnEveryText) {
  const std::string name = GetParam();
  TANDEM_NEEDS_SHARED("oracles/tokenizer/" + name + ".json");
  const TempDir dir;
  const auto source = test::shared("data/tokenizers") / name;
  if (!test::unpack_xz(source / "tokenizer.json.xz", dir / "tokenizer.json")) {
    GTEST_SKIP() << "xz is not installed";
  }
  test::fs::copy_file(source / "tokenizer_config.json", dir / "tokenizer_config.json");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  const JsonDocument oracle = JsonDocument::load(
      test::shared("oracles/tokenizer/" + name + ".json"), {.where = "test"}, 1u << 26);
  std::size_t checked = 0;
  for (const char* group : {"prompts", "strings"}) {
    for (const JsonValue& entry : oracle.root().at(group).items()) {
      Ids expected;
      for (const JsonValue& id : entry.at("ids").items()) {
        expected.push_back(static_cast<std::int32_t>(id.integer()));
      }
      const std::string_view text = entry.at("text").string();
      EXPECT_EQ(tokenizer.encode(text), expected) << text;
      const auto decoded = entry.find("decoded");
      EXPECT_EQ(tokenizer.decode(expected), decoded ? decoded->string() : text);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 308u);
}

INSTANTIATE_TEST_SUITE_P(Published, IoTokenizerOracle, ::testing::Values("qwen3", "gpt2"));

/// The demo's, whose words are cut as Qwen3's.
const test::fs::path kDemo = test::source_path("examples/demo");

/// Of a fine-tuned model, as Transformers 5 writes it.
TEST(IoTokenizer, ReadsTheConfigOfPublishedTokenizers) {
  const TempDir dir;
  test::fs::copy_file(kDemo / "tokenizer.json", dir / "tokenizer.json");
  test::put(dir / "tokenizer_config.json",
            R"({"backend": "tokenizers", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
                "model_max_length": 1000000000000000019884624838656,
                "tokenizer_class": "TokenizersBackend"})");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  EXPECT_EQ(tokenizer.pad_id(), 765);
  EXPECT_EQ(tokenizer.eos_id(), 765);
  EXPECT_FALSE(tokenizer.bos_id().has_value());
  EXPECT_FALSE(tokenizer.model_max_length().has_value());  // 1e30, written out
  EXPECT_EQ(tokenizer.vocab_size(), 768);
}

TEST(IoTokenizer, MergesByRankAndLeftmostFirst) {
  TinyTokenizer tiny;
  tiny.added_tokens = "";
  tiny.vocabulary += R"(,"ab":256,"bc":257,"aa":258,"aaa":259)";
  tiny.merges = R"("b c", ["a","b"], "a a", ["aa", "a"])";
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("abc"), (Ids{'a', 257}));
  EXPECT_EQ(tokenizer.encode("ab"), (Ids{256}));
  EXPECT_EQ(tokenizer.encode("aaaa"), (Ids{258, 258}));
  EXPECT_EQ(tokenizer.encode("aaaaa"), (Ids{258, 259}));
}

TEST(IoTokenizer, LongWordsMergeAsShortOnes) {
  // The heap for long words and the scan for short ones are two ways to the same answer.
  MergeTable table(8);
  ASSERT_TRUE(table.add(0, 1, 3, 2));
  ASSERT_TRUE(table.add(1, 0, 1, 3));
  ASSERT_TRUE(table.add(2, 2, 2, 4));
  ASSERT_TRUE(table.add(3, 3, 0, 5));
  ASSERT_TRUE(table.add(0, 0, 4, 6));
  ASSERT_FALSE(table.add(0, 1, 9, 9));
  BpeMerger merger;
  std::uint32_t random = 12345;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int32_t> symbols(static_cast<std::size_t>(round % 90));
    for (auto& symbol : symbols) {
      random = random * 1664525u + 1013904223u;
      symbol = static_cast<std::int32_t>(random >> 31);
    }
    std::vector<std::int32_t> expected = symbols;
    for (;;) {  // the definition
      const MergeTable::Entry* best = nullptr;
      std::size_t at = 0;
      for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
        const auto* entry = table.find(expected[i], expected[i + 1]);
        if (entry != nullptr && (best == nullptr || entry->rank < best->rank)) {
          best = entry;
          at = i;
        }
      }
      if (best == nullptr) {
        break;
      }
      expected[at] = best->joined;
      expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    merger.merge(table, symbols);
    ASSERT_EQ(symbols, expected);
  }
}

TEST(IoTokenizer, IgnoreMergesTakesWholeWords) {
  TinyTokenizer tiny;
  tiny.added_tokens = "";
  tiny.vocabulary += R"(,"ab":256,"abab":257)";
  tiny.merges = R"("a b")";
  EXPECT_EQ(parse(tiny).encode("abab"), (Ids{256, 256}));
  tiny.model_members = R"(, "ignore_merges": true)";
  EXPECT_EQ(parse(tiny).encode("abab"), (Ids{257}));
}

TEST(IoTokenizer, AddedTokensFollowTheirFlags) {
  TinyTokenizer tiny;
  tiny.added_tokens = R"({"id": 256, "content": "<l>", "lstrip": true, "special": true},
    {"id": 257, "content": "<r>", "rstrip": true, "special": true},
    {"id": 258, "content": "cat", "single_word": true, "normalized": false},
    {"id": 259, "content": "<l><l>", "special": true})";
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("a \n<l> b"), (Ids{'a', 256, ' ', 'b'}));
  EXPECT_EQ(tokenizer.encode("a <r> \tb"), (Ids{'a', ' ', 257, 'b'}));
  EXPECT_EQ(tokenizer.encode("cat!"), (Ids{258, '!'}));
  EXPECT_EQ(tokenizer.encode("cats"), (Ids{'c', 'a', 't', 's'}));
  EXPECT_EQ(tokenizer.encode("<l><l>"), (Ids{259}));  // the longest of the leftmost
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 258, -1, 99999}), "<l>acat");
  EXPECT_EQ(tokenizer.decode(Ids{256, 'a', 258}, true), "acat");
}

TEST(IoTokenizer, AddsWhatThePostProcessorAdds) {
  TinyTokenizer tiny;
  tiny.members = R"(, "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "RobertaProcessing", "cls": ["<s>", 256], "sep": ["</s>", 257]}]})";
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("a", true), (Ids{256, 'a', 257}));
  EXPECT_EQ(tokenizer.encode("a", false), (Ids{'a'}));
  EXPECT_EQ(tokenizer.encode("", true), (Ids{256, 257}));
}

TEST(IoTokenizer, PrefixSpaceGoesBeforeEveryText) {
  TinyTokenizer tiny;
  tiny.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": true})";
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("a<s>b c"), (Ids{' ', 'a', 256, ' ', 'b', ' ', 'c'}));
  EXPECT_EQ(tokenizer.encode(" a"), (Ids{' ', 'a'}));
}

TEST(IoTokenizer, NormalizesWhereTheFileAsks) {
  TinyTokenizer tiny;
  EXPECT_EQ(parse(tiny).encode("e\u0301").size(), 3u);
  tiny.members = R"(, "normalizer": {"type": "NFC"})";
  const Tokenizer tokenizer = parse(tiny);
  EXPECT_EQ(tokenizer.encode("e\u0301"), (Ids{0xC3, 0xA9}));
  // utf8proc alone would let U+11A7 vanish behind a syllable.
  EXPECT_EQ(tokenizer.encode("\uAC00\u11A7"), (Ids{0xEA, 0xB0, 0x80, 0xE1, 0x86, 0xA7}));
}

TEST(IoTokenizer, InvalidBytesBecomeReplacementCharacters) {
  const Tokenizer tokenizer = parse({});
  EXPECT_EQ(tokenizer.decode(Ids{0xE2, 0x82, 'a', 0xFF, 0xC0, 0x80, 0xED, 0xA0, 0x80}),
            "\uFFFDa\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer.decode(Ids{0xF0, 0x9F, 0x98}), "\uFFFD");
  expect_error([&] { (void)tokenizer.encode("a\xFF"); }, {"[tokenizer]", "not UTF-8"});
}

TEST(IoTokenizer, BytesWithoutATokenNeedAnUnknownToken) {
  TinyTokenizer tiny;
  tiny.vocabulary = R"("a":0,"?":1)";
  tiny.added_tokens = "";
  expect_error([&] { (void)parse(tiny).encode("ab"); }, {"no token for the byte 0x62"});
  tiny.model_members = R"(, "unk_token": "?")";
  EXPECT_EQ(parse(tiny).encode("abb"), (Ids{0, 1, 1}));
  tiny.model_members += R"(, "fuse_unk": true)";
  EXPECT_EQ(parse(tiny).encode("abba"), (Ids{0, 1, 0}));
}

TEST(IoTokenizer, LongTextsAreNoProblem) {
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  for (const std::string& text : {std::string(3'000'000, ' ') + "x", std::string(3'000'000, 'a'),
                                  std::string(1'000'000, '\n')}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(IoTokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = Tokenizer::load(kDemo);
  const Ids expected = tokenizer.encode("Which day comes after Friday? <|im_end|>");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) {
        wrong += tokenizer.encode("Which day comes after Friday? <|im_end|>") == expected ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST(IoTokenizer, CopiesItsFilesAndChecksTheModel) {
  const TempDir from;
  const TempDir to;
  test::put(from / "tokenizer.json", TinyTokenizer{}.json());
  test::put(from / "merges.txt", "x");
  copy_tokenizer_files(from.path(), to.path());
  EXPECT_EQ(test::get(to / "tokenizer.json"), TinyTokenizer{}.json());
  EXPECT_EQ(test::get(to / "merges.txt"), "x");
  HfConfig config;
  config.vocab_size = 259;
  EXPECT_NO_THROW(check_tokenizer_fits(Tokenizer::load(to.path()), config));
  config.vocab_size = 258;
  expect_error([&] { check_tokenizer_fits(Tokenizer::load(to.path()), config); },
               {"ids up to 258", "only 258 embeddings"});
}

TEST(IoTokenizerBad, ModelsAreRefused) {
  struct Case {
    std::string_view members;
    std::string_view expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {R"(, "type": "Unigram")", "$.model.type is \"Unigram\""},
           {R"(, "dropout": 0.1)", "random merges"},
           {R"(, "continuing_subword_prefix": "##")", "no affixes"},
           {R"(, "end_of_word_suffix": "</w>")", "no affixes"},
           {R"(, "byte_fallback": true)", "byte_fallback"},
           {R"(, "unk_token": "nope")", "\"nope\" is not in the vocabulary"},
           {R"(, "vocab": {})", "\"vocab\" occurs twice"}}) {
    TinyTokenizer tiny;
    tiny.model_members = c.members;
    expect_error([&] { (void)parse(tiny); }, {"[tokenizer]", "tokenizer.json", c.expected});
  }
}

TEST(IoTokenizerBad, VocabulariesAreRefused) {
  struct Case {
    std::string_view vocabulary;
    std::string_view expected;
  };
  for (const Case& c :
       std::initializer_list<Case>{{"", "the vocabulary is empty"},
                                   {R"("a":0,"b":0)", "the id 0 already belongs to \"a\""},
                                   {R"("a":-1)", "$.model.vocab.a is -1"},
                                   {R"("a":4000000000)", "an id from 0 to 16777215"},
                                   {R"("a":99999999999999999999)", "an id from 0"},
                                   {R"("a":1.5)", "an id from 0"},
                                   {R"("a":"0")", "an id from 0"},
                                   {R"("a":0,"a":1)", "\"a\" occurs twice"}}) {
    TinyTokenizer tiny;
    tiny.vocabulary = c.vocabulary;
    expect_error([&] { (void)parse(tiny); }, {"[tokenizer]", c.expected});
  }
}

TEST(IoTokenizerBad, MergesAreRefused) {
  struct Case {
    std::string_view merges;
    std::string_view expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {R"("ab")", "one space between"},
           {R"("a b c")", "one space between"},
           {R"(["a"])", "a pair of two tokens"},
           {R"(["a","b","c"])", "a pair of two tokens"},
           {R"(["a",5])", "a string"},
           {R"(7)", "a string"},
           {R"("a c")", "\"ac\" is not in the vocabulary"},
           {R"("a zz")", "\"zz\" is not in the vocabulary"},
           {R"("a b", "a b")", "$.model.merges[1]: the same two tokens"},
           {R"(["","a"])", "not empty"},  // "" + "a" = "a" would go on for ever
           {R"("a ")", "not empty"}}) {
    TinyTokenizer tiny;
    tiny.added_tokens = "";
    tiny.vocabulary += R"(,"ab":256,"":257)";
    tiny.merges = c.merges;
    expect_error([&] { (void)parse(tiny); }, {"[tokenizer]", "$.model.merges[", c.expected});
  }
}

TEST(IoTokenizerBad, AddedTokensAreRefused) {
  struct Case {
    std::string_view tokens;
    std::string_view expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {R"({"id": 0, "content": "<s>"})", "the id 0 of \"<s>\" already belongs to"},
           {R"({"id": 300, "content": "a"})", "\"a\" has the id 300 here and 97 elsewhere"},
           {R"({"id": 256, "content": "<s>"}, {"id": 256, "content": "<t>"})",
            "already belongs to \"<s>\""},
           {R"({"id": -1, "content": "<s>"})", "$.added_tokens[0].id is -1"},
           {R"({"id": 4000000000, "content": "<s>"})", "$.added_tokens[0].id"},
           {R"({"id": 256, "content": ""})", "a text that is not empty"},
           {R"({"id": 256})", "\"content\" is missing"},
           {R"({"content": "<s>"})", "\"id\" is missing"},
           {R"({"id": 256, "content": "<s>", "lstrip": "yes"})", "true or false"}}) {
    TinyTokenizer tiny;
    tiny.added_tokens = c.tokens;
    expect_error([&] { (void)parse(tiny); }, {"[tokenizer]", c.expected});
  }
}

TEST(IoTokenizerBad, PartsAreRefused) {
  struct Case {
    std::string_view pre_tokenizer;
    std::string_view members;
    std::string_view expected;
  };
  constexpr std::string_view kByteLevel = R"({"type": "ByteLevel"})";
  for (
      const Case& c : std::initializer_list<Case>{
          {"null", "", "has no ByteLevel step"},
          {R"({"type": "Metaspace"})", "", "one of ByteLevel, Split"},
          {R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})", "",
           "does not compile"},
          {R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Contiguous"})", "",
           "\"Isolated\", \"Removed\" or"},
          {R"({"type": "Split", "pattern": {}, "behavior": "Isolated"})", "",
           "\"String\" is missing"},
          {R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated"}]})",
           "", "behind ByteLevel"},
          {kByteLevel, R"(, "normalizer": {"type": "Lowercase"})", "one of NFC"},
          {kByteLevel, R"(, "post_processor": {"type": "Other"})",
           "one of ByteLevel, TemplateProcessing"},
          {kByteLevel, R"(, "post_processor": {"type": "TemplateProcessing", "single": []})",
           "0 places for the text"},
          {kByteLevel,
           R"(, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}})",
           "\"x\" is missing"},
          {kByteLevel,
           R"(, "post_processor": {"type": "RobertaProcessing", "cls": ["a", 9999], "sep": ["b", 1]})",
           "no token has the id 9999"}}) {
    SCOPED_TRACE(c.expected);
    TinyTokenizer tiny;
    tiny.pre_tokenizer = c.pre_tokenizer;
    tiny.members = c.members;
    expect_error([&] { (void)parse(tiny); }, {"[tokenizer]", c.expected});
  }
}

TEST(IoTokenizerBad, RunawayPatternsEndWithAnError) {
  TinyTokenizer tiny;
  tiny.pre_tokenizer =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a+)+$"},
    "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}]})";
  const Tokenizer tokenizer = parse(tiny);
  expect_error([&] { (void)tokenizer.encode(std::string(60, 'a') + "b"); }, {"(a+)+$", "limit"});
}

TEST(IoTokenizerBad, ConfigsAreRefused) {
  expect_error([] { (void)test::tiny_tokenizer("", R"({"split_special_tokens": true})"); },
               {"tokenizer_config.json", "$.split_special_tokens", "other ids"});
  expect_error([] { (void)test::tiny_tokenizer("", R"({"eos_token": 5})"); },
               {"$.eos_token is 5", "a string"});
  expect_error([] { (void)test::tiny_tokenizer("", R"({"model_max_length": 0})"); },
               {"at least 1"});
  expect_error(
      [] {
        (void)test::tiny_tokenizer("", R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})");
      },
      {"not a token id"});
  const TempDir dir;
  expect_error([&] { (void)Tokenizer::load(dir.path()); },
               {"has no tokenizer.json", "save_pretrained"});
  test::put(dir / "tokenizer.json", "[1");
  expect_error([&] { (void)Tokenizer::load(dir.path()); }, {"tokenizer.json", "not valid JSON"});
  test::put(dir / "tokenizer.json", "{}");
  expect_error([&] { (void)Tokenizer::load(dir.path()); }, {"\"model\" is missing"});
}

TEST(IoTokenizer, StepsThatTheClassWouldReplaceAreNoted) {
  const auto note = [](const char* config) { return test::tiny_tokenizer("", config).note(); };
  EXPECT_EQ(note(R"({"tokenizer_class": "GPT2Tokenizer"})"), "");
  EXPECT_EQ(note(R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), "");
  EXPECT_NE(
      note(R"({"tokenizer_class": "Qwen2Tokenizer"})").find("others for tokenizer_class Qwen2"),
      std::string::npos);
}

TEST(IoTokenizer, TokensOfTheConfigAreAdded) {
  const auto with_new = [](const char* id) {
    return test::tiny_tokenizer(
        "",
        std::string(R"({"added_tokens_decoder": {"256": {"content": "<s>", "special": true}, ")") +
            id + R"(": {"content": "<new>", "special": true}},
                "bos_token": "<new>", "model_max_length": 77})");
  };
  const Tokenizer tokenizer = with_new("259");
  EXPECT_EQ(tokenizer.encode("a<new>"), (Ids{'a', 259}));
  EXPECT_EQ(tokenizer.bos_id(), 259);
  EXPECT_EQ(tokenizer.model_max_length(), 77);
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  // Transformers would give it the next id without a word.
  test::expect_error([&] { (void)with_new("300"); },
                     {"gives \"<new>\" the id 300, and 259 is the right one"});
}

}  // namespace
}  // namespace tandem
