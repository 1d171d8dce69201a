// Token files that tools/prepare/ wrote (tests/fuzz/make_corpus.py): read as they were written,
// cut, counted, tied to their tokenizer; and damaged ones, which are refused.
#include "models/data/token_file.hpp"

#include <cstdint>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/content_hash.hpp"
#include "models/data/open_records.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;

using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

std::filesystem::path sample(std::string_view name) {
  return std::filesystem::path(test::source_dir()) / "tests/fuzz/corpus/token_file" / name;
}

/// Returns the tokens of a sample's record that is `length` tokens long.
Ids ids_of(std::int32_t length, std::int32_t vocab_size) {
  Ids ids;
  for (std::int32_t t = 0; t < length; ++t) {
    ids.push_back((t * 7919 + length) % vocab_size);
  }
  return ids;
}

Mask mask_of(std::int32_t length) {
  Mask learnt;
  for (std::int32_t t = 0; t < length; ++t) {
    learnt.push_back(t % 3 != 0 ? 1 : 0);
  }
  return learnt;
}

void expect_record(const TokenFile& file, std::int64_t i, const Ids& ids, const Mask& learnt) {
  Ids found = {99};
  Mask mask;
  file.read(i, found, mask);
  EXPECT_EQ(found, ids) << i;
  EXPECT_EQ(mask, learnt) << i;
  EXPECT_EQ(file.length(i), std::ssize(ids)) << i;
}

TEST(TokenFile, GivesTheRecordsThatWereWritten) {
  const TokenFile file(sample("short"));
  ASSERT_EQ(file.size(), 4);
  EXPECT_EQ(file.longest(), 9);
  EXPECT_EQ(file.cut_records(), 1);
  EXPECT_TRUE(file.has_prompts());
  std::int64_t i = 0;
  for (const std::int32_t length : {3, 1, 9, 2}) {
    expect_record(file, i++, ids_of(length, 300), mask_of(length));
  }
  file.verify();
  const TokenFile wide(sample("wide"));
  ASSERT_EQ(wide.size(), 2);
  expect_record(wide, 0, ids_of(2, 70000), mask_of(2));
  expect_record(wide, 1, ids_of(5, 70000), mask_of(5));
  wide.verify();
}

TEST(TokenFile, CutsWhatIsLongerAndKeepsAShare) {
  const TokenFile cut(sample("short"), {.max_length = 2});
  EXPECT_EQ(cut.longest(), 2);
  EXPECT_EQ(cut.cut_records(), 2);
  expect_record(cut, 2, {9, 7928 % 300}, {0, 1});
  const TokenFile half(sample("short"), {.percentage = 50});
  EXPECT_EQ(half.size(), 2);
  EXPECT_EQ(half.longest(), 3);
  EXPECT_EQ(half.cut_records(), 0);
  expect_error([] { TokenFile(sample("short"), {.percentage = 10}); },
               {"4 records, 10 % of them is none"});
  expect_error([] { TokenFile(sample("short"), {.max_length = 0}); }, {"max_length is 0"});
}

TEST(TokenFile, ItsSummaryIsThatOfItsRecords) {
  for (const char* name : {"short", "wide"}) {
    for (const std::int64_t max_length : {1, 2, 3, 4, 8, 9, 100}) {
      for (const double percentage : {50.0, 100.0}) {
        const TokenFile file(sample(name), {.max_length = max_length, .percentage = percentage});
        const MaskSummary known = file.summary(1);
        const MaskSummary counted = summarise(file, 1);
        EXPECT_EQ(known.text(), counted.text()) << name << max_length;
        EXPECT_EQ(known.whole, counted.whole) << name << max_length;
        EXPECT_EQ(known.nothing, counted.nothing) << name << max_length;
        EXPECT_EQ(known.learnt, counted.learnt) << name << max_length;
      }
    }
  }
}

TEST(TokenFile, ItsFingerprintIsOfWhatIsTrained) {
  const std::string whole = TokenFile(sample("short")).fingerprint();
  EXPECT_EQ(whole, TokenFile(sample("short"), {.max_length = 9}).fingerprint());
  EXPECT_NE(whole, TokenFile(sample("short"), {.max_length = 8}).fingerprint());
  EXPECT_NE(whole, TokenFile(sample("short"), {.percentage = 75}).fingerprint());
  EXPECT_NE(whole, TokenFile(sample("wide")).fingerprint());
}

