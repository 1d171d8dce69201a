#include "actors/storage/manifest.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "runtime/util/random.hpp"
#include "tests/actors/storage/earlier_slices.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

ContentHash hash_of(std::string_view text) {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.result();
}

Manifest example() {
  return {.step = 20,
          .files = {
              {.name = "master-00000.safetensors",
               .size_bytes = 136,
               .hash = {1, 2},
               .tensors =
                   {{.name = "a \"quoted\" \u00fc",
                     .type = TensorType::kF32,
                     .shape = {2, 3},
                     .begin_byte = 104,
                     .size_bytes = 24,
                     .hash = {3, 4}},
                    {.name = "none", .type = TensorType::kBF16, .shape = {0}, .begin_byte = 128},
                    {.name = "one", .type = TensorType::kF64, .begin_byte = 128, .size_bytes = 8}}},
              {.name = "state.json", .size_bytes = 9, .hash = {5, 6}}}};
}

/// The text with one part replaced, and a hash that fits again.
std::string changed(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::size_t digits = text.rfind("\"content_hash\": \"") + 17;
  return text.replace(digits, 32, hash_of(text.substr(0, digits)).text());
}

std::string error_of(const std::string& text) {
  return error_text([&] { static_cast<void>(Manifest::parse(text, "x/manifest.json")); });
}

TEST(Manifest, ReadsBackWhatItWrote) {
  const Manifest manifest = example();
  const Manifest back = Manifest::parse(manifest.json(), "x");
  EXPECT_EQ(back.json(), manifest.json());
  EXPECT_EQ(back.step, 20);
  ASSERT_EQ(back.files.size(), 2U);
  EXPECT_EQ(back.files[0].tensors[0].name, "a \"quoted\" \u00fc");
  EXPECT_EQ(back.files[0].tensors[0].hash, (ContentHash{3, 4}));
  EXPECT_EQ(back.files[0].tensors[2].shape, std::vector<std::int64_t>());
  EXPECT_EQ(back.files[1].size_bytes, 9U);
  const Manifest empty{.step = 0, .files = {}};
  EXPECT_EQ(Manifest::parse(empty.json(), "x").json(), empty.json());
}

Manifest slices_example() {
  return {.step = 20,
          .files = {{.name = "master-00001-of-00001.safetensors",
                     .size_bytes = 120,
                     .hash = {1, 2},
                     .tensors = {{.name = "w[2:6]",
                                  .shape = {4},
                                  .begin_byte = 104,
                                  .size_bytes = 16,
                                  .hash = {3, 4}}}},
                    {.name = "state.json", .size_bytes = 9, .hash = {5, 6}}},
          .slices = ManifestSlices{
              .save = std::string(32, 'a'),
              .disk = 1,
              .hosts = {"a", "b"},
              .whole = {{"master-00001-of-00001.safetensors",
                         {{"w", TensorType::kF32, {2, 3}}, {"v", TensorType::kF32, {1}}}}}}};
}

