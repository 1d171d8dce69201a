// The trainer's evaluations: what they write, what they decide, and that training does not notice.
#include <cmath>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/python.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class Evaluation : public TrainerTest {
 protected:
  [[nodiscard]] std::string flags(const std::string& output, int steps,
                                  const std::string& more) const {
    return fmt::format(
        "--output_dir '{}' --batch_size 2 --max_length 48 --steps {} --no-samples --no-tensorboard "
        "--progress lines {}",
        path(output), steps, more);
  }
  void expect_done(const Finished& done) const { ASSERT_EQ(done.code, 0) << done.out << done.err; }
};

TEST_F(Evaluation, IsWrittenAndChangesNoDigitOfTraining) {
  const Finished kept = train(flags("with", 12,
                                    "--eval_split 0.1 --eval_every 5 --eval_at_start --keep_best "
                                    "--sample_prompt 'What is'"));
  expect_done(kept);
  EXPECT_THAT(kept.out + kept.err,
              ::testing::ContainsRegex("\n  best +evaluation of step 12: loss [0-9.]+, kept in "
                                       ".*/model-best\n"));
  // Without evaluations, on the same records: a file of them would be others to the sampler.
  expect_done(train(flags("once", 12, "--eval_split 0.1 --eval_every 1000")));
  expect_same_digits("with", "once");
  EXPECT_EQ(column("with", "eval_loss").size(), 4U);  // steps 0, 5, 10 and 12
  EXPECT_EQ(column("with", "eval_loss").back(), column("once", "eval_loss").back());
  const double loss = std::stod(column("with", "eval_loss").back());
  EXPECT_NEAR(std::stod(column("with", "perplexity").back()), std::exp(loss),
              1e-9 * std::exp(loss));
  EXPECT_LT(loss, std::stod(column("with", "eval_loss").front()));
  EXPECT_TRUE(content_of(folder_ / "with/model-best/model.safetensors") ==
              content_of(folder_ / "with/model/model.safetensors"))
      << "the last evaluation was the best one";
}

TEST_F(Evaluation, HasTheSameDigitsOnSeveralRanksAndAfterResuming) {
  const std::string more = "--eval_split 0.1 --eval_every 4 --lr_scheduler constant --warmup 0 ";
  const std::string alone = more + "--gradient_accumulation_steps 2 ";
  expect_done(train(flags("one", 12, alone)));
  expect_done(shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' {}", test::bin_dir(), kTrainer,
                                flags("two", 12, more))));
  EXPECT_EQ(column("two", "eval_loss"), column("one", "eval_loss"));
  EXPECT_EQ(column("two", "loss"), column("one", "loss"));

  expect_done(train(flags("resumed", 8, alone + "--save_every 4")));
  expect_done(train(flags("resumed", 12, alone + "--save_every 4 --resume auto")));
  EXPECT_EQ(column("resumed", "eval_loss"), column("one", "eval_loss"));
  EXPECT_EQ(column("resumed", "loss"), column("one", "loss"));
}

// Each record alone, in float64 from the logits on.
constexpr const char* kMeanLoss = R"(
import json, sys
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
total, labels = 0.0, 0
for line in open(sys.argv[2]):
    record = json.loads(line)
    ids = torch.tensor([record["ids"]])
    with torch.no_grad():
        log_p = torch.log_softmax(model(ids).logits[0, :-1].double(), -1)
    learnt = torch.tensor(record["mask"][1:]).bool()
    total -= log_p[range(len(learnt)), ids[0, 1:]][learnt].sum().item()
    labels += int(learnt.sum())
print(total / labels, labels)
)";

TEST_F(Evaluation, IsWhatTransformersComputesForTheSameRecords) {
  if (!has_transformers()) {
    GTEST_SKIP() << "no transformers in .venv; ./tandem test installs it";
  }
  const std::string model = random_model();
  const std::string held_out = write("held_out.jsonl",
                                     R"({"instruction": "Say leaf.", "output": "One leaf."}
{"instruction": "What is the plural of bus?", "input": "bus", "output": "One bus, many buses."}
{"instruction": "Name a colour.", "output": "Blue is a colour."}
{"instruction": "Count.", "input": "to three", "output": "One, two, three. That is all there is."}
{"instruction": "Go on.", "output": "And on and on."}
)");
  expect_done(train(flags("run", 1,
                          fmt::format("--model_name '{}' --dataset_name '{}/instructions.json' "
                                      "--lr 1e-3 --eval_dataset '{}' --eval_at_start",
                                      model, kDemo, held_out))));
  const Finished records =
      shell(fmt::format("'{}/tandem' inspect --model_name '{}' --dataset_name '{}' --json",
                        test::bin_dir(), model, held_out));
  ASSERT_EQ(records.code, 0) << records.err;
  const Finished theirs =
      shell(fmt::format("'{}' '{}' '{}' '{}'", kPython, write("mean_loss.py", kMeanLoss), model,
                        write("records.jsonl", records.out)));
  ASSERT_EQ(theirs.code, 0) << theirs.err;
  std::istringstream numbers(theirs.out);
  double loss = 0;
  std::string labels;
  numbers >> loss >> labels;
  EXPECT_EQ(column("run", "eval_tokens").front(), labels);
  EXPECT_NEAR(std::stod(column("run", "eval_loss").front()), loss, 1e-6 * loss);
}

TEST_F(Evaluation, EndsARunThatGetsNoBetter) {
  const Finished done =
      train(flags("early", 40,
                  "--lr 1e-9 --eval_split 0.1 --eval_every 2 --early_stopping_patience 3 "
                  "--early_stopping_min_delta 0.5"));
  expect_done(done);
  EXPECT_THAT(done.out, HasSubstr("stopped early: no better evaluation in 3"));
  EXPECT_EQ(column("early", "loss").size(), 8U);  // the first one is the best so far
}

TEST_F(Evaluation, FlagsThatMakeNoSenseAreRefused) {
  const auto refused = [&](const std::string& more) {
    const Finished done = train(flags("no", 2, more));
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
    return done.err;
  };
  EXPECT_THAT(refused("--eval_every 2"), HasSubstr("--eval_every needs records to evaluate on"));
  EXPECT_THAT(refused("--eval_split 1.5"), HasSubstr("--eval_split is 1.5"));
  EXPECT_THAT(refused("--eval_split 1e-9"), HasSubstr("holds out 0"));
  EXPECT_THAT(refused("--eval_split 0.1 --eval_dataset x.json"), HasSubstr("contradict"));
  EXPECT_THAT(refused("--eval_dataset nowhere.json"), HasSubstr("nowhere.json"));
}

}  // namespace
}  // namespace tandem