TEST(TokenFile, OpensHundredGigabytesAtOnce) {
  // A file of holes: a reader of all of it would not come back in a test's time.
  constexpr std::int64_t kRecords = 100'000'000;
  constexpr std::int64_t kTokens = 500 * kRecords;
  auto span = [at = std::int64_t{0}](std::int64_t bytes) mutable {
    at += bytes;
    return fmt::format("[{},{}]", at - bytes, at);
  };
  const std::string ids = span(2 * kTokens);
  const std::string offsets = span(8 * (kRecords + 1));
  const std::string mask = span(kTokens / 8);
  const std::string flags = span(kRecords);
  std::string header = fmt::format(
      R"({{"__metadata__":{{"format":"tandem-tokens","version":"1","vocab_size":"300",)"
      R"("records":"{0}","tokens":"{1}","longest":"600","cut":"0","learnt":"7","whole":"0",)"
      R"("nothing":"0","double_start":"0","prompts":"1"}},)"
      R"("ids":{{"dtype":"U16","shape":[{1}],"data_offsets":{2}}},)"
      R"("offsets":{{"dtype":"I64","shape":[{3}],"data_offsets":{4}}},)"
      R"("mask":{{"dtype":"U8","shape":[{5}],"data_offsets":{6}}},)"
      R"("flags":{{"dtype":"U8","shape":[{0}],"data_offsets":{7}}}}})",
      kRecords, kTokens, ids, kRecords + 1, offsets, kTokens / 8, mask, flags);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  const TempDir dir;
  const std::filesystem::path path = dir / "x.tokens";
  test::put(path, std::string(reinterpret_cast<const char*>(&length), 8) + header);
  const auto data = static_cast<std::int64_t>(8 + length);
  std::filesystem::resize_file(
      path, static_cast<std::uintmax_t>(data + 2 * kTokens + 8 * (kRecords + 1) + kTokens / 8 +
                                        kRecords));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto write_offset = [&](std::int64_t i, std::int64_t value) {
    file.seekp(data + 2 * kTokens + 8 * i);
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  write_offset(1, 3);
  write_offset(kRecords - 1, kTokens - 2);
  write_offset(kRecords, kTokens);
  file.close();
  const TokenFile tokens(path);
  EXPECT_GT(std::filesystem::file_size(path), 100'000'000'000U);
  EXPECT_EQ(tokens.size(), kRecords);
  EXPECT_EQ(tokens.summary(1).learnt, 7);
  expect_record(tokens, 0, {0, 0, 0}, {0, 0, 0});
  expect_record(tokens, kRecords - 1, {0, 0}, {0, 0});
  Ids found;
  Mask learnt;
  expect_error([&] { tokens.read(1, found, learnt); }, {"record 2 would be tokens 3 to 0"});
}

TEST(TokenFile, BelongsToItsTokenizer) {
  const TempDir dir;
  test::put(dir / "tokenizer.json", "{}");
  expect_error([&] { TokenFile(sample("short")).require_tokenizer(dir.path()); },
               {"made with another tokenizer (00000000000000000000000000000000)",
                tokenizer_fingerprint(dir.path()), "prepare it with --model_name"});
}

TEST(TokenFile, OpeningNamesWhatWasAskedOtherwise) {
  const TempDir dir;
  test::put(dir / "tokenizer.json", test::TinyTokenizer().json());
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  std::string bytes = test::get(sample("short"));
  const std::string zeros(32, '0');
  bytes.replace(bytes.find(zeros), zeros.size(), tokenizer_fingerprint(dir.path()));
  test::put(dir / "x.tokens", bytes);
  const auto open = [&](const RecordOptions& options) {
    return open_records(dir / "x.tokens", dir.path(), tokenizer, options);
  };
  EXPECT_EQ(open({}).tokens->size(), 4);
  EXPECT_EQ(open({.max_length = 2}).masks.cut, 2);
  expect_error([&] { (void)open({.loss_on = LossOn::kAll}); },
               {"was prepared with loss_on completion, not all", "--loss_on all"});
}

TEST(TokenFile, OtherFilesAreNone) {
  const TempDir dir;
  test::put(dir / "x.tokens", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  expect_error([&] { TokenFile(dir / "x.tokens"); }, {"is no token file; ./tandem prepare"});
  std::string newer = test::get(sample("short"));
  newer.replace(newer.find(R"("version":"1")"), 13, R"("version":"2")");
  test::put(dir / "x.tokens", newer);
  expect_error([&] { TokenFile(dir / "x.tokens"); }, {"of version 2, this program reads 1"});
  expect_error([&] { TokenFile(dir / "absent.tokens"); }, {"absent.tokens"});
}

TEST(TokenFile, OffsetsAndIdsOfAStrangerAreChecked) {
  const TempDir dir;
  const std::string whole = test::get(sample("short"));
  // The data: 15 ids of two bytes, 5 offsets of eight, 2 bytes of mask, 4 of flags.
  const std::size_t ids = whole.size() - (15 * 2 + 5 * 8 + 2 + 4);
  const std::size_t offsets = ids + 15 * 2;
  const auto read_all = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    std::string changed = whole;
    changed.replace(at, bytes, reinterpret_cast<const char*>(&value), bytes);
    test::put(dir / "x.tokens", changed);
    const TokenFile file(dir / "x.tokens");
    Ids found;
    Mask learnt;
    for (std::int64_t i = 0; i < file.size(); ++i) {
      file.read(i, found, learnt);
    }
  };
  expect_error([&] { read_all(offsets, 1, 8); }, {"its offsets lead from 1 to 15"});
  expect_error([&] { read_all(offsets + 8, 4, 8); }, {"record 2 would be tokens 4 to 4"});
  expect_error([&] { read_all(offsets + 8, 1ULL << 63, 8); }, {"record 1 would be tokens 0 to -"});
  expect_error([&] { read_all(offsets + 8, 16, 8); }, {"record 1 would be tokens 0 to 16 of 15"});
  expect_error([&] { read_all(offsets + 16, 14, 8); }, {"record 2 would be", "at most 9 long"});
  expect_error([&] { read_all(ids + 2, 300, 2); }, {"record 1 has ids from", "the vocabulary 300"});
  std::string changed = whole;
  changed[ids] = static_cast<char>(changed[ids] ^ 1);
  test::put(dir / "x.tokens", changed);
  expect_error([&] { TokenFile(dir / "x.tokens").verify(); }, {"its content has the hash"});
}

TEST(TokenFile, NoBytesCrashTheReader) {
  const TempDir dir;
  test::fuzz(test::get(sample("short")), 500, [&](const std::string& bytes) {
    test::put(dir / "x.tokens", bytes);
    const TokenFile file(dir / "x.tokens", {.max_length = 4});
    (void)file.summary(1);
    Ids ids;
    Mask learnt;
    for (std::int64_t i = 0; i < file.size(); ++i) {
      file.read(i, ids, learnt);
    }
    file.verify();
  });
}

}  // namespace
}  // namespace tandem
