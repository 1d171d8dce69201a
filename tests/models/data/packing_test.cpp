// Records become packs: which ones, that each token is in exactly one row, and what a micro-batch
// of them looks like.
#include "models/data/packing.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <simdjson.h>

#include "engine/data/loader.hpp"
#include "models/data/memory_records.hpp"
#include "models/data/token_dataset.hpp"
#include "tests/data/references.hpp"

namespace tandem {
namespace {

using Row = std::vector<std::int64_t>;

/// Record i: lengths[i] tokens, all of them its own: 1000 i, 1000 i + 1, ...
std::shared_ptr<MemoryRecords> records_of(const std::vector<std::int64_t>& lengths) {
  auto records = std::make_shared<MemoryRecords>();
  std::int32_t first = 0;
  for (const std::int64_t length : lengths) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length));
    std::iota(ids.begin(), ids.end(), first);
    records->add(ids, std::vector<std::uint8_t>(ids.size(), 1));
    first += 1000;
  }
  return records;
}

std::vector<std::int64_t> mixed_lengths(std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    lengths.push_back(1 + (i * i * 7 + i * 13) % most);
  }
  return lengths;
}

TEST(Packing, TheBestFitIsTheFullestPackWithRoom) {
  using Packed = std::vector<std::vector<std::int32_t>>;
  EXPECT_EQ(best_fit_decreasing({3, 7, 5, 2, 3}, 10), (Packed{{1, 0}, {2, 4, 3}}));
  EXPECT_EQ(best_fit_decreasing({6, 6, 2, 4, 2}, 10), (Packed{{0, 3}, {1, 2, 4}}));
  EXPECT_EQ(best_fit_decreasing({10}, 10), (Packed{{0}}));
  EXPECT_TRUE(best_fit_decreasing({}, 10).empty());
}

TEST(Packing, RowsAreThoseOfTheReference) {
  for (const auto& folder :
       test::references({"packing/gpt2"}, {"oracles/packing/gpt2", "oracles/packing/qwen3"})) {
    simdjson::dom::parser lines;
    std::vector<std::int64_t> lengths;
    for (const simdjson::dom::element record :
         lines.load_many((folder / "records.jsonl").string())) {
      lengths.push_back(static_cast<std::int64_t>(record["input_ids"].get_array().size()));
    }
    simdjson::dom::parser parser;
    const simdjson::dom::element expected = parser.load((folder / "expected.json").string());
    std::vector<std::vector<std::int32_t>> rows;
    for (const simdjson::dom::element row : expected["rows_by_best_fit_decreasing"]) {
      auto& into = rows.emplace_back();
      for (const std::int64_t record : row.get_array()) {
        into.push_back(static_cast<std::int32_t>(record));
      }
    }
    EXPECT_EQ(best_fit_decreasing(lengths, std::int64_t(expected["max_length"])), rows) << folder;
  }
}

/// Tokens of every row are [begin, end) of records; each of them once.
void expect_each_token_once(const Packs& packs, const MemoryRecords& records, std::int64_t room) {
  std::vector<std::vector<int>> seen(static_cast<std::size_t>(records.size()));
  for (std::int64_t i = 0; i < records.size(); ++i) {
    seen[static_cast<std::size_t>(i)].resize(static_cast<std::size_t>(records.length(i)));
  }
  std::int64_t all = 0;
  for (std::int64_t pack = 0; pack < packs.size(); ++pack) {
    std::int64_t tokens = 0;
    for (const PackPiece& piece : packs.pieces(pack)) {
      EXPECT_LT(piece.begin, piece.end);
      for (std::int64_t t = piece.begin; t < piece.end; ++t) {
        ++seen[static_cast<std::size_t>(piece.record)][static_cast<std::size_t>(t)];
      }
      tokens += piece.end - piece.begin;
    }
    EXPECT_EQ(tokens, packs.length(pack));
    EXPECT_GE(tokens, 1);
    EXPECT_LE(tokens, room);
    all += tokens;
  }
  EXPECT_EQ(all, packs.tokens());
  for (const std::vector<int>& record : seen) {
    EXPECT_TRUE(std::ranges::all_of(record, [](int times) { return times == 1; }));
  }
}

