// `tandem plan` and the run that it plans decide alike: the same line about the placement.
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

class Plan : public TrainerTest {
 protected:
  /// The line that begins with "placement".
  [[nodiscard]] static std::string placement_in(const std::string& text) {
    const std::size_t at = text.find("placement ");
    return at == std::string::npos ? "none in: " + text : text.substr(at, text.find('\n', at) - at);
  }
  [[nodiscard]] std::string config(const char* offload) const {
    return write(fmt::format("{}.json", offload),
                 fmt::format(R"({{"train_micro_batch_size_per_gpu": 2, "bf16": {{"enabled": true}},
                      "zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "{}"{}}}}}}})",
                             offload[0] == 'n' ? "none" : "cpu",
                             std::string_view(offload) == "half" ? R"(, "ratio": 0.5)" : ""));
  }
};

TEST_F(Plan, IsThatOfTheRun) {
  const std::string model = random_model();
  const std::string data = write("data.json", [] {
    const std::string text(200, 'a');  // longer than --max_length
    return "[" +
           fmt::format(R"({{"instruction": "{0}", "input": "{0}", "output": "{0}"}},)", text) +
           fmt::format(R"({{"instruction": "{0}", "input": "{0}", "output": "{0}"}}])", text);
  }());
  const char* spec = "compute=50G,h2d=2GB,d2h=2GB,memory=64MB";
  int run = 0;
  for (const char* offload : {"none", "cpu", "half"}) {
    for (const char* more : {"", "--overlap off", "--placement stream --overlap comm",
                             "--placement gpu --overlap offload"}) {
      const std::string flags = fmt::format(
          "--model_name '{}' --deepspeed_config '{}' --batch_size 2 --max_length 16 "
          "--device sim --sim_spec {} --optimizer_threads 1 --compute_threads 1 {}",
          model, config(offload), spec, more);
      const Finished plan = shell(fmt::format("'{}/tandem' plan {}", TANDEM_BIN_DIR, flags));
      ASSERT_EQ(plan.code, 0) << flags << plan.err;
      const Finished done =
          train(fmt::format("{} --dataset_name '{}' --loss_on all --lr 1e-3 --steps 1 --progress "
                            "off --no-tensorboard "
                            "--output_dir '{}'",
                            flags, data, path(fmt::format("run{}", run++))));
      ASSERT_EQ(done.code, 0) << flags << done.err;
      EXPECT_EQ(placement_in(plan.out), placement_in(done.out)) << offload << " " << more;
    }
  }
  EXPECT_EQ(run, 12);
}

TEST_F(Plan, NamesTheDropoutThatKeepsAttention) {
  std::string config = content_of(std::string(kDemo) + "/config.json");
  const auto replace = [&](const std::string& from, const std::string& to) {
    const std::size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    config.replace(at, from.size(), to);
  };
  replace(R"("attention_dropout": 0.0)", R"("attention_dropout": 0.1)");
  replace(R"("max_position_embeddings": 512)", R"("max_position_embeddings": 4096)");
  write("long/config.json", config);
  const auto plan = [&](const char* more) {
    return shell(fmt::format(
        "'{}/tandem' plan --model_name '{}' --device cuda --gpu_memory_gb 2 --host_memory_gb 8 "
        "--max_length 4096 {}",
        TANDEM_BIN_DIR, path("long"), more));
  };
  const Finished refused = plan("--batch_size 3");
  EXPECT_EQ(refused.code, 3) << refused.out << refused.err;
  EXPECT_THAT(refused.out, ::testing::HasSubstr("since attention_dropout is 0.1 and every head's"));
  EXPECT_THAT(refused.err, ::testing::HasSubstr("batch_size 1, gradient_accumulation_steps 3"));
}

}  // namespace
}  // namespace tandem
