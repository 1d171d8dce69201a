// Instruction records become the rows the DeepSpeed example makes, with padding left out of the
// labels.
#include "models/data/alpaca.hpp"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/safetensors.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;

TEST(IoAlpaca, ReadsArraysAndLines) {
  const TempDir dir;
  test::put(dir / "a.json", R"([{"instruction": "i", "input": "", "output": "o", "id": 7},
    {"output": "p", "input": "x", "instruction": "j"}])");
  test::put(dir / "a.jsonl",
            "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\"}\r\n\n"
            "{\"output\": \"p\", \"input\": \"x\", \"instruction\": \"j\"}");
  for (const char* name : {"a.json", "a.jsonl"}) {
    const auto records = read_alpaca(dir / name);
    ASSERT_EQ(records.size(), 2u);
    EXPECT_EQ(records[0].instruction, "i");
    EXPECT_EQ(records[1].input, "x");
    EXPECT_EQ(records[1].output, "p");
  }
}

TEST(IoAlpaca, WritesThePromptOfTheExample) {
  EXPECT_EQ(alpaca_text({"do", "", "done"}), "### Instruction:\ndo\n\n### Response:\ndone");
  EXPECT_EQ(alpaca_text({"do", " x ", "done"}),
            "### Instruction:\ndo\n\n### Input:\n x \n\n### Response:\ndone");
  EXPECT_EQ(alpaca_question({"do", " \t\n\xC2\xA0", "done"}),
            "### Instruction:\ndo\n\n### Response:\n");
}

TEST(IoAlpaca, KeepsAPercentage) {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    lines += R"({"instruction": "i", "input": "", "output": ")" + std::to_string(i) + "\"}\n";
  }
  test::put(dir / "a.jsonl", lines);
  EXPECT_EQ(read_alpaca(dir / "a.jsonl", 100).size(), 10u);
  EXPECT_EQ(read_alpaca(dir / "a.jsonl", 39.9).size(), 3u);
  EXPECT_EQ(read_alpaca(dir / "a.jsonl", 10).front().output, "0");
  expect_error([&] { (void)read_alpaca(dir / "a.jsonl", 9); }, {"a.jsonl", "10 records", "9 %"});
  for (const double bad : {0.0, -1.0, 100.5, std::nan("")}) {
    expect_error([&] { (void)read_alpaca(dir / "a.jsonl", bad); }, {"dataset_percentage"});
  }
}

TEST(IoAlpaca, NamesFileRecordAndLineOfABadRecord) {
  const TempDir dir;
  const std::string good = R"({"instruction": "i", "input": "", "output": "o"})";
  struct Case {
    std::string_view record;
    std::string_view expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {R"({"instruction": "i", "input": ""})", "\"output\" is missing"},
           {R"({"instruction": "i", "output": "o"})", "\"input\" is missing"},
           {R"({"input": "", "output": "o"})", "\"instruction\" is missing"},
           {R"({"instruction": 5, "input": "", "output": "o"})", "instruction is 5, a string"},
           {R"({"instruction": "i", "input": null, "output": "o"})", "input is null, a string"},
           {R"({"instruction": "i", "input": "", "output": ["o"]})", "output is [\"o\"], a string"},
           {R"("text")", "an object is needed"}}) {
    SCOPED_TRACE(c.record);
    test::put(dir / "bad.jsonl", good + "\n\n" + std::string(c.record) + "\n" + good + "\n");
    expect_error([&] { (void)read_alpaca(dir / "bad.jsonl"); },
                 {"[dataset]", "bad.jsonl:3", c.expected});
    test::put(dir / "bad.json",
              "[\n" + good + ",\n" + good + ",\n\n" + std::string(c.record) + "]");
    expect_error([&] { (void)read_alpaca(dir / "bad.json"); },
                 {"[dataset]", "bad.json:5", "record 3", c.expected});
  }
}

TEST(IoAlpaca, RefusesFilesThatHoldNoRecords) {
  const TempDir dir;
  test::put(dir / "e.json", "[]");
  expect_error([&] { (void)read_alpaca(dir / "e.json"); }, {"e.json", "has 0 records"});
  for (const char* name : {"e.json", "e.jsonl"}) {
    test::put(dir / name, "\n \n");
    expect_error([&] { (void)read_alpaca(dir / name); }, {name, "is empty"});
  }
  test::put(dir / "e.json", R"({"instruction": "i"})");
  expect_error([&] { (void)read_alpaca(dir / "e.json"); }, {"e.json", "an array is needed"});
  test::put(dir / "e.jsonl", "{\"instruction\": \"i\"");
  expect_error([&] { (void)read_alpaca(dir / "e.jsonl"); }, {"e.jsonl:1", "not valid JSON"});
  test::put(dir / "e.jsonl", "{\"instruction\": \"\xFF\", \"input\": \"\", \"output\": \"\"}");
  expect_error([&] { (void)read_alpaca(dir / "e.jsonl"); }, {"e.jsonl:1", "not valid JSON"});
  test::put(dir / "e.txt", "x");
  expect_error([&] { (void)read_alpaca(dir / "e.txt"); }, {"neither .json nor .jsonl"});
  expect_error([&] { (void)read_alpaca(dir / "none.json"); }, {"none.json", "No such file"});
}

