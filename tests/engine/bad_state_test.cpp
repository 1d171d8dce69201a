// Where a run whose steps are all skipped says that its numbers went wrong.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/layout/step_plan.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using toy::Setting;

// A segment that computes what another does, but for one micro-batch, in one pass.
class Damaged : public Segment {
 public:
  Damaged(std::shared_ptr<const Segment> whole, Phase phase, std::int64_t micro_batch)
      : whole_(std::move(whole)), phase_(phase), micro_batch_(micro_batch) {}

  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    const at::Tensor output = whole_->forward(context, input);
    if (context.batch.number % 4 != micro_batch_) {
      return output;
    }
    if (phase_ == Phase::kForward) {
      return output * std::numeric_limits<double>::infinity();
    }
    // 0, whose derivative by the input is infinity times 0.
    const at::Tensor nothing = (input - input.detach()).pow(2).sum().sqrt();
    return output + nothing;
  }

 private:
  std::shared_ptr<const Segment> whole_;
  Phase phase_;
  std::int64_t micro_batch_;
};

struct Case {
  std::size_t segment;
  Phase phase;
  int world;
  std::int64_t micro_batch;  // one of the step's four
  std::string expected;
};

std::string end_of_run(const Case& damage, bool checkpointing) {
  Setting setting{.checkpointing = checkpointing, .accumulation = 4 / damage.world};
  const auto train = [&](std::shared_ptr<Communicator> ranks) {
    InitializeArgs args = toy::arguments(setting, std::move(ranks));
    args.options.max_skipped_steps = 3;
    SegmentSpec& segment = args.model.segments[damage.segment];
    segment.run = std::make_shared<Damaged>(segment.run, damage.phase, damage.micro_batch);
    Engine engine(std::move(args));
    const std::vector<Batch> batches(static_cast<std::size_t>(setting.accumulation), toy::batch(0));
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(engine.train_step(batches).verdict.outcome, StepOutcome::kSkip);
    }
    return 0;
  };
  return error_text([&] { on_ranks(damage.world, train); }, ExitCode::kBadState);
}

TEST(BadState, TheFirstActivationThatIsNotFiniteIsNamed) {
  for (const bool checkpointing : {false, true}) {
    for (const Case& damage : std::vector<Case>{
             {0, Phase::kForward, 1, 0,
              "the output of embedding, in the forward of micro-batch 1 of 4 on rank 0"},
             {2, Phase::kForward, 1, 3,
              "the output of block 1, in the forward of micro-batch 4 of 4 on rank 0"},
             {4, Phase::kForward, 1, 1,
              "the output of head, in the forward of micro-batch 2 of 4 on rank 0"},
             {1, Phase::kBackward, 1, 0,
              "the gradient of the input of block 0, in the backward of micro-batch 1 of 4 on rank "
              "0"},
             {3, Phase::kBackward, 1, 2,
              "the gradient of the input of block 2, in the backward of micro-batch 3 of 4 on rank "
              "0"},
             {3, Phase::kForward, 2, 3,
              "the output of block 2, in the forward of micro-batch 2 of 2 on rank 1"},
             {2, Phase::kBackward, 2, 0,
              "the gradient of the input of block 1, in the backward of micro-batch 1 of 2 on rank "
              "0"}}) {
      EXPECT_THAT(end_of_run(damage, checkpointing),
                  ::testing::HasSubstr("all weights are finite, and what first is not is " +
                                       damage.expected + ";"));
    }
  }
}

}  // namespace
}  // namespace tandem
