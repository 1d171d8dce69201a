// `tandem parity` on every reference folder: logits, gradients, training traces and final weights
// through the real engine. The small folders are in every clone (tests/data/references).
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class Parity : public TrainerTest, public testing::WithParamInterface<const char*> {};

TEST_P(Parity, EveryCheckPasses) {
  const fs::path folder = fs::path(TANDEM_SOURCE_DIR) / GetParam();
  if (!fs::exists(folder)) {
    GTEST_SKIP() << GetParam() << " is not here";
  }
  const Finished done =
      shell(fmt::format("'{}/tandem' parity '{}'", TANDEM_BIN_DIR, folder.string()));
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_EQ(done.out.find("FAIL"), std::string::npos) << done.out;
  for (const char* check : {"logits max_abs=", "loss max_abs=", "grads (worst", "trace clip loss",
                            "trace noclip grad_norm", "final weights clip (worst"}) {
    EXPECT_NE(done.out.find(check), std::string::npos) << check << " did not run:\n" << done.out;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Parity,
    testing::Values("../shared/oracles/models/qwen3", "../shared/oracles/models/qwen3_tied",
                    "../shared/oracles/models/gpt2", "tests/data/references/small_gpt2",
                    "tests/data/references/small_gpt_oss", "tests/data/references/small_qwen2"),
    [](const auto& info) { return fs::path(info.param).filename().string(); });

class ParityLimits : public TrainerTest {};

// The limits are real: a checkpoint that is a little off must fail.
TEST_F(ParityLimits, AnotherNormEpsilonFails) {
  const fs::path folder = fs::path(kShared) / "oracles/models/qwen3";
  if (!fs::exists(folder)) {
    GTEST_SKIP() << "shared/oracles/models/qwen3 is not here";
  }
  fs::create_directories(folder_ / "copy");
  fs::copy(folder, folder_ / "copy", fs::copy_options::recursive);
  const std::string config = path("copy/checkpoint/config.json");
  std::string text = content_of(config);
  const std::string epsilon = "\"rms_norm_eps\": 1e-06";
  ASSERT_NE(text.find(epsilon), std::string::npos);
  text.replace(text.find(epsilon), epsilon.size(), "\"rms_norm_eps\": 1e-05");
  fs::permissions(config, fs::perms::owner_all);
  std::ofstream(config) << text;
  const Finished done = shell(fmt::format("'{}/tandem' parity '{}'", TANDEM_BIN_DIR, path("copy")));
  EXPECT_EQ(done.code, 1) << done.out << done.err;
  EXPECT_NE(done.out.find("FAIL"), std::string::npos) << done.out;
}

}  // namespace
}  // namespace tandem
