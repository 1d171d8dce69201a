// Token records become micro-batches: padded to the longest of them, with labels where a token is
// learnt.
#include "models/data/token_dataset.hpp"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "models/data/memory_records.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;
using Row = std::vector<std::int64_t>;

std::shared_ptr<MemoryRecords> three_records() {
  auto records = std::make_shared<MemoryRecords>();
  records->add(Ids{5, 6, 7}, Mask{0, 0, 1});
  records->add(Ids{8}, Mask{1});
  records->add(Ids{9, 9, 9, 9}, Mask{1, 1, 1, 1}, true);
  return records;
}

TEST(TokenDataset, PadsToTheLongestOfTheMicroBatch) {
  const TokenDataset dataset(three_records(), 99);
  EXPECT_EQ(dataset.size(), 3);
  EXPECT_EQ(dataset.longest(), 4);
  const HostBatch batch = dataset.collate(Row{1, 0});
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.length, 3);
  EXPECT_EQ(batch.tokens, 4);
  EXPECT_EQ(batch.inputs, (Row{8, 99, 99, 5, 6, 7}));
  EXPECT_EQ(batch.labels, (Row{8, -100, -100, -100, -100, 7}));
}

TEST(TokenDataset, PaddingIsNotLearntWhereItIsTheEndTokenToo) {
  const TokenDataset dataset(three_records(), 9);
  EXPECT_EQ(dataset.collate(Row{2, 1}).labels, (Row{9, 9, 9, 9, 8, -100, -100, -100}));
}

TEST(TokenDataset, ItsFingerprintIsOfIdsAndMasks) {
  const auto print = [](const Ids& ids, const Mask& learnt) {
    MemoryRecords records;
    records.add(ids, learnt);
    return records.fingerprint();
  };
  EXPECT_EQ(print({1, 2}, {0, 1}), print({1, 2}, {0, 1}));
  EXPECT_NE(print({1, 2}, {0, 1}), print({1, 3}, {0, 1}));
  EXPECT_NE(print({1, 2}, {0, 1}), print({1, 2}, {1, 1}));
  MemoryRecords apart;
  apart.add(Ids{1}, Mask{0});
  apart.add(Ids{2}, Mask{1});
  EXPECT_NE(print({1, 2}, {0, 1}), apart.fingerprint());
  EXPECT_EQ(three_records()->cut_records(), 1);
}

TEST(TokenDataset, PaddingFallsBackToTheEndToken) {
  EXPECT_EQ(padding_id(test::tiny_tokenizer("", R"({"eos_token": {"content": "</s>"}})")), 257);
  const Tokenizer bare = test::tiny_tokenizer("", "{}");
  test::expect_error([&] { (void)padding_id(bare); }, {"neither pad_token nor eos_token"});
}

}  // namespace
}  // namespace tandem
