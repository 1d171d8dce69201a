// safetensors files: good ones are read exactly, each way of being bad has its own line.
#include "actors/storage/safetensors.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "actors/storage/safetensors_header.hpp"
#include "runtime/util/build.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;

std::string with_length(std::string_view header, std::string_view data) {
  std::string out;
  for (std::size_t length = header.size(), i = 0; i < 8; ++i, length >>= 8) {
    out.push_back(static_cast<char>(length & 0xFF));
  }
  return out.append(header).append(data);
}

SafetensorsFile open_text(const TempDir& dir, std::string_view bytes) {
  test::put(dir / "t.safetensors", bytes);
  return SafetensorsFile::open(dir / "t.safetensors");
}

std::string bytes_of_floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

TEST(IoSafetensors, ReadsTensorsAndMetadata) {
  const TempDir dir;
  const auto file = open_text(
      dir,
      with_length(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},)"
          R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"s":{"dtype":"I64","shape":[],"data_offsets":[20,28]},)"
          R"("e":{"dtype":"F32","shape":[0,5],"data_offsets":[28,28]}}   )",
          std::string("\1\2\3\4", 4) + bytes_of_floats({1, 2, 3, 4}) + std::string(8, '\0')));
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.at("b").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(file.at("s").numel(), 1);
  EXPECT_EQ(file.at("e").numel(), 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(std::to_integer<int>(file.bytes(file.at("a"))[2]), 3);
  std::vector<float> out(2);
  file.read_f32("b", 1, 3, out.data());
  EXPECT_EQ(out, (std::vector<float>{2, 3}));
  expect_error([&] { file.read_f32("a", 0, 4, out.data()); }, {"\"a\" has type U8"});
  expect_error([&] { (void)file.at("x"); }, {"no tensor \"x\""});
}

TEST(IoSafetensors, RefusesBadHeaders) {
  struct Case {
    std::string header;
    std::string data;
    std::string_view expected;
  };
  const std::string four(4, '\0');
  const std::string eight(8, '\0');
  const std::vector<Case> cases = {
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", four, "$.a.dtype is \"F31\""},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", four, "BF16"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four,
       "take 8 bytes, data_offsets give 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", four, "lies outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four, "lies outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", four, "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}})", four, "-0, not an integer"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four, "at least 0"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", four, "an integer"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", four, "a pair"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", four, "\"data_offsets\" is missing"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", four, "\"dtype\" is missing"},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", four, "an array"},
      {R"({"a":5})", four, "an object"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})", four,
       "overflow"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", "",
       "overflow"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}})", four,
       "an integer"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       four, "they overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight, "a gap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", eight, "tensors end at 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       eight, "\"a\" occurs twice"},
      {R"({"__metadata__":{"n":1}})", "", "a string is needed"},
      {R"({"a":)", "", "not valid JSON"},
      {R"({} {})", "", "not valid JSON"},
      {" {}", "", "does not begin with '{'"},
      {"[]", "", "does not begin with '{'"},
      {"{\"\xFF\":1}", "", "not valid JSON"},
      {"", "", "does not begin with '{'"},
  };
  const TempDir dir;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.header);
    expect_error([&] { (void)open_text(dir, with_length(c.header, c.data)); },
                 {"[safetensors]", "t.safetensors", c.expected});
  }
}

TEST(IoSafetensors, RefusesTooManyDimensions) {
  std::string shape = "1";
  for (int i = 0; i < 40; ++i) {
    shape += ",1";
  }
  const TempDir dir;
  expect_error(
      [&] {
        (void)open_text(dir, with_length(R"({"a":{"dtype":"U8","shape":[)" + shape +
                                             R"(],"data_offsets":[0,1]}})",
                                         "x"));
      },
      {"41 dimensions"});
}

TEST(IoSafetensors, RefusesBadLengths) {
  const TempDir dir;
  expect_error([&] { (void)open_text(dir, ""); }, {"too short for a header"});
  expect_error([&] { (void)open_text(dir, "1234567"); }, {"has 7 bytes"});
  expect_error([&] { (void)open_text(dir, std::string("\x10\0\0\0\0\0\0\0{}", 10)); },
               {"header of 16 bytes, but only 2 follow", "truncated"});
  expect_error([&] { (void)open_text(dir, std::string(8, '\xFF') + "{}"); },
               {"limit is 100000000"});
  expect_error([&] { (void)SafetensorsFile::open(dir / "none.safetensors"); }, {"No such file"});
  expect_error([&] { (void)SafetensorsFile::open(dir.path()); }, {"not a regular file"});
}

