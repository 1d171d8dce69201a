// Tokens of large data are kept: the next start maps what the first one made, anything that they
// follow from makes them anew, and without a cache a run goes on with the same tokens.
#include "models/data/token_cache.hpp"

#include <chrono>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include "models/data/open_records.hpp"
#include "models/data/token_file.hpp"
#include "runtime/util/error.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/variable.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

class TokenCache : public ::testing::Test {
 protected:
  void SetUp() override {
    test::put(dir_ / "tokenizer.json", test::TinyTokenizer().json());
    test::put(dir_ / "tokenizer_config.json", R"({"eos_token": "</s>"})");
    put_data(4 << 10);
  }

  /// Records of about a KiB, each another length.
  void put_data(int records) const {
    std::string text;
    for (int i = 0; i < records; ++i) {
      text += R"({"instruction": "say )" + std::to_string(i) + R"(", "output": ")" +
              std::string(static_cast<std::size_t>(1024 + i % 7), 'a') + "\"}\n";
    }
    test::put(dir_ / "data.jsonl", text);
  }
  [[nodiscard]] OpenedRecords open(const RecordOptions& options = {}) const {
    return open_records(dir_ / "data.jsonl", dir_.path(), Tokenizer::load(dir_.path()), options);
  }
  [[nodiscard]] std::size_t files() const {
    std::error_code none;
    std::size_t count = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(token_cache_folder(), none)) {
      count += entry.path().extension() == ".tokens" ? 1 : 0;
    }
    return count;
  }
  static bool is_mapped(const OpenedRecords& opened) {
    return dynamic_cast<const TokenFile*>(opened.tokens.get()) != nullptr;
  }

  test::TempDir dir_;
  test::Variable cache_{"TANDEM_CACHE", (dir_ / "cache").string()};
};

void expect_same(const OpenedRecords& a, const OpenedRecords& b) {
  ASSERT_EQ(a.tokens->size(), b.tokens->size());
  EXPECT_EQ(a.tokens->longest(), b.tokens->longest());
  EXPECT_EQ(a.tokens->cut_records(), b.tokens->cut_records());
  EXPECT_EQ(a.tokens->fingerprint(), b.tokens->fingerprint());
  EXPECT_EQ(a.masks.text(), b.masks.text());
  EXPECT_EQ(a.end_token, b.end_token);
  Ids ids_a, ids_b;
  Mask learnt_a, learnt_b;
  for (std::int64_t i = 0; i < a.tokens->size(); ++i) {
    a.tokens->read(i, ids_a, learnt_a);
    b.tokens->read(i, ids_b, learnt_b);
    ASSERT_EQ(ids_a, ids_b) << i;
    ASSERT_EQ(learnt_a, learnt_b) << i;
  }
}

TEST_F(TokenCache, EmptyOutputsAreCounted) {
  test::put(dir_ / "data.jsonl", R"({"instruction": "say", "output": "a"}
{"instruction": "say", "output": ""}
{"instruction": "hush", "output": ""}
)");
  EXPECT_EQ(open().note,
            "records with an empty output, which teaches the model to end at once: 2 of 3");
}

TEST_F(TokenCache, TheNextStartMapsWhatTheFirstMade) {
  const OpenedRecords first = open();
  EXPECT_EQ(files(), 1u);
  EXPECT_TRUE(is_mapped(first));
  const OpenedRecords second = open();
  EXPECT_TRUE(second.instructions.empty());  // the data was not read
  expect_same(first, second);
  dynamic_cast<const TokenFile&>(*second.tokens).verify();
  // Without a folder for it: the same, from memory.
  cache_.set((dir_ / "data.jsonl").string());
  const OpenedRecords without = open();
  EXPECT_FALSE(is_mapped(without));
  EXPECT_NE(without.how.find("tokens not kept: [dataset]"), std::string::npos) << without.how;
  expect_same(first, without);
}

TEST_F(TokenCache, WhatTheTokensFollowFromMakesThemAnew) {
  expect_same(open({.max_length = 1060}), open({.max_length = 1060}));
  EXPECT_EQ(files(), 1u);
  (void)open({.max_length = 1061});
  (void)open({.max_length = 1060, .percentage = 50});
  (void)open({.max_length = 1060, .loss_on = LossOn::kAll});
  (void)open({.max_length = 1060, .append_eos = false});
  EXPECT_EQ(files(), 5u);
  test::put(dir_ / "tokenizer_config.json", R"({"eos_token": "<pad>"})");
  EXPECT_EQ(open({.max_length = 1060}).end_token, 258);
  EXPECT_EQ(files(), 6u);
  put_data(5 << 10);
  EXPECT_EQ(open({.max_length = 1060}).tokens->size(), 5 << 10);
  EXPECT_EQ(files(), 7u);
  // Another content of the same size and time; and the same content under another time.
  const fs::path data = dir_ / "data.jsonl";
  const fs::file_time_type time = fs::last_write_time(data);
  std::string text = test::get(data);
  text[text.find("say 0")] = 'b';
  test::put(data, text);
  fs::last_write_time(data, time);
  (void)open({.max_length = 1060});
  EXPECT_EQ(files(), 8u);
  fs::last_write_time(data, time - std::chrono::hours(1));
  EXPECT_TRUE(open({.max_length = 1060}).instructions.empty());
  EXPECT_EQ(files(), 8u);
}

TEST_F(TokenCache, ADamagedFileIsMadeAnewAndSmallDataIsNotKept) {
  const OpenedRecords first = open();
  const std::string whole = [&] {
    const auto file = fs::directory_iterator(token_cache_folder())->path();
    std::string bytes = test::get(file);
    test::put(file, bytes.substr(0, bytes.size() / 2));
    return bytes;
  }();
  expect_same(open(), open());
  const auto file = fs::directory_iterator(token_cache_folder())->path();
  EXPECT_EQ(test::get(file), whole);
  std::string flipped = whole;
  flipped[flipped.size() / 2] ^= 1;  // an id that is another one of the vocabulary
  test::put(file, flipped);
  expect_same(open(), open());
  EXPECT_EQ(test::get(file), whole);
  put_data(16);
  EXPECT_FALSE(is_mapped(open()));
  EXPECT_EQ(files(), 1u);
}

// The folder may be opened by every user, and what is open can be locked.
TEST_F(TokenCache, WhoLocksTheFolderStopsNothing) {
  fs::create_directories(token_cache_folder());
  const int folder = ::open(token_cache_folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(folder, LOCK_EX), 0);
  EXPECT_TRUE(is_mapped(open()));
  EXPECT_EQ(files(), 1U);
  ::close(folder);
}

TEST_F(TokenCache, ErrorsOfTheDataGoUp) {
  test::put(dir_ / "data.jsonl", test::get(dir_ / "data.jsonl") + "{\"output\": 3}\n");
  test::expect_error([&] { (void)open(); }, {"data.jsonl:4097", "instruction"});
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace tandem
