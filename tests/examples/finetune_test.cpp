// finetune_zero3 on good input: artefacts, equal bits under every schedule, repeatability, signals.
#include <chrono>
#include <map>
#include <thread>

#include <signal.h>

#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Finetune : public TrainerTest {};

TEST_F(Finetune, LeavesEveryArtefactAndTheLossFalls) {
  const Finished done = demo("run", "--steps 30 --log_interval 1 --trace --samples");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              testing::ContainsRegex("Step    1 \\| Loss: [0-9.]+ \\| Time: +[0-9]+ms \\| "
                                     "TFLOPS: +[0-9.]+ \\| Tokens/s: +[0-9]+"));
  EXPECT_THAT(done.out, HasSubstr("samples before training"));
  EXPECT_THAT(done.out, HasSubstr("samples after training"));
  EXPECT_EQ(done.out.find('\r'), std::string::npos) << "no carriage return without a terminal";
  for (const char* name : {"metrics.jsonl", "summary.json", "resolved_config.json", "trace.json.gz",
                           "report.html", "notes.txt", "config_keys.txt", "model/model.safetensors",
                           "model/config.json", "model/tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / name)) << name;
  }
  bool events = false;
  for (const auto& entry : fs::directory_iterator(folder_ / "run")) {
    events |= entry.path().filename().string().starts_with("events.out.tfevents.");
  }
  EXPECT_TRUE(events);

  simdjson::dom::parser parser;
  std::istringstream lines(content_of(folder_ / "run" / "metrics.jsonl"));
  std::int64_t step = 0;
  for (std::string line; std::getline(lines, line);) {
    const simdjson::dom::object object = parser.parse(line);
    EXPECT_EQ(std::int64_t(object["step"]), ++step);
    for (const char* key :
         {"epoch", "loss", "lr", "grad_norm", "loss_scale", "tokens", "step_time_s", "tokens_per_s",
          "tflops", "overlap_efficiency", "exposed_optimizer_s", "exposed_gather_s",
          "exposed_reduce_s", "exposed_data_s", "peak_host_bytes", "peak_device_bytes"}) {
      EXPECT_TRUE(object[key].is_number()) << key << " in " << line;
    }
    const std::string_view verdict(object["verdict"]);
    const bool clipped = double(object["grad_norm"]) > 1;  // the built-in config's limit
    EXPECT_EQ(verdict, clipped && bool(object["speculated"]) ? "rollback" : "commit");
    EXPECT_GT(double(object["overlap_efficiency"]), 0);
    EXPECT_LE(double(object["overlap_efficiency"]), 1);
  }
  EXPECT_EQ(step, 30);
  const simdjson::dom::object summary = parser.load(path("run/summary.json"));
  EXPECT_EQ(std::int64_t(summary["steps"]), 30);
  EXPECT_LT(double(summary["loss_last"]), 0.75 * double(summary["loss_first"]));
  EXPECT_GT(double(summary["step_time_s"]["median"]), 0);
}

TEST_F(Finetune, SchedulesThreadsAndCheckpointingDoNotChangeOneDigit) {
  ASSERT_EQ(demo("off", "--steps 6 --overlap off").code, 0);
  ASSERT_EQ(column("off", "loss").size(), 6U);
  int run = 0;
  for (const char* flags :
       {"--overlap comm", "--overlap offload", "--overlap offload --optimizer_threads 2",
        "--overlap offload --optimizer_threads 1 --activation_checkpointing",
        "--overlap comm --gather_slots 1", "--overlap off --activation_checkpointing",
        "--device sim", "--device sim --stage 2 --overlap comm --sim_spec h2d=2GB,d2h=1GB"}) {
    const std::string output = fmt::format("run{}", run++);
    const Finished done = demo(output, fmt::format("--steps 6 {}", flags));
    ASSERT_EQ(done.code, 0) << flags << ": " << done.err;
    SCOPED_TRACE(flags);
    expect_same_digits(output, "off");
  }
}

TEST_F(Finetune, PlacementNvmeAndOffloadAreLinesOfTheirOwn) {
  const Finished done =
      demo("nvme", fmt::format("--steps 1 --placement nvme --nvme_path '{}' --nvme_any_disk "
                               "--activation_checkpointing --activation_offload on",
                               path("")));
  ASSERT_EQ(done.code, 0) << done.err;
  for (const char* begin : {"\nplacement ", "\nnvme      ", "\noffload   "}) {
    EXPECT_THAT(done.out, HasSubstr(begin));
    EXPECT_THAT("\n" + content_of(path("nvme/notes.txt")), HasSubstr(begin));
  }
}

TEST_F(Finetune, ASimulatedDeviceIsAsSlowAndAsLargeAsItIsDescribed) {
  const Finished done = demo("sim", "--steps 2 --device sim --sim_spec compute=20G,memory=64MB");
  ASSERT_EQ(done.code, 0) << done.err;
  simdjson::dom::parser parser;
  const simdjson::dom::object summary = parser.load(path("sim/summary.json"));
  EXPECT_EQ(std::string_view(summary["device"]), "sim");
  const auto bytes = std::int64_t(summary["memory"]["device"]["actual_bytes"]);
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, 64'000'000);
  EXPECT_EQ(column("sim", "peak_device_bytes")[1], std::to_string(bytes));
  // 20 GFLOP/s are the lid on what the example's formula can come to; it counts no more than the
  // segments do.
  EXPECT_LE(std::stod(column("sim", "tflops")[1]), 20e-3);
}

