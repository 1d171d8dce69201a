// Instruction records are read whole or refused with file, record and line, and become the text of
// the DeepSpeed example.
#include "models/data/alpaca.hpp"

#include <cmath>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

/// Other readers go by what is in a file, too.
TEST(IoAlpaca, AFilesFirstCharacterTellsItsForm) {
  const TempDir dir;
  const std::string record = R"({"instruction": "i", "output": "o"})";
  test::put(dir / "lines.json", record + "\n" + record + "\n");
  EXPECT_EQ(read_alpaca(dir / "lines.json").size(), 2u);
  test::put(dir / "array.jsonl", "\n[" + record + ",\n" + record + "]\n");
  EXPECT_EQ(read_alpaca(dir / "array.jsonl").size(), 2u);
  test::put(dir / "one.json", "{\n  \"instruction\": \"i\",\n  \"output\": \"o\"\n}\n");
  EXPECT_EQ(read_alpaca(dir / "one.json").size(), 1u);
  test::put(dir / "one.json", "{\n\"instruction\": \"i\",\n\"instruction\": \"j\"\n}\n");
  expect_error([&] { (void)read_alpaca(dir / "one.json"); }, {"one.json", "instruction"});
}

/// Python writes it where pandas has no value.
TEST(IoAlpaca, NotANumberIsNamed) {
  const TempDir dir;
  test::put(dir / "a.jsonl", R"({"instruction": "NaN: i", "input": NaN, "output": "o"})");
  expect_error([&] { (void)read_alpaca(dir / "a.jsonl"); }, {"a.jsonl:1", "NaN is no JSON, null"});
}

TEST(IoAlpaca, AnInputMayBeLeftOut) {
  const TempDir dir;
  test::put(dir / "a.json", R"([{"instruction": "i", "output": "o"},
    {"instruction": "j", "input": null, "output": "p"}])");
  const auto records = read_alpaca(dir / "a.json");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].input, "");
  EXPECT_EQ(alpaca_text(records[1]), "### Instruction:\nj\n\n### Response:\np");
}

/// As editors of some systems write files.
TEST(IoAlpaca, AByteOrderMarkIsNoPartOfTheText) {
  const TempDir dir;
  const std::string mark = "\xEF\xBB\xBF";
  const std::string record = R"({"instruction": "i", "input": "", "output": "o"})";
  test::put(dir / "a.json", mark + "[" + record + "]\r\n");
  test::put(dir / "a.jsonl", mark + record + "\r\n" + record + "\r\n\r\n");
  EXPECT_EQ(read_alpaca(dir / "a.json").size(), 1u);
  const auto records = read_alpaca(dir / "a.jsonl");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].instruction, "i");
}

TEST(IoAlpaca, MembersThatWouldChangeTheTextAreNamed) {
  const TempDir dir;
  const auto put = [&](std::string_view member) {
    test::put(dir / "a.jsonl", fmt::format(R"({{"instruction": "i", "output": "o", {}}})", member));
  };
  for (const std::string_view member :
       {R"("system": "s")", R"("history": [["a", "b"]])", R"("images": ["x"])", R"("weight": 0.5)",
        R"("audio": "x")", R"("system": 1)", R"("loss_weight": 1)", R"("tools": {"a": 1})",
        R"("functions": [{"name": "a"}])", R"("chat_template_kwargs": {"a": 1})",
        R"("pixel_values": [[0.5]])", R"("image_grid_thw": [[1, 2, 2]])",
        R"("video_second_per_grid": 1)"}) {
    put(member);
    const std::string_view name = member.substr(0, member.find(':'));
    expect_error([&] { (void)read_alpaca(dir / "a.jsonl"); },
                 {"a.jsonl:1", name, "would change what is learnt"});
  }
  for (const std::string_view member :
       {R"("system": "")", R"("history": [])", R"("images": null)", R"("weight": 1)", R"("id": 5)",
        R"("label": true)", R"("label": 0)", R"("label": "0")", R"("kto_tag": 1)",
        R"("kto_tag": "1")", R"("functions": [])", R"("pixel_values": null)"}) {
    put(member);
    EXPECT_EQ(read_alpaca(dir / "a.jsonl").size(), 1u) << member;
  }
  for (const std::string_view member :
       {R"("label": false)", R"("label": "False")", R"("kto_tag": false)", R"("kto_tag": 0)",
        R"("kto_tag": 0.0)", R"("kto_tag": "0")"}) {
    put(member);
    expect_error([&] { (void)read_alpaca(dir / "a.jsonl"); }, {"a.jsonl:1", "a bad one"});
  }
  std::vector<std::string> unused;
  put(R"("thoughts": "t", "id": 5, "rejected": "r", "oddity": null)");
  (void)read_alpaca(dir / "a.jsonl", 100, &unused);
  EXPECT_THAT(unused, ::testing::ElementsAre("thoughts", "rejected"));
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
           {R"({"input": "", "output": "o"})", "\"instruction\" is missing"},
           {R"({"messages": []})", "--model_name D --dataset_name F --output X.tokens"},
           {R"({"instruction": 5, "input": "", "output": "o"})", "instruction is 5, a string"},
           {R"({"instruction": "i", "input": 3, "output": "o"})", "input is 3, a string"},
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
  expect_error([&] { (void)read_alpaca(dir / "e.json"); }, {"e.json:1", "output"});
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

}  // namespace
}  // namespace tandem