TEST(IoAlpaca, KeepsOddTextsWhole) {
  const TempDir dir;
  test::put(dir / "odd.jsonl", "{\"instruction\": \"a\\u0000b\", \"input\": \"" +
                                   std::string(10'000'000, 'x') +
                                   "\", \"output\": \"\\ud83d\\ude00\"}\n");
  const auto records = read_alpaca(dir / "odd.jsonl");
  EXPECT_EQ(records[0].instruction, std::string("a\0b", 3));
  EXPECT_EQ(records[0].input.size(), 10'000'000u);
  EXPECT_EQ(records[0].output, "\xF0\x9F\x98\x80");
}

TEST(IoAlpaca, RowsArePaddedCutAndLabelled) {
  const Tokenizer tokenizer = test::tiny_tokenizer(
      R"("post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
      {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [256]}, "</s>": {"id": "</s>", "ids": [257]}}})",
      R"({"pad_token": "<pad>", "eos_token": "</s>"})");
  const std::int32_t a = *tokenizer.id_of("a");
  const TokenRow row = make_row(tokenizer, "aaa", 8);
  EXPECT_EQ(row.tokens, 5);
  EXPECT_EQ(row.input_ids, (std::vector<std::int32_t>{256, a, a, a, 257, 258, 258, 258}));
  EXPECT_EQ(row.labels, (std::vector<std::int64_t>{256, a, a, a, 257, -100, -100, -100}));
  const TokenRow cut = make_row(tokenizer, "aaaaaaaaaa", 4);
  EXPECT_EQ(cut.input_ids, (std::vector<std::int32_t>{256, a, a, 257}));
  EXPECT_EQ(cut.tokens, 4);
  expect_error([&] { (void)make_row(tokenizer, "a", 1); }, {"max_length is 1", "adds 2 tokens"});
  expect_error([&] { (void)make_row(tokenizer, "a", 0); }, {"max_length is 0"});
}

TEST(IoAlpaca, PaddingFallsBackToTheEndToken) {
  EXPECT_EQ(padding_id(test::tiny_tokenizer("", R"({"eos_token": {"content": "</s>"}})")), 257);
  const Tokenizer bare = test::tiny_tokenizer("", "{}");
  expect_error([&] { (void)padding_id(bare); }, {"neither pad_token nor eos_token"});
  // The end token as padding is learnt where it ends a text, and only there.
  const Tokenizer tokenizer = test::tiny_tokenizer("", R"({"eos_token": "</s>"})");
  const TokenRow row = make_row(tokenizer, "a</s>", 4);
  EXPECT_EQ(row.labels, (std::vector<std::int64_t>{*tokenizer.id_of("a"), 257, -100, -100}));
}

TEST(IoAlpaca, MakesTheRowsOfTheReference) {
  TANDEM_NEEDS_SHARED("oracles/finetune/alpaca.safetensors");
  const TempDir dir;
  if (!test::unpack_xz(test::shared("data/tokenizers/qwen3/tokenizer.json.xz"),
                       dir / "tokenizer.json")) {
    GTEST_SKIP() << "xz is not installed";
  }
  test::fs::copy_file(test::shared("data/tokenizers/qwen3/tokenizer_config.json"),
                      dir / "tokenizer_config.json");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  auto records = read_alpaca(test::shared("data/alpaca/alpaca_small.json"));
  ASSERT_EQ(records.size(), 512u);
  records.resize(64);
  const auto oracle = SafetensorsFile::open(test::shared("oracles/finetune/alpaca.safetensors"));
  const auto column = [&](std::string_view name) {
    const TensorInfo& info = oracle.at(name);
    EXPECT_EQ(info.shape, (std::vector<std::int64_t>{64, 256}));
    std::vector<std::int64_t> values(static_cast<std::size_t>(info.numel()));
    std::memcpy(values.data(), oracle.bytes(info).data(), info.size_bytes);
    return values;
  };
  const auto ids = column("input_ids");
  const auto mask = column("attention_mask");
  const auto labels = column("labels_padding_ignored");
  for (std::size_t r = 0; r < records.size(); ++r) {
    const TokenRow row = make_row(tokenizer, alpaca_text(records[r]), 256);
    for (std::size_t t = 0; t < 256; ++t) {
      ASSERT_EQ(row.input_ids[t], ids[r * 256 + t]) << r << " " << t;
      ASSERT_EQ(row.labels[t], labels[r * 256 + t]) << r << " " << t;
      ASSERT_EQ(static_cast<std::int64_t>(t) < row.tokens ? 1 : 0, mask[r * 256 + t])
          << r << " " << t;
    }
  }
}

}  // namespace
}  // namespace tandem
