// JSON files of other people are read strictly, and errors say where.
#include "actors/storage/json.hpp"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;

JsonDocument parse(std::string_view text) {
  return JsonDocument::parse(text, {.where = "test", .file = "f.json", .advice = "mend it"});
}

TEST(IoJson, ReadsTypedMembers) {
  const JsonDocument document = parse(R"({"a": [1, 2.5, "x", true, null], "b": 4.0})");
  const auto items = document.root().at("a").items();
  EXPECT_EQ(items[0].integer(), 1);
  EXPECT_EQ(items[1].number(), 2.5);
  EXPECT_EQ(items[2].string(), "x");
  EXPECT_TRUE(items[3].boolean());
  EXPECT_TRUE(items[4].is_null());
  EXPECT_EQ(document.root().at("b").integer(), 4);
  EXPECT_FALSE(document.root().find("c").has_value());
}

TEST(IoJson, NamesPathValueAndAdvice) {
  const JsonDocument document = parse(R"({"a": {"b": [0, "seven"]}})");
  const JsonValue value = document.root().at("a").at("b").items()[1];
  expect_error([&] { (void)value.integer(); },
               {"[test]", "f.json", "$.a.b[1]", "\"seven\"", "an integer", "mend it"});
  expect_error([&] { (void)document.root().at("c"); }, {"\"c\" is missing", "$"});
  expect_error([&] { (void)document.root().at("a").at("b").items()[0].integer(1, 5); },
               {"is 0", "from 1 to 5"});
}

TEST(IoJson, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "{} {}", "[1,]", "{\"a\": 01}", "{\"a\": 1e999}",
                           "{\"a\": \"\xFF\"}", "{\"a\": \"\\ud800\"}", "nul"}) {
    expect_error([&] { (void)parse(text); }, {"not valid JSON", "f.json"});
  }
}

TEST(IoJson, ReadsBehindAByteOrderMark) { EXPECT_NO_THROW((void)parse("\xEF\xBB\xBF{}")); }

TEST(IoJson, TellsOneValueFromOtherTexts) {
  const JsonOrigin origin = {.where = "test", .file = "f", .advice = "none"};
  const auto one = JsonDocument::parse_if_json("{\n\"a\": 100000000000000000000\n}\n", origin);
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->root().at("a").number(), 1e20);
  for (const char* other : {"{}\n{}\n", "", "{\n", "text"}) {
    EXPECT_FALSE(JsonDocument::parse_if_json(other, origin).has_value()) << other;
  }
  expect_error([&] { (void)JsonDocument::parse_if_json(R"({"a": 1, "a": 2})", origin); },
               {"\"a\""});
}

TEST(IoJson, RefusesDeepNesting) {
  const std::string deep(100'000, '[');
  expect_error([&] { (void)parse(deep + std::string(100'000, ']')); }, {"not valid JSON"});
}

TEST(IoJson, RefusesDuplicateKeysAnywhere) {
  expect_error([] { (void)parse(R"({"a": 1, "a": 2})"); }, {"\"a\" occurs twice"});
  expect_error([] { (void)parse(R"({"x": [{"a": 1, "\u0061": 2}]})"); }, {"$.x[0]", "twice"});
}

TEST(IoJson, ReadsIntegersBeyond64Bits) {
  const JsonDocument document = parse(
      R"({"model_max_length": 1000000000000000019884624838656, "s": "1000000000000000019884624838656", "n": -5})");
  EXPECT_EQ(document.root().at("model_max_length").number(), 1e30);
  EXPECT_EQ(document.root().at("s").string(), "1000000000000000019884624838656");
  EXPECT_EQ(document.root().at("n").integer(), -5);
}

TEST(IoJson, LimitsTheFileSize) {
  const test::TempDir dir;
  test::put(dir / "big.json", "[" + std::string(1000, ' ') + "]");
  expect_error([&] { (void)JsonDocument::load(dir / "big.json", {.where = "test"}, 100); },
               {"1002 bytes", "limit is 100"});
  expect_error([&] { (void)JsonDocument::load(dir / "none.json", {.where = "test"}, 100); },
               {"none.json", "No such file"});
  expect_error([&] { (void)JsonDocument::load(dir.path(), {.where = "test"}, 100); },
               {"not a regular file"});
}

TEST(IoJson, FindsTheLineOfAnItem) {
  const std::string text = "[\n {\"a\": \"]\\\"\"},\n\n {\"b\": [1,\n2]}, 7\n]";
  EXPECT_EQ(json_line_of_item(text, 0), 2u);
  EXPECT_EQ(json_line_of_item(text, 1), 4u);
  EXPECT_EQ(json_line_of_item(text, 2), 5u);
  EXPECT_EQ(json_line_of_item(text, 3), 0u);
}

// A path is made for each child, and each lies a thousand names deep.
TEST(IoJson, ManyChildrenOfADeepPlaceTakeNoTimeForTheirPaths) {
  const int depth = 900;
  std::string text;
  for (int i = 0; i < depth; ++i) {
    text += "{\"" + std::string(60, 'k') + "\":";
  }
  text += "[";
  for (int i = 0; i < 300'000; ++i) {
    text += "{},";
  }
  text += "{\"a\": 1, \"a\": 2}]" + std::string(depth, '}');
  const auto begin = std::chrono::steady_clock::now();
  expect_error([&] { (void)parse(text); }, {"...", "[300000]", "\"a\" occurs twice"});
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), 5);
}

TEST(IoJson, ListsThatAreMadeHaveALimit) {
  std::string text = "[0";
  for (int i = 0; i < (1 << 20); ++i) {
    text += ",0";
  }
  const JsonDocument document = parse(text + "]");
  expect_error([&] { (void)document.root().items(); }, {"1048577 parts, at most 1048576"});
}

}  // namespace
}  // namespace tandem
