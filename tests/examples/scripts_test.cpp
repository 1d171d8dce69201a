// The shell scripts of the examples: each plans its model at full size, and trains a small one.
#include <algorithm>
#include <map>
#include <string>

#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class Scripts : public TrainerTest {
 protected:
  [[nodiscard]] Finished script(const std::string& name, const std::string& arguments) const {
    return shell(fmt::format("TANDEM_BIN='{}' TANDEM_CACHE='{}' '{}/examples/scripts/{}' {}",
                             test::bin_dir(), path("no cache"), test::source_dir(), name,
                             arguments));
  }
};

const std::map<std::string, std::string> kConfigs = {
    {"finetune_llama-8b_1gpu.sh", "Llama-3.1-8B"},
    {"finetune_phi-4_1gpu.sh", "Phi-4"},
    {"finetune_qwen3-14b_1gpu.sh", "Qwen3-14B"},
    {"finetune_gpt-oss-20b_1gpu.sh", "gpt-oss-20b"},
    {"finetune_qwen3-30b-a3b_2gpu.sh", "Qwen3-30B-A3B"},
    {"finetune_seed-oss-36b_2gpu.sh", "Seed-OSS-36B.assembled"},
    {"finetune_llama-70b_4gpu.sh", "Llama-3.3-70B"}};

TEST_F(Scripts, PlanTheirModelsAtFullSize) {
  const std::string configs = test::source_path("tests/data/model_sizes/");
  std::size_t planned = 0;
  for (const auto& entry : fs::directory_iterator(test::source_path("examples/scripts"))) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("finetune_")) {
      continue;
    }
    SCOPED_TRACE(name);
    ASSERT_TRUE(kConfigs.contains(name)) << "a script without a model here";
    const auto plan = [&](const std::string& mode) {
      return script(name,
                    fmt::format("{} 4 --plan_only --model_name '{}{}.json' --gpu_memory_gb 139 "
                                "--host_memory_gb 2000",
                                mode, configs, kConfigs.at(name)));
    };
    const Finished super = plan("superoffload");
    EXPECT_EQ(super.code, 0) << super.err;
    EXPECT_THAT(super.out, HasSubstr("on the device"));
    EXPECT_THAT(super.out, HasSubstr("of the state in host memory"));
    const Finished zero = plan("zerooffload");
    EXPECT_EQ(zero.code, 0) << zero.err;
    EXPECT_THAT(zero.out, HasSubstr("ZeRO stage 3"));
    ++planned;
  }
  EXPECT_EQ(planned, kConfigs.size());
}

TEST_F(Scripts, RefuseWhatDoesNotFit) {
  const std::string config = test::source_path("tests/data/model_sizes/Qwen3-14B.json");
  const Finished run = script("finetune_qwen3-14b_1gpu.sh",
                              fmt::format("superoffload 4 --plan_only --model_name '{}' "
                                          "--gpu_memory_gb 24 --host_memory_gb 64",
                                          config));
  EXPECT_EQ(run.code, 3);
  EXPECT_THAT(run.err, HasSubstr("memory: "));
}

TEST_F(Scripts, RefuseWrongWordsInOneLine) {
  for (const auto& [arguments, complaint] :
       std::map<std::string, std::string>{{"hyperoffload", "superoffload or zerooffload"},
                                          {"superoffload 0", "a whole number above 0"},
                                          {"superoffload many", "a whole number above 0"},
                                          {"superoffload 3 --plan_only", "a multiple of 2"},
                                          {"zerooffload 2 --model_name", "behind it"}}) {
    const Finished run = script("finetune_seed-oss-36b_2gpu.sh", arguments);
    EXPECT_EQ(run.code, 2) << arguments;
    EXPECT_THAT(run.err, HasSubstr(complaint));
    EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
  }
}

TEST_F(Scripts, TrainInBothModes) {
  const std::string model = random_model();
  const std::string data = test::source_path("examples/demo/instructions.json");
  for (const std::string mode : {"superoffload", "zerooffload"}) {
    const Finished run =
        script("finetune_qwen3-14b_1gpu.sh",
               fmt::format("{} 2 --model_name '{}' --dataset_name '{}' --max_length 64 --steps 2 "
                           "--output_dir '{}' --device cpu --progress lines",
                           mode, model, data, path(mode)));
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(column(mode, "loss").size(), 2U);
    EXPECT_TRUE(fs::exists(folder_ / mode / "model" / "model.safetensors"));
  }
  EXPECT_EQ(column("superoffload", "loss"), column("zerooffload", "loss"));
}

TEST_F(Scripts, TrainTheCifarNets) {
  for (const std::string name : {"cifar10.sh", "cifar10_moe.sh", "cifar10_prmoe.sh"}) {
    const Finished run = script(name, fmt::format("--dtype fp32 --steps 3 --log-interval 1 "
                                                  "--output_dir '{}' --progress off",
                                                  path(name)));
    EXPECT_EQ(run.code, 0) << name << ": " << run.err;
    EXPECT_THAT(run.out, HasSubstr("Accuracy of the network"));
    EXPECT_EQ(column(name, "loss").size(), 3U);
  }
}

}  // namespace
}  // namespace tandem