TEST(Packing, EveryRecordIsWholeInOnePack) {
  const auto records = records_of(mixed_lengths(5000, 61));  // more than a window
  const Packs packs(*records, {.kind = Packing::kBfd, .room = 64, .seed = 5});
  expect_each_token_once(packs, *records, 64);
  EXPECT_EQ(packs.divided(), 0);
  EXPECT_GT(static_cast<double>(packs.tokens()), 0.99 * 64 * static_cast<double>(packs.size()));
  for (std::int64_t pack = 0; pack < packs.size(); ++pack) {
    for (const PackPiece& piece : packs.pieces(pack)) {
      EXPECT_EQ(piece.end - piece.begin, records->length(piece.record));
    }
  }
}

TEST(Packing, RecordsThatAreLongerThanARowAreCut) {
  const auto records = records_of({9, 3});
  const Packs packs(*records, {.kind = Packing::kBfd, .room = 5});
  EXPECT_EQ(packs.size(), 2);
  EXPECT_EQ(packs.tokens(), 5 + 3);
}

TEST(Packing, AStreamIsCutWhereARowIsFull) {
  for (const std::vector<std::int64_t>& lengths :
       {mixed_lengths(300, 23), {5, 5, 5}, {1}, {37}, {10, 20, 30}, {11, 9, 1}}) {
    const auto records = records_of(lengths);
    const Packs packs(*records, {.kind = Packing::kWrapped, .room = 10, .seed = 5});
    expect_each_token_once(packs, *records, 10);
    const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    EXPECT_EQ(packs.size(), (tokens + 9) / 10) << "all rows but the last are full";
    // A record goes on where it ended, in the next row.
    PackPiece last{-1, 0, 0};
    std::set<std::int64_t> divided;
    for (std::int64_t pack = 0; pack < packs.size(); ++pack) {
      for (const PackPiece& piece : packs.pieces(pack)) {
        EXPECT_EQ(piece.begin, piece.record == last.record ? last.end : 0);
        if (piece.record == last.record) {
          divided.insert(piece.record);
        }
        last = piece;
      }
    }
    EXPECT_EQ(packs.divided(), std::ssize(divided));
  }
}

TEST(Packing, FollowsFromSeedLengthsAndRoom) {
  const auto records = records_of(mixed_lengths(500, 40));
  const auto print = [&](Packing kind, std::int64_t room, std::uint64_t seed) {
    return TokenDataset(records, 0, {.kind = kind, .room = room, .seed = seed}).fingerprint();
  };
  const std::string one = print(Packing::kBfd, 48, 5);
  EXPECT_EQ(print(Packing::kBfd, 48, 5), one);
  EXPECT_NE(print(Packing::kBfd, 48, 6), one);
  EXPECT_NE(print(Packing::kBfd, 49, 5), one);
  EXPECT_NE(print(Packing::kWrapped, 48, 5), one);
  EXPECT_NE(TokenDataset(records, 0).fingerprint(), one);
  EXPECT_EQ(TokenDataset(records, 0).fingerprint(), records->fingerprint());
}

