// A trainer of one's own: the example on the class Trainer has checkpoints, resume, evaluation
// figures, summary and report as the project's trainers have them.
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

class CustomTrainer : public TrainerTest {
 protected:
  [[nodiscard]] Finished spirals(const std::string& output, const std::string& flags) const {
    return shell(fmt::format("'{}/custom_trainer' --output_dir '{}' --steps 1200 --progress off {}",
                             test::bin_dir(), path(output), flags));
  }
};

TEST_F(CustomTrainer, KilledInBetweenItGoesOnWithTheBitsOfTheWholeRun) {
  const Finished whole = spirals("whole", "");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, ::testing::HasSubstr("of 1000 points told apart"));

  const std::string out = path("killed");
  (void)shell(fmt::format(
      "'{0}/custom_trainer' --output_dir '{1}' --steps 1200 --progress off --save_every 10 & "
      "while kill -0 $! && ! ls -d '{1}'/checkpoints/step-000001??; do sleep 0.01; done; "
      "kill -KILL $!; wait $!",
      test::bin_dir(), out));
  ASSERT_FALSE(std::filesystem::exists(out + "/model")) << "it came to its end before the signal";
  const Finished resumed = spirals("killed", "--save_every 10 --resume auto");
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, ::testing::ContainsRegex("resume   after step [0-9]+0, from "));
  EXPECT_EQ(content_of(out + "/model/model.safetensors"),
            content_of(path("whole/model/model.safetensors")));
}

TEST_F(CustomTrainer, LeavesWhatEachTrainerLeaves) {
  const Finished done = spirals("out", "--trace_steps 20:22 --save_every 600 --log_interval 600");
  ASSERT_EQ(done.code, 0) << done.err;
  for (const char* file :
       {"metrics.jsonl", "summary.json", "report.html", "memory_plan.json", "resolved_config.json",
        "trace.json.gz", "model/model.safetensors", "checkpoints/step-00001200/manifest.json"}) {
    EXPECT_TRUE(std::filesystem::exists(path("out") + "/" + file)) << file;
  }
  EXPECT_THAT(done.out, ::testing::AllOf(::testing::HasSubstr("Summary of "),
                                         ::testing::HasSubstr("memory   planned for a rank")));
}

TEST_F(CustomTrainer, RefusesAsEachTrainerDoes) {
  const Finished unknown = spirals("out", "--lerning_rate 3");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, ::testing::HasSubstr("unknown flag --lerning_rate"));
  const Finished config = spirals("out", "--deepspeed_config nowhere.json");
  EXPECT_EQ(config.code, 2);
  EXPECT_FALSE(std::filesystem::exists(path("out")));
}

}  // namespace
}  // namespace tandem