TEST(Manifest, HasABlockAboutSlices) {
  const std::string text = slices_example().json();
  const Manifest back = Manifest::parse(text, "x");
  EXPECT_EQ(back.json(), text);
  ASSERT_TRUE(back.slices.has_value());
  EXPECT_EQ(back.slices->disk, 1U);
  EXPECT_EQ(back.slices->hosts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(back.slices->whole.at(0).tensors.at(0).numel(), 6);
  EXPECT_EQ(Manifest::name_of(text), "manifest.json");
  const std::pair<const char*, const char*> cases[] = {
      {"w[2:6]", "w[2:7]"},
      {"w[2:6]", "w[02:6]"},
      {"w[2:6]", "u[2:6]"},
      {"w[2:6]", "w"},
      {"\"disk\": 1", "\"disk\": 2"},
      {"\"disk\": 1", "\"disk\": -1"},
      {"\"save\": \"a", "\"save\": \""},
      {"\"slices\": {", "\"slices\": {\"more\": 1, "},
      {"\"slices\"", "\"slice\""},
      {"\"name\": \"v\"", "\"name\": \"w\""},
      {"tandem checkpoint", "tandem slices"}};
  for (const auto& [from, to] : cases) {
    EXPECT_NE(error_of(changed(text, from, to)), "no error") << from << " -> " << to;
  }
}

TEST(Manifest, ReadsTheSlicesOfAnEarlierVersion) {
  const std::string text = test::earlier_text(slices_example());
  EXPECT_TRUE(
      text.starts_with("{\n  \"format\": \"tandem slices\",\n  \"version\": 1,\n  \"step\": "
                       "20,\n  \"save\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\n  \"disk\": "
                       "1,\n  \"hosts\": [\"a\", \"b\"],\n  \"files\": [\n    {\"name\": "))
      << text;
  EXPECT_EQ(Manifest::name_of(text), "slices.json");
  EXPECT_EQ(Manifest::parse(text, "x").json(), slices_example().json());
  EXPECT_NE(error_of(changed(text, "w[2:6]", "w[2:7]")), "no error");
  EXPECT_NE(error_of(changed(text, "\"disk\": 1,\n", "")), "no error");
}

TEST(Manifest, EveryFlippedBitAndEveryShorterTextIsFound) {
  const std::string text = example().json();
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(error_of(flipped), "no error") << "bit " << bit;
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_NE(error_of(text.substr(0, size)), "no error") << size << " bytes";
  }
  EXPECT_NE(error_of(text + "\n"), "no error");
}

TEST(Manifest, SaysWhatIsWrong) {
  const std::string text = example().json();
  EXPECT_EQ(error_of("{}"),
            "[checkpoint] x/manifest.json does not end with its content hash; the checkpoint is "
            "damaged, use an older one");
  std::string other = text;
  other[other.find("20")] = '3';
  EXPECT_EQ(error_of(other).find("[checkpoint] x/manifest.json has the content hash "), 0U);
  EXPECT_EQ(error_of(changed(text, "\"version\": 1", "\"version\": 2")),
            "[checkpoint] x/manifest.json: $.version is 2, version 1 is needed; the checkpoint is "
            "damaged, use an older one");
}

TEST(Manifest, RefusesWhatItWouldNotWrite) {
  struct Case {
    const char* from;
    const char* to;
  };
  const Case cases[] = {
      {"tandem checkpoint", "other checkpoint"},
      {"\"step\": 20", "\"step\": -1"},
      {"\"step\": 20", "\"step\": 2.5"},
      {"\"step\": 20", "\"step\": \"20\""},
      {"\"step\": 20", "\"step\": 20, \"more\": 1"},
      {"\"step\": 20", "\"step\": 20, \"step\": 20"},
      {"\"step\": 20", "\"steps\": 20"},
      {"state.json", "../state.json"},
      {"state.json", "/etc/passwd"},
      {"state.json", "a/b"},
      {"state.json", ".."},
      {"state.json", ""},
      {"state.json", "a\\u0000b"},
      {"state.json", "manifest.json"},
      {"state.json", "master-00000.safetensors"},
      {"\"size_bytes\": 9", "\"size_bytes\": -9"},
      {"\"size_bytes\": 9", "\"size_bytes\": 9.5"},
      {"\"size_bytes\": 9", "\"size_bytes\": 99999999999999999999"},
      {"\"size_bytes\": 9", "\"size_bytes\": 9, \"size\":9"},
      {"\"size_bytes\": 136", "\"size_bytes\": 135"},
      {"\"size_bytes\": 136", "\"size_bytes\": 137"},
      {"\"shape\": [2, 3]", "\"shape\": [2,4]"},
      {"\"shape\": [2, 3]", "\"shape\": [-2,-3]"},
      {"\"shape\": [2, 3]", "\"shape\": [4294967296,4294967296,4294967296]"},
      {"\"shape\": [0]",
       "\"shape\": [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"},
      {"\"begin_byte\": 104", "\"begin_byte\": 103"},
      {"\"begin_byte\": 128", "\"begin_byte\": 129"},
      {"\"begin_byte\": 128", "\"begin_byte\": 9223372036854775807"},
      {"\"name\": \"one\"", "\"name\": \"none\""},
      {"F64", "F99"},
      {"F64", "f64"},
      {"0000000000000005", "000000000000000G"},
      {"0000000000000005", "5"},
      {"\"tensors\": []", "\"tensors\": {}"},
      {"\"tensors\": []", "\"tensors\": null"},
      {"\"tensors\": []", "\"tensors\": [1]"},
      {"\"files\": [", "\"files\": [[],"},
      {"]}],", "]}},"},
  };
  const std::string text = example().json();
  EXPECT_EQ(error_of(changed(text, "F64", "F64")), "no error");
  for (const Case& one : cases) {
    EXPECT_NE(error_of(changed(text, one.from, one.to)), "no error")
        << one.from << " -> " << one.to;
  }
}