TEST(Packing, AMicroBatchSaysWhereDocumentsBegin) {
  auto records = std::make_shared<MemoryRecords>();
  records->add(std::vector<std::int32_t>{5, 6, 7, 8}, std::vector<std::uint8_t>{0, 0, 1, 1});
  records->add(std::vector<std::int32_t>{20, 21}, std::vector<std::uint8_t>{1, 1});
  records->add(std::vector<std::int32_t>{30, 31, 32, 33}, std::vector<std::uint8_t>{1, 1, 1, 1});
  const TokenDataset dataset(records, 99, {.kind = Packing::kBfd, .room = 7, .seed = 2});
  ASSERT_EQ(dataset.size(), 2);
  EXPECT_TRUE(dataset.packed());
  EXPECT_EQ(dataset.longest(), 6);
  const bool first_is_fuller = dataset.packs()->length(0) == 6;
  const Row rows = first_is_fuller ? Row{0, 1} : Row{1, 0};
  const HostBatch batch = dataset.collate(rows);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.length, 6);
  EXPECT_EQ(batch.tokens, 10);
  const bool learnt_first = batch.inputs[0] == 30;
  const Row a = {5, 6, 7, 8};
  const Row b = {30, 31, 32, 33};
  Row inputs = learnt_first ? b : a;
  inputs.insert(inputs.end(), {20, 21});
  const Row& other = learnt_first ? a : b;
  inputs.insert(inputs.end(), other.begin(), other.end());
  inputs.insert(inputs.end(), {99, 99});
  EXPECT_EQ(batch.inputs, inputs);
  EXPECT_EQ(batch.positions, (Row{0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 0, 1}));
  // No document's first token is learnt.
  const Row of_a = {-100, -100, 7, 8};
  const Row of_b = {-100, 31, 32, 33};
  Row labels = learnt_first ? of_b : of_a;
  labels.insert(labels.end(), {-100, 21});
  const Row& other_labels = learnt_first ? of_a : of_b;
  labels.insert(labels.end(), other_labels.begin(), other_labels.end());
  labels.insert(labels.end(), {-100, -100});
  EXPECT_EQ(batch.labels, labels);
  EXPECT_EQ(dataset.labels(rows), counted_labels(batch));
  EXPECT_EQ(counted_labels(batch), 2 + 1 + 3);
}

TEST(Packing, AStreamsSecondHalfIsADocumentOfItsOwn) {
  const auto records = records_of({7});
  const TokenDataset dataset(records, 99, {.kind = Packing::kWrapped, .room = 4});
  const HostBatch batch = dataset.collate(Row{0, 1});
  EXPECT_EQ(batch.inputs, (Row{0, 1, 2, 3, 4, 5, 6, 99}));
  EXPECT_EQ(batch.labels, (Row{-100, 1, 2, 3, -100, 5, 6, -100}));
  EXPECT_EQ(batch.positions, (Row{0, 1, 2, 3, 0, 1, 2, 0}));
}

TEST(Packing, RanksShareWhatOneRankHasAndEveryEpochHasTheSamePacks) {
  constexpr std::int64_t kPad = 999'999;
  const auto records = records_of(mixed_lengths(90, 40));
  const auto dataset = std::make_shared<TokenDataset>(
      records, kPad, PackingOptions{.kind = Packing::kBfd, .room = 48, .seed = 5});
  const auto loader = [&](int world, int rank) {
    return Loader(dataset, {.sampler = {.world_size = world, .rank = rank, .seed = 5},
                            .micro_batch = 3,
                            .accumulation = 4 / world,
                            .epochs = 2,
                            .counts_labels = true});
  };
  const Loader alone = loader(1, 0);
  std::set<Row> epochs[2];  // the rows without their padding
  std::vector<Row> firsts;
  for (std::int64_t number = 0; number < *alone.batches(); ++number) {
    const HostBatch batch = *alone.make(number);
    const HostBatch of_two = *loader(2, static_cast<int>(number % 2)).make(number / 2);
    EXPECT_EQ(batch.inputs, of_two.inputs);
    EXPECT_EQ(batch.positions, of_two.positions);
    EXPECT_EQ(batch.loss_share, of_two.loss_share);
    for (std::int64_t row = 0; row < batch.rows; ++row) {
      const auto begin = batch.inputs.begin() + row * batch.length;
      epochs[batch.epoch].emplace(begin, std::find(begin, begin + batch.length, kPad));
    }
    if (number % alone.batches_per_epoch() == 0) {
      firsts.push_back(batch.inputs);
    }
  }
  EXPECT_EQ(std::ssize(epochs[0]), dataset->size());
  EXPECT_EQ(epochs[0], epochs[1]);
  ASSERT_EQ(firsts.size(), 2U);
  EXPECT_NE(firsts[0], firsts[1]) << "in another order";
}

}  // namespace
}  // namespace tandem
