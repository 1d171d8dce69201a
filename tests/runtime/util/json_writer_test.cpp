// The JSON writer: separators and nesting, escapes, numbers that read back to the same bits.
#include "runtime/util/json_writer.hpp"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace tandem {
namespace {

std::string number(double value) {
  std::string out;
  append_json_number(out, value);
  return out;
}

std::string string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonWriter, NestsAndSeparatesOnOneLine) {
  JsonWriter json;
  json.begin_object().field("a", 1).field("b", true).field("c", nullptr).field("d", "x");
  json.key("e").begin_array().value(1.5).value(std::int64_t{-2}).begin_object().end_object();
  json.end_array().key("f").value(std::vector<double>{1, 2}).key("g").raw("{\"h\": 1}");
  json.end_object();
  EXPECT_EQ(json.take(),
            R"({"a": 1, "b": true, "c": null, "d": "x", "e": [1.5, -2, {}], "f": [1, 2], )"
            R"("g": {"h": 1}})");
  EXPECT_EQ(json.text(), "") << "taken";
}

TEST(JsonWriter, Indents) {
  JsonWriter json(2);
  json.begin_object().field("a", 1).key("b").begin_array().value(1).end_array();
  json.key("c").begin_object().end_object().end_object();
  EXPECT_EQ(json.text(), "{\n  \"a\": 1,\n  \"b\": [\n    1\n  ],\n  \"c\": {}\n}");
}

TEST(JsonWriter, EscapesWhatJsonDemands) {
  EXPECT_EQ(string("a\"b\\c/\n\r\t\b\x01\x7f"), R"("a\"b\\c/\n\r\t\u0008\u0001\u007f")");
  EXPECT_EQ(string("é 漢 😀"), "\"é 漢 😀\"");
}

TEST(JsonWriter, ReplacesBytesThatAreNoUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(string("a\xFFz"), "\"a" + bad + "z\"");
  EXPECT_EQ(string("\xC0\xAF"), "\"" + bad + bad + "\"") << "overlong";
  EXPECT_EQ(string("\xED\xA0\x80"), "\"" + bad + bad + bad + "\"") << "a surrogate";
  EXPECT_EQ(string("\xE2\x82"), "\"" + bad + bad + "\"") << "cut off";
  EXPECT_EQ(string("\xF4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"") << "past U+10FFFF";
}

TEST(JsonWriter, WritesTheShortestNumberThatReadsBack) {
  EXPECT_EQ(number(0.1), "0.1");
  EXPECT_EQ(number(1e-3), "0.001");
  EXPECT_EQ(number(0), "0");
  EXPECT_EQ(number(5e-324), "5e-324");
  std::string single;
  append_json_number(single, 0.1F);
  EXPECT_EQ(single, "0.1");

  std::mt19937_64 random(7);
  for (int i = 0; i < 100000; ++i) {
    const std::uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) {
      continue;
    }
    const std::string text = number(value);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    ASSERT_EQ(std::memcmp(&back, &value, sizeof(value)), 0) << text;
    ASSERT_LE(text.size(), 24U);
  }
}

TEST(JsonWriter, WritesWhatIsNoNumberAsAString) {
  EXPECT_EQ(number(std::nan("")), "\"NaN\"");
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "\"Infinity\"");
  EXPECT_EQ(number(-std::numeric_limits<double>::infinity()), "\"-Infinity\"");
}

TEST(JsonWriterDeathTest, EndsTheProcessOnMisuse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(JsonWriter().begin_object().value(1), "needs a key");
  EXPECT_DEATH(JsonWriter().begin_array().end_object(), "ends match");
  EXPECT_DEATH(JsonWriter().begin_array().key("a"), "keys belong into objects");
  EXPECT_DEATH(static_cast<void>(JsonWriter().begin_array().take()), "complete");
}

}  // namespace
}  // namespace tandem