TEST_F(Finetune, TheSameSeedGivesTheSameBytesAndAnotherDoesNot) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::string flags = fmt::format("--steps 4 --dtype {} --compute_threads 2", dtype);
    ASSERT_EQ(demo("a", flags).code, 0);
    ASSERT_EQ(demo("b", flags).code, 0);
    ASSERT_EQ(demo("c", flags + " --seed 7").code, 0);
    EXPECT_EQ(column("a", "loss"), column("b", "loss")) << dtype;
    EXPECT_NE(column("a", "loss"), column("c", "loss")) << dtype;
    EXPECT_TRUE(content_of(folder_ / "a/model/model.safetensors") ==
                content_of(folder_ / "b/model/model.safetensors"))
        << dtype;
  }
}

TEST_F(Finetune, AccumulationAndAConfigFileAreHonoured) {
  const std::string config = write("ds.json", R"({
    "train_batch_size": 8, "gradient_accumulation_steps": 2,  // two micro-batches of 4
    "gradient_clipping": 0.5, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
  })");
  const Finished done = demo("run", fmt::format("--steps 4 --deepspeed_config '{}'", config));
  ASSERT_EQ(done.code, 0) << done.err;
  const std::vector<double> expected = {0, 0, 3e-5,
                                        6e-5};  // min for two steps, then i/N of the peak
  const auto rates = column("run", "lr");
  ASSERT_EQ(rates.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(std::stod(rates[i]), expected[i], 1e-15) << "step " << i + 1;
  }
}

TEST_F(Finetune, ASignalFinishesTheStepAndLeavesWholeFiles) {
  const Finished done = shell(fmt::format(
      "'{}' --output_dir '{}' --batch_size 4 --progress lines --no-samples --log_interval 1 "
      "--steps 100000 & "
      "pid=$!; while ! grep -q Step '{}' 2>/dev/null; do sleep 0.05; done; kill -INT $pid; wait "
      "$pid",
      kTrainer, path("run"), path(".out")));
  EXPECT_EQ(done.code, 130) << done.err;
  simdjson::dom::parser parser;
  const simdjson::dom::object summary = parser.load(path("run/summary.json"));
  EXPECT_EQ(std::size_t(std::int64_t(summary["steps"])), column("run", "loss").size());
  EXPECT_GE(std::int64_t(summary["steps"]), 1);
  EXPECT_TRUE(fs::exists(folder_ / "run/model/model.safetensors"));
}

/// The demo's; and Alpaca's own with a small Qwen3 of another vocabulary, where they are there.
TEST_F(Finetune, RealRecordsWithTheTinyModel) {
  std::map<std::string, std::string> models = {{random_model(), kDemo + "/instructions.json"}};
  if (const std::string tiny = kShared + "/models/qwen3_tiny"; fs::exists(tiny)) {
    models[tiny] = kShared + "/data/alpaca/alpaca_small.json";
  }
  for (const auto& [model, data] : models) {
    const std::string run = fs::path(data).stem().string();
    const Finished done = train(
        fmt::format("--model_name '{}' --dataset_name '{}' --lr 1e-3 --batch_size 4 --max_length "
                    "256 --steps 20 --output_dir '{}' --progress lines",
                    model, data, path(run)));
    ASSERT_EQ(done.code, 0) << done.err;
    const auto losses = column(run, "loss");
    EXPECT_LT(std::stod(losses.back()), std::stod(losses.front()) - 0.3) << model;
  }
}

TEST_F(Finetune, TransformersLoadsTheModelAndAgreesOnLogits) {
  if (!has_transformers()) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  ASSERT_EQ(demo("run", "--steps 5").code, 0);
  expect_transformers_agrees({path("run/model")});
}

TEST_F(Finetune, RowsBeyondTheModelsPositionsAreNoted) {
  ASSERT_EQ(demo("first", "--steps 1").code, 0);
  const std::string config = path("first/model/config.json");
  std::string text = content_of(config);
  const std::string given = "\"max_position_embeddings\": 512";
  ASSERT_NE(text.find(given), std::string::npos);
  write("first/model/config.json",
        text.replace(text.find(given), given.size(), "\"max_position_embeddings\": 16"));
  const std::string flags = fmt::format(
      "--model_name '{}' --dataset_name '{}' --lr 1e-3 --batch_size 4 --steps 1 --output_dir '{}'",
      path("first/model"), test::source_path("examples/demo/instructions.json"), path("out"));
  const Finished longer = train(flags);
  EXPECT_EQ(longer.code, 0) << longer.err;
  EXPECT_THAT(longer.out, testing::HasSubstr("go beyond max_position_embeddings of config.json "
                                             "(16); --max_length 16 cuts them there"));
  const Finished cut = train(flags + " --max_length 16 --loss_on all --overwrite_output_dir");
  EXPECT_EQ(cut.code, 0) << cut.err;
  EXPECT_THAT(cut.out, testing::Not(testing::HasSubstr("go beyond")));
}

TEST_F(Finetune, SavesTheModelInTheTypeThatIsAskedFor) {
  for (const auto& [flag, stored] : {std::pair{"fp32", "F32"}, {"bf16", "BF16"}, {"fp16", "F16"}}) {
    const Finished run = demo(flag, fmt::format("--steps 1 --dtype bf16 --save_dtype {}", flag));
    ASSERT_EQ(run.code, 0) << run.err;
    const std::string header =
        content_of(folder_ / flag / "model/model.safetensors").substr(0, 2000);
    EXPECT_THAT(header, HasSubstr(fmt::format(R"("dtype":"{}")", stored)));
  }
}

}  // namespace
}  // namespace tandem
