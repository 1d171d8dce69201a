// Micro-batches and steps without a label: what a trainer makes of them, says of them and counts.
#include <algorithm>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Unlabelled : public TrainerTest {
 protected:
  /// 40 records, of which `cut` have so long a prompt that none of their answer is left.
  [[nodiscard]] std::string records(int cut) const {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      std::string prompt = fmt::format("Say the number {}.", i);
      for (int word = 0; i < cut && word < 200; ++word) {
        prompt += " again";
      }
      text +=
          fmt::format(R"({{"instruction": "{}", "output": "It is {} and no other."}})", prompt, i) +
          "\n";
    }
    return write(fmt::format("records{}.jsonl", cut), text);
  }
  /// One epoch of micro-batches of one record.
  [[nodiscard]] Finished epoch(const std::string& output, int cut, const std::string& more,
                               const std::string& launcher = "") const {
    return shell(fmt::format(
        "{} '{}' --model_name '{}' --dataset_name '{}' --output_dir '{}' --max_length 96 "
        "--batch_size 1 --lr 1e-3 --no-tensorboard --progress lines {}",
        launcher, kTrainer, path("model"), records(cut), path(output), more));
  }
  void expect_counts(const std::string& output, std::int64_t micro_batches,
                     std::int64_t steps) const {
    simdjson::dom::parser parser;
    const simdjson::dom::element summary = parser.load(path(output + "/summary.json"));
    EXPECT_EQ(std::int64_t(summary["unlabelled"]["micro_batches"]), micro_batches);
    EXPECT_EQ(std::int64_t(summary["unlabelled"]["steps"]), steps);
  }
};

/// How often `part` stands in the text.
int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST_F(Unlabelled, StepsAreCountedAndSaidOnce) {
  (void)random_model();
  const Finished done = epoch("run", 2, "");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(times(done.out, "without a label"), 1) << done.out;
  EXPECT_THAT(done.out, HasSubstr("momentum and weight decay still move the weights"));
  expect_counts("run", 2, 2);
  const auto losses = column("run", "loss");
  EXPECT_EQ(std::ranges::count_if(losses, [](const std::string& x) { return std::stod(x) == 0; }),
            2);
  const std::string page = content_of(test::source_path("docs/numerics.md"));
  EXPECT_THAT(page, HasSubstr("(`unlabelled`:\n`micro_batches` and `steps`)"));
  EXPECT_THAT(page, HasSubstr("A step without any label has loss 0"));
  const auto none = epoch("none", 0, "");
  EXPECT_THAT(none.out, Not(HasSubstr("without a label")));
  expect_counts("none", 0, 0);
}

TEST_F(Unlabelled, MicroBatchesAreCountedOverRanksForEitherMean) {
  (void)random_model();
  for (const std::string mean : {"micro_batches", "tokens"}) {
    const std::string more = "--loss_mean " + mean;
    ASSERT_EQ(epoch("one" + mean, 2, more + " --gradient_accumulation_steps 20").code, 0);
    ASSERT_EQ(epoch("two" + mean, 2, more + " --gradient_accumulation_steps 10",
                    fmt::format("'{}/tandem' launch -n 2 --", test::bin_dir()))
                  .code,
              0);
    expect_counts("one" + mean, 2, 0);
    expect_counts("two" + mean, 2, 0);
    expect_same_digits("one" + mean, "two" + mean);
  }
}

}  // namespace
}  // namespace tandem