TEST(IoSafetensors, EveryTruncationIsRefused) {
  const TempDir dir;
  const std::string whole = safetensors_header(std::vector<TensorPlan>{
                                {"a", TensorType::kF32, {2}}, {"b", TensorType::kBF16, {3}}}) +
                            std::string(14, 'x');
  ASSERT_NO_THROW((void)open_text(dir, whole));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    expect_error([&] { (void)open_text(dir, whole.substr(0, size)); }, {"t.safetensors"});
  }
}

TEST(IoSafetensors, ReadingAFileThatShrankIsAnError) {
  const TempDir dir;
  const auto file =
      open_text(dir, safetensors_header(std::vector<TensorPlan>{{"a", TensorType::kBF16, {64}}}) +
                         std::string(128, '\0'));
  test::fs::resize_file(dir / "t.safetensors", 100);
  std::vector<float> out(64);
  expect_error([&] { file.read_f32("a", 0, 64, out.data()); }, {"ends at byte", "shortened"});
}

TEST(IoSafetensors, PagesThatAreGoneAreAnErrorAndNoSignal) {
  const TempDir dir;
  constexpr std::int64_t kElements = 1 << 20;
  const std::string path = (dir / "t.safetensors").string();
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16}) {
    const std::string whole =
        safetensors_header(std::vector<TensorPlan>{{"a", type, {kElements}}}) +
        std::string(static_cast<std::size_t>(kElements) * bytes_of(type), '\1');
    const auto file = open_text(dir, whole);
    std::vector<float> out(kElements);
    for (int turn = 0; turn < 2; ++turn) {  // the thread and the process are as they were
      test::fs::resize_file(path, 40'000);
      expect_error([&] { file.read_f32("a", 0, kElements, out.data()); },
                   {"ends at byte 40000", "shortened"});
      EXPECT_NO_THROW(file.read_f32("a", 0, 1000, out.data()));  // still there
    }
    EXPECT_FALSE(MappedFile::survives(
        [&] { out[0] = static_cast<float>(file.bytes(file.at("a"))[100'000]); }));
    EXPECT_TRUE(MappedFile::survives([] {}));
    if (!kAddressSanitizer && !kThreadSanitizer) {  // which end the process in their own way
      EXPECT_EXIT((void)std::to_integer<int>(
                      *const_cast<const volatile std::byte*>(&file.bytes(file.at("a"))[100'000])),
                  testing::KilledBySignal(SIGBUS), "");
      EXPECT_EXIT((void)::kill(::getpid(), SIGBUS), testing::KilledBySignal(SIGBUS), "");
    }
    test::put(path, whole);  // in place: the same file
    ASSERT_NO_THROW(file.read_f32("a", 0, kElements, out.data()));
    EXPECT_EQ(out.front(), out.back());
  }
}

/// Large pieces take another way (past the caches) than small ones.
TEST(IoSafetensors, LargePiecesHaveTheBitsOfSmallOnes) {
  const TempDir dir;
  constexpr std::int64_t kElements = (1 << 19) + 13;
  for (const TensorType type :
       {TensorType::kF32, TensorType::kBF16, TensorType::kF16, TensorType::kF64}) {
    std::string data(static_cast<std::size_t>(kElements) * bytes_of(type), '\0');
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<char>(i * 2654435761U >> 13);
    }
    for (std::size_t i = bytes_of(type) - 1; i < data.size(); i += bytes_of(type)) {
      data[i] = static_cast<char>(data[i] & 0xBF);  // an exponent that is not all ones
    }
    const auto file = open_text(
        dir, safetensors_header(std::vector<TensorPlan>{{"a", type, {kElements}}}) + data);
    std::vector<float> large(kElements);
    std::vector<float> small(kElements);
    file.read_f32("a", 0, kElements, large.data());
    for (std::int64_t at = 0; at < kElements; at += 997) {
      file.read_f32("a", at, std::min(kElements, at + 997), small.data() + at);
    }
    EXPECT_EQ(0, std::memcmp(large.data(), small.data(), large.size() * sizeof(float)))
        << name_of(type);
  }
}

TEST(IoSafetensors, WhatIsNoNumberIsNamedWithItsTensorAndElement) {
  const TempDir dir;
  constexpr std::int64_t kElements = (1 << 18) + 99;
  for (const TensorType type :
       {TensorType::kF32, TensorType::kBF16, TensorType::kF16, TensorType::kF64}) {
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{1 << 18}, kElements - 1}) {
      std::string data(static_cast<std::size_t>(kElements) * bytes_of(type), '\0');
      const std::size_t end = static_cast<std::size_t>(bad + 1) * bytes_of(type);
      data[end - 1] = '\x7f';
      data[end - 2] = '\xf8';
      const auto file = open_text(
          dir, safetensors_header(std::vector<TensorPlan>{{"a.weight", type, {kElements}}}) + data);
      std::vector<float> values(kElements);
      expect_error([&] { file.read_f32("a.weight", 0, kElements, values.data()); },
                   {"t.safetensors", "\"a.weight\"", fmt::format("at element {};", bad)});
      if (bad > 1) {
        file.read_f32("a.weight", 0, bad, values.data());
        expect_error([&] { file.read_f32("a.weight", bad - 1, kElements, values.data()); },
                     {fmt::format("at element {};", bad)});
      }
    }
  }
}

TEST(IoSafetensors, ConvertsHalfTypesExactly) {
  // All 65536 halves survive the way to fp32 and back, except that NaNs may become quiet.
  for (const TensorType type : {TensorType::kF16, TensorType::kBF16}) {
    std::vector<std::uint16_t> raw(65536);
    for (std::size_t i = 0; i < raw.size(); ++i) {
      raw[i] = static_cast<std::uint16_t>(i);
    }
    std::vector<float> values(raw.size());
    convert_to_f32(type, std::as_bytes(std::span(raw)), values);
    std::vector<std::uint16_t> back(raw.size());
    convert_from_f32(type, values, std::as_writable_bytes(std::span(back)));
    for (std::size_t i = 0; i < raw.size(); ++i) {
      if (std::isnan(values[i])) {
        float again = 0;
        convert_to_f32(type, std::as_bytes(std::span(&back[i], 1)), std::span(&again, 1));
        EXPECT_TRUE(std::isnan(again));
      } else {
        ASSERT_EQ(back[i], raw[i]) << name_of(type) << " " << i;
      }
    }
  }
}

TEST(IoSafetensors, RoundsToNearestEven) {
  const auto f16 = [](float value) {
    std::uint16_t out = 0;
    convert_from_f32(TensorType::kF16, std::span(&value, 1),
                     std::as_writable_bytes(std::span(&out, 1)));
    return out;
  };
  const auto bf16 = [](float value) {
    std::uint16_t out = 0;
    convert_from_f32(TensorType::kBF16, std::span(&value, 1),
                     std::as_writable_bytes(std::span(&out, 1)));
    return out;
  };
  EXPECT_EQ(f16(1.0F + 0x1p-11F), 0x3C00);      // tie to even, down
  EXPECT_EQ(f16(1.0F + 3 * 0x1p-11F), 0x3C02);  // tie to even, up
  EXPECT_EQ(f16(1.0F + 0x1.002p-11F), 0x3C01);  // just above the tie
  EXPECT_EQ(f16(65519.0F), 0x7BFF);             // greatest finite
  EXPECT_EQ(f16(65520.0F), 0x7C00);             // rounds to infinity
  EXPECT_EQ(f16(0x1p-25F), 0x0000);             // half the least denormal: to even
  EXPECT_EQ(f16(0x1.8p-25F), 0x0001);
  EXPECT_EQ(f16(-0x1.ff8p-15F), 0x83FF);  // greatest denormal
  EXPECT_EQ(f16(-0x1.ffcp-15F), 0x8400);  // tie between it and the least normal: to even
  EXPECT_EQ(bf16(1.0F + 0x1p-8F), 0x3F80);
  EXPECT_EQ(bf16(1.0F + 3 * 0x1p-8F), 0x3F82);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()), 0x7F80);
}

}  // namespace
}  // namespace tandem
