// The trainer on packed rows: what it says, and that ranks, evaluations and a resumed run change no
// digit.
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class PackedRun : public TrainerTest {
 protected:
  [[nodiscard]] std::string flags(const std::string& output, int steps,
                                  const std::string& more) const {
    return fmt::format(
        "--output_dir '{}' --batch_size 2 --max_length 96 --steps {} --no-samples --no-tensorboard "
        "--progress lines --lr_scheduler constant --warmup 0 {}",
        path(output), steps, more);
  }
  void expect_done(const Finished& done) const { ASSERT_EQ(done.code, 0) << done.out << done.err; }
};

TEST_F(PackedRun, HasTheSameDigitsOnTwoRanksAndAfterResuming) {
  for (const std::string kind : {"bfd", "wrapped"}) {
    SCOPED_TRACE(kind);
    const std::string more = fmt::format("--packing {} --loss_mean tokens ", kind);
    const std::string alone = more + "--gradient_accumulation_steps 2 ";
    const Finished one = train(flags(kind + "-one", 14, alone));
    expect_done(one);
    EXPECT_THAT(one.out, HasSubstr(fmt::format("tokens ({}), ", kind)));
    EXPECT_THAT(one.out,
                ContainsRegex("packing  [0-9]+ records in [0-9]+ packs of up to 96 tokens .*full"));
    expect_done(shell(fmt::format("'{}/tandem' launch -n 2 -- '{}' {}", test::bin_dir(), kTrainer,
                                  flags(kind + "-two", 14, more))));
    expect_same_digits(kind + "-one", kind + "-two");
    expect_done(train(flags(kind + "-resumed", 9, alone + "--save_every 3")));
    const Finished went_on =
        train(flags(kind + "-resumed", 14, alone + "--save_every 3 --resume auto"));
    expect_done(went_on);
    EXPECT_THAT(went_on.out, HasSubstr("resume   after step 9"));
    expect_same_digits(kind + "-one", kind + "-resumed");
  }
}

TEST_F(PackedRun, AnEpochHasFewerStepsAndWhatIsHeldOutStaysAsItIs) {
  const auto steps_of_an_epoch = [&](const std::string& output, const std::string& more) {
    const Finished done = train(flags(output, 2, "--eval_split 0.1 " + more));
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    const std::string_view before = " epochs of ";
    const std::size_t at = done.out.find(before);
    return at == std::string::npos ? 0 : std::stoi(done.out.substr(at + before.size()));
  };
  const int apart = steps_of_an_epoch("apart", "");
  const int packed = steps_of_an_epoch("packed", "--packing bfd");
  EXPECT_GE(packed, 1);
  EXPECT_LE(3 * packed, apart);
  EXPECT_EQ(column("apart", "eval_tokens"), column("packed", "eval_tokens"));
}

TEST_F(PackedRun, AnotherPackingIsAnotherDataSet) {
  expect_done(train(flags("run", 3, "--packing bfd --save_every 3")));
  const Finished other = train(flags("run", 6, "--packing wrapped --resume auto"));
  EXPECT_EQ(other.code, 2) << other.out << other.err;
  EXPECT_THAT(other.err, HasSubstr("data"));
  const Finished unknown = train(flags("no", 3, "--packing best"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--packing"));
}

TEST_F(PackedRun, InspectSaysWhatTrainingDoes) {
  const Finished run = train(flags("run", 1, "--packing bfd"));
  expect_done(run);
  const Finished shown = shell(fmt::format(
      "'{}/tandem' inspect --model_name '{}' --dataset_name '{}/instructions.json' --max_length 96 "
      "-n 0",
      test::bin_dir(), random_model(), kDemo));
  ASSERT_EQ(shown.code, 0) << shown.err;
  const auto packing_of = [](const std::string& text) {
    const std::size_t begin = text.find("packing  ");
    return begin == std::string::npos ? text : text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(packing_of(run.out), packing_of(shown.out));
}

}  // namespace
}  // namespace tandem
