// `tandem generate`: what is drawn repeats with its seed, and wrong input is one line.
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class GenerateCommand : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    model_ = random_model();
  }
  [[nodiscard]] Finished generate(const std::string& flags) const {
    return shell(
        fmt::format("'{}/tandem' generate --model_name '{}' {}", TANDEM_BIN_DIR, model_, flags));
  }
  void expect_refused(const std::string& flags, const std::string& part) const {
    const Finished done = generate(flags);
    EXPECT_EQ(done.code, 2) << done.out << done.err;
    EXPECT_TRUE(done.err.starts_with("error: [")) << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    EXPECT_THAT(done.err, HasSubstr(part));
    EXPECT_EQ(done.out, "");
  }

  std::string model_;
};

TEST_F(GenerateCommand, WhatIsDrawnRepeatsWithItsSeed) {
  const std::string drawn = "--prompt 'Name a day.' --max_new_tokens 24 --temperature 1.5 ";
  const Finished first = generate(drawn + "--seed 1");
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_GT(first.out.size(), 8U);
  EXPECT_EQ(generate(drawn + "--seed 1").out, first.out);
  EXPECT_NE(generate(drawn + "--seed 2").out, first.out);
  const std::string greedy = "--prompt 'Name a day.' --max_new_tokens 5 --ids ";
  EXPECT_EQ(generate(greedy + "--seed 1").out, generate(greedy + "--seed 2").out);
  EXPECT_EQ(generate(greedy + "--dtype bf16").code, 0);
}

TEST_F(GenerateCommand, WrongInputIsOneLine) {
  expect_refused("--prompt a --max_new_tokens 100000", "positions");
  expect_refused("--prompt a --top_p 2", "--top_p");
  expect_refused("--prompt a --temperatur 1", "--temperature");
  std::ofstream(model_ + "/generation_config.json") << "[";
  expect_refused("--prompt a", "generation_config.json");
}

}  // namespace
}  // namespace tandem