TEST(FileHasher, PiecesOfAnySizeMakeTheHashesOfFileAndTensors) {
  std::string bytes(136, '\0');
  Random random(7);
  std::ranges::generate(bytes, [&] { return static_cast<char>(random.next()); });
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    FileHasher hasher(example().files[0]);
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      hasher.add(std::as_bytes(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at))));
    }
    const ManifestFile file = hasher.result();
    EXPECT_EQ(file.hash, hash_of(bytes));
    EXPECT_EQ(file.tensors[0].hash, hash_of(std::string_view(bytes).substr(104, 24))) << piece;
    EXPECT_EQ(file.tensors[1].hash, hash_of(""));
    EXPECT_EQ(file.tensors[2].hash, hash_of(std::string_view(bytes).substr(128, 8)));
  }
  FileHasher empty(ManifestFile{.name = "e"});
  EXPECT_EQ(empty.result().hash, hash_of(""));
}

TEST(FileHasher, FindsWhatIsNotFiniteWhereverPiecesEnd) {
  constexpr std::uint64_t kHeader = 5;
  ManifestFile file{.name = "f", .hash = {}};
  for (const TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kF32}) {
    const std::uint64_t at = file.tensors.empty() ? kHeader : file.size_bytes;
    file.tensors.push_back({.name = fmt::format("t{}", file.tensors.size()),
                            .type = type,
                            .shape = {3},
                            .begin_byte = at,
                            .size_bytes = type == TensorType::kF32 ? 12U : 6U,
                            .hash = {}});
    file.size_bytes = at + file.tensors.back().size_bytes;
  }
  const auto looked_at = [&](std::size_t at, std::size_t piece) {
    std::vector<std::byte> bytes(file.size_bytes);
    std::fill_n(bytes.begin(), kHeader, std::byte{0xFF});
    bytes[at] = std::byte{0x80};
    bytes[at + 1] = std::byte{0x7F};
    FileHasher hasher(file);
    for (std::size_t begin = 0; begin < bytes.size(); begin += piece) {
      hasher.add(std::span(bytes).subspan(begin, std::min(piece, bytes.size() - begin)));
    }
    return first_not_finite({hasher.result()});
  };
  for (std::size_t piece = 1; piece <= file.size_bytes; ++piece) {
    // Where the upper half of a value lies; elsewhere the same bytes are part of a finite one.
    for (const auto& [at, tensor] : {std::pair{7, 0},
                                     {11, 0},
                                     {15, 0},
                                     {17, 1},
                                     {19, 1},
                                     {21, 1},
                                     {25, 2},
                                     {29, 2},
                                     {33, 2}}) {
      EXPECT_EQ(looked_at(static_cast<std::size_t>(at), piece),
                fmt::format("f: tensor \"t{}\"", tensor))
          << "byte " << at << ", pieces of " << piece;
    }
    for (const std::size_t at : {6U, 8U, 16U, 18U, 22U, 24U}) {
      EXPECT_EQ(looked_at(at, piece), "") << "byte " << at << ", pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace tandem
