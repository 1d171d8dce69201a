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

/// A description of `layers` blocks in Llama's form.
std::string llama(int layers, int hidden, int intermediate, int vocabulary, int longest) {
  return fmt::format(
      R"({{"model_type": "llama", "num_hidden_layers": {}, "hidden_size": {},
           "intermediate_size": {}, "num_attention_heads": {}, "vocab_size": {},
           "max_position_embeddings": {}, "rms_norm_eps": 1e-5, "hidden_act": "silu"}})",
      layers, hidden, intermediate, hidden / 128, vocabulary, longest);
}

/// SuperOffload's: 13 billion parameters and rows of a million tokens on eight GH200, of 96 GB and
/// 480 GB each, and 25 billion on one.
TEST_F(Plan, TheLargestConfigurationsOfSuperOffloadFit) {
  write("13b/config.json", llama(40, 5120, 13824, 32000, 1 << 20));
  write("25b/config.json", llama(54, 6144, 16384, 50432, 8192));
  const auto plan = [&](const char* model, const std::string& more) {
    return shell(
        fmt::format("'{}/tandem' plan --model_name '{}' --device cuda --gpu_memory_gb 89.4 "
                    "--host_memory_gb 447 "
                    "--ranks_per_host 1 --dtype bf16 --stage 3 --activation_checkpointing {}",
                    TANDEM_BIN_DIR, path(model), more));
  };
  const std::string million =
      "--world_size 8 --sequence_parallel 8 --batch_size 1 --max_length 1048576 ";
  const Finished long_rows = plan("13b", million);
  EXPECT_EQ(long_rows.code, 0) << long_rows.out << long_rows.err;
  EXPECT_THAT(long_rows.out,
              ::testing::AllOf(::testing::HasSubstr("1 x 1048576 tokens per micro-batch"),
                               ::testing::ContainsRegex(
                                   "\noffload   boundaries 1-[0-9]+ of 41 in host memory between "
                                   "forward and backward, [0-9.]+ GiB .*the smallest that fits.*"
                                   "hidden behind compute"),
                               ::testing::ContainsRegex("\nactivations +[0-9.]+ GiB +[0-9.]+ GiB"),
                               ::testing::HasSubstr("\nplacement ")));
  const Finished refused = plan("13b", million + "--activation_offload off");
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err,
              ::testing::HasSubstr("smallest change that fits: activation_offload 1\n"));
  const Finished large = plan("25b", "--batch_size 4 --max_length 2048");
  EXPECT_EQ(large.code, 0) << large.out << large.err;
  EXPECT_THAT(large.out, ::testing::HasSubstr("25.08 billion parameters"));
}

}  // namespace
}  // namespace tandem
