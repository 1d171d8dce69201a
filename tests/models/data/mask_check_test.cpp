// Masks are counted over all records, those that cannot be meant are refused with the counts, and a
// record is shown with its mask.
#include "models/data/mask_check.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "models/data/memory_records.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::expect_error;

using Ids = std::vector<std::int32_t>;
using Mask = std::vector<std::uint8_t>;

constexpr std::int32_t kStart = 256;  // as in tiny_tokenizer.hpp

/// `count` records of four tokens, each with this mask.
void add(MemoryRecords& records, int count, const Mask& learnt, bool was_cut = false) {
  for (int i = 0; i < count; ++i) {
    records.add(Ids{'a', 'b', 'c', 'd'}, learnt, was_cut);
  }
}

MaskSummary summary_of(const MemoryRecords& records) { return summarise(records, kStart); }

void check(const MemoryRecords& records, LossOn loss_on, bool has_prompts = true) {
  check_masks(summary_of(records), "data.json", loss_on, has_prompts);
}

TEST(MaskCheck, CountsWhatIsTrained) {
  MemoryRecords records;
  add(records, 1, {0, 0, 1, 1});
  add(records, 1, {1, 1, 1, 1}, true);
  add(records, 1, {1, 0, 0, 0}, true);  // nothing stands before a first token
  const MaskSummary summary = summary_of(records);
  EXPECT_EQ(summary.tokens, 12);
  EXPECT_EQ(summary.learnt, 5);
  EXPECT_EQ(summary.whole, 1);
  EXPECT_EQ(summary.nothing, 1);
  EXPECT_EQ(summary.text(),
            "3 records (2 cut at 4 tokens, 1 with nothing to learn), 12 tokens, 41.7 % of them "
            "trained");
  MemoryRecords plain;
  add(plain, 2, {0, 0, 0, 1});
  EXPECT_EQ(summary_of(plain).text(), "2 records, 8 tokens, 25.0 % of them trained");
}

TEST(MaskCheck, PromptsThatAreLearntAreRefused) {
  MemoryRecords records;
  add(records, 3, {1, 1, 1, 1});
  expect_error([&] { check(records, LossOn::kCompletion); },
               {"[dataset]", "data.json", "all 3 records", "loss_on is completion"});
  expect_error([&] { check(records, LossOn::kAssistant); }, {"loss_on is assistant"});
  check(records, LossOn::kAll);
  check(records, LossOn::kCompletion, false);
  add(records, 1, {0, 1, 1, 1});
  expect_error([&] { check(records, LossOn::kCompletion); }, {"all 4 records"});
  add(records, 1, {0, 0, 1, 1});
  check(records, LossOn::kCompletion);
}

TEST(MaskCheck, NothingToLearnIsRefusedFromFivePercentOn) {
  MemoryRecords records;
  add(records, 19, {0, 0, 1, 1});
  add(records, 1, {0, 0, 0, 0}, true);
  check(records, LossOn::kCompletion);
  add(records, 1, {0, 0, 0, 0}, true);
  expect_error(
      [&] { check(records, LossOn::kCompletion); },
      {"2 of 21 records (9.5 %)", "5 % may", "2 were cut at 4 tokens", "raise max_length"});
  MemoryRecords none;
  add(none, 3, {0, 0, 0, 0});
  expect_error([&] { check(none, LossOn::kAssistant); },
               {"3 of 3 records", "loss_on is assistant", "no token is marked"});
}

TEST(MaskCheck, ADoubleStartTokenIsRefused) {
  MemoryRecords records;
  add(records, 2, {0, 0, 1, 1});
  records.add(Ids{kStart, 'a', kStart}, Mask{0, 0, 1});
  records.add(Ids{kStart, kStart}, Mask{0, 1});  // an empty text, where start and end are one token
  check(records, LossOn::kCompletion);
  records.add(Ids{kStart, kStart, 'a'}, Mask{0, 0, 1});
  expect_error([&] { check(records, LossOn::kAll); }, {"1 of 5 records", "start token twice"});
  check_masks(summarise(records, std::nullopt), "data.json", LossOn::kAll, true);
}

TEST(MaskCheck, ShowsARecordWithItsMask) {
  const Tokenizer tokenizer = test::tiny_tokenizer("", R"({"eos_token": "</s>"})");
  MemoryRecords records;
  records.add(Ids{'a', '\n', 'b', 257, 'c'}, Mask{0, 0, 1, 1, 0});
  EXPECT_EQ(marked_text(records, 0, tokenizer), "a\n>>b</s><<c");
  const std::string longer = std::string(100, 'x') + std::string(100, 'y');
  records.add(Ids(longer.begin(), longer.end()), Mask(200, 1));
  EXPECT_EQ(marked_text(records, 1, tokenizer),
            ">>" + std::string(80, 'x') + "…" + std::string(60, 'y') + "<<");
}

}  // namespace
}  // namespace tandem
