// finetune_zero3 on bad input: one line on stderr, the right exit code, nothing left that looks
// whole.
#include <sys/stat.h>
#include <unistd.h>

#include "engine/tensors/device_choice.hpp"
#include "runtime/system/machine.hpp"
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class BadInput : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    model_ = random_model();
    data_ = write("data.json", R"([{"instruction": "Say a.", "input": "", "output": "a"},
                                   {"instruction": "Say b.", "input": "", "output": "b"}])");
  }

  [[nodiscard]] std::string flags(const std::string& more = "") const {
    return fmt::format(
        "--model_name '{}' --dataset_name '{}' --lr 1e-3 --batch_size 2 --max_length 32 --steps 1 "
        "--output_dir '{}' {}",
        model_, data_, path("out"), more);
  }

  void expect_refused(const std::string& flags, const std::vector<std::string>& parts,
                      int code = 2) const {
    const Finished done = train(flags);
    EXPECT_EQ(done.code, code) << flags << "\n" << done.err;
    EXPECT_TRUE(done.err.starts_with("error: [")) << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    for (const std::string& part : parts) {
      EXPECT_THAT(done.err, HasSubstr(part));
    }
    EXPECT_FALSE(fs::exists(folder_ / "out/model/model.safetensors"));
    EXPECT_FALSE(fs::exists(folder_ / "out/summary.json"));
  }

  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = content_of(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(file, std::ios::binary) << text.replace(at, from.size(), to);
  }

  std::string model_;
  std::string data_;
};

TEST_F(BadInput, TheGoodCaseIsGood) {
  const Finished done = train(flags());
  EXPECT_EQ(done.code, 0) << done.err;
}

TEST_F(BadInput, UnknownFlagNamesTheNearest) {
  expect_refused(flags("--overlapp off"), {"--overlapp", "--overlap"});
}

TEST_F(BadInput, FlagsThatMakeNoSense) {
  expect_refused(flags("--overlap most"), {"--overlap", "most", "offload"});
  expect_refused(flags("--overlap off --speculate on"), {"--speculate on", "--overlap full"});
  expect_refused(flags("--reduction nccl --device cpu"), {"--reduction nccl", "exact or fast"});
  expect_refused(flags("--reduction quick"), {"--reduction", "quick", "exact, fast or nccl"});
  expect_refused(flags("--speculate maybe"), {"--speculate", "maybe", "auto"});
  expect_refused(flags("--inflight_buckets -1"), {"--inflight_buckets", "-1"});
  expect_refused(flags("--forced_misses 1.5"), {"--forced_misses", "1.5", "between 0 and 1"});
  expect_refused(flags("--overlap some"), {"--overlap", "some"});
  expect_refused(flags("--dataset_percentage 0"), {"--dataset_percentage"});
  expect_refused(flags("--warmup 2"), {"--warmup"});
  if (!why_no_cuda(DeviceFacts::of_machine()).empty()) {
    expect_refused(flags("--device cuda"), {"device is cuda, and", "use cpu, or sim"});
  }
  expect_refused(flags("--device tpu"), {"--device", "tpu"});
  expect_refused(flags("--sim_spec compute=2T"), {"--sim_spec", "--device sim"});
  expect_refused(flags("--device sim --sim_spec compute=fast"), {"compute=fast", "compute=2T"});
  expect_refused(flags("--device sim --sim_spec speed=2T"), {"speed=2T", "latency"});
  expect_refused(flags("--device sim --sim_spec hbm=0"), {"hbm=0", "hbm=50GB"});
  expect_refused(flags("--placement disk"), {"--placement", "disk", "stream"});
  expect_refused(flags("--placement gpu"), {"--placement gpu", "--device sim"});
  expect_refused(flags("--placement stream --device cpu"), {"--placement stream", "--device sim"});
  expect_refused(flags("--device sim --offload_ratio 1.5"), {"--offload_ratio", "1.5", "0 and 1"});
  expect_refused(flags("--device sim --offload_ratio -0.1"), {"--offload_ratio", "-0.1"});
  expect_refused(flags("--device sim --offload_ratio nan"), {"--offload_ratio", "nan"});
  expect_refused(flags("--offload_ratio 0.5"), {"--offload_ratio 0.5", "--device sim"});
  expect_refused(flags("--device sim --placement cpu --offload_ratio 0.5"),
                 {"--placement", "--offload_ratio 0.5"});
  expect_refused(flags("--dtype fp8"), {"--dtype", "fp8"});
  expect_refused(flags("--stage 4"), {"stage", "4"});
  expect_refused(flags("--resume /nowhere/at/all"), {"--resume", "/nowhere/at/all"});
  expect_refused(flags("--save_dtype int4"), {"--save_dtype", "int4"});
  expect_refused("--model_name '" + model_ + "'", {"--lr"});
}

TEST_F(BadInput, AModelThatDoesNotFitTheDevice) {
  const Finished done = train(flags("--device sim --sim_spec memory=1MB"));
  EXPECT_EQ(done.code, 3) << done.err;
  EXPECT_THAT(done.err, HasSubstr("\ndevice  "));  // the plan's table, as of any memory
  EXPECT_THAT(done.err, HasSubstr("error: [memory] device memory: "));
  EXPECT_THAT(done.err, HasSubstr("1.0 MiB of the simulated device (--sim_spec memory=)"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(BadInput, NoSuchModelOrDataset) {
  const std::string other = path("nowhere");
  expect_refused(
      fmt::format("--model_name '{}' --lr 1 --batch_size 1 --output_dir '{}'", other, path("out")),
      {other});
  data_ = other;
  expect_refused(flags(), {other});
}

TEST_F(BadInput, UnknownArchitectureListsTheKnownOnes) {
  replace(model_ + "/config.json", "\"qwen3\"", "\"mamba9\"");
  expect_refused(flags(), {"mamba9", "qwen3", "gpt2"});
}

TEST_F(BadInput, WeightsMissingTruncatedOrCorrupt) {
  const std::string weights = model_ + "/model.safetensors";
  const std::string whole = content_of(weights);
  fs::remove(weights);
  expect_refused(flags(), {"model.safetensors"});
  std::ofstream(weights, std::ios::binary) << whole.substr(0, whole.size() - 100);
  expect_refused(flags(), {"model.safetensors"});
  std::ofstream(weights, std::ios::binary) << std::string(4096, '\xff');
  expect_refused(flags(), {"model.safetensors"});
}

TEST_F(BadInput, TensorOffsetsTypesAndShapes) {
  const std::string weights = model_ + "/model.safetensors";
  const std::string whole = content_of(weights);
  replace(weights, "\"F32\"", "\"F99\"");
  expect_refused(flags(), {"F99"});
  std::ofstream(weights, std::ios::binary) << whole;
  replace(weights, "\"data_offsets\":[0,", "\"data_offsets\":[8,");
  expect_refused(flags(), {"model.safetensors"});
  std::ofstream(weights, std::ios::binary) << whole;
  replace(weights, "model.norm.weight", "model.morn.weight");
  expect_refused(flags(), {"model.norm.weight"});
  std::ofstream(weights, std::ios::binary) << whole;
  replace(model_ + "/config.json", "\"intermediate_size\": 768", "\"intermediate_size\": 512");
  expect_refused(flags(), {"[512, 256]", "[768, 256]"});
}

TEST_F(BadInput, MalformedTokenizer) {
  std::ofstream(model_ + "/tokenizer.json") << "{\"model\": 3}";
  expect_refused(flags(), {"tokenizer.json"});
  fs::remove(model_ + "/tokenizer.json");
  expect_refused(flags(), {"tokenizer.json"});
}

TEST_F(BadInput, DatasetsWithAMissingFieldOrNothing) {
  std::ofstream(data_) << "[{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"},\n"
                          "{\"instruction\": \"a\", \"input\": \"\"}]";
  expect_refused(flags(), {"data.json", "output", "2"});
  std::ofstream(data_) << "[]";
  expect_refused(flags(), {"data.json"});
  std::ofstream(data_) << "not json";
  expect_refused(flags(), {"data.json"});
}

TEST_F(BadInput, ConfigKeysAndBatchValues) {
  const auto with = [&](std::string_view json) {
    return flags("--deepspeed_config '" + write("ds.json", json) + "'");
  };
  expect_refused(with(R"({"train_batch_size": 2, "zero_optimizaton": {"stage": 3}})"),
                 {"zero_optimizaton", "zero_optimization"});
  expect_refused(with(R"({"train_batch_size": 2, "zero_optimization": {"stagee": 3}})"),
                 {"stagee", "stage"});
  expect_refused(with(R"({"train_batch_size": 7, "gradient_accumulation_steps": 2,
                          "zero_optimization": {"stage": 3}})"),
                 {"7", "2"});
  expect_refused(with(R"({"train_batch_size": 2, )"), {"ds.json"});
  expect_refused(with(R"({"train_batch_size": 2, "zero_optimization": {"stage": 3},
                          "optimizer": {"type": "AdamW", "params": {"lr": 5}}})"),
                 {"--lr", "5"});
}

TEST_F(BadInput, OutputDirectoryThatCannotBeWritten) {
  write("file", "in the way");
  const Finished done = train(fmt::format(
      "--model_name '{}' --dataset_name '{}' --lr 1e-3 --batch_size 2 --steps 1 --output_dir '{}'",
      model_, data_, path("file/out")));
  EXPECT_EQ(done.code, 2) << done.err;
  EXPECT_THAT(done.err, HasSubstr("file/out"));
}

TEST_F(BadInput, FilesThreadsAndStacksThatCannotBeHad) {
  const Finished few = shell(fmt::format("ulimit -n 14; '{}' {}", kTrainer, flags()));
  EXPECT_EQ(few.code, 3) << few.err;
  EXPECT_THAT(few.err,
              HasSubstr("error: [limits] the limit of open files is 14 and 64 are needed"));
  expect_refused(flags("--optimizer_threads 1000000"), {"--optimizer_threads", "1000000", "4096"});
  const Finished small = shell(fmt::format("ulimit -s 64; '{}' {}", kTrainer, flags()));
  EXPECT_EQ(small.code, 3) << small.err;
  EXPECT_THAT(small.err, HasSubstr("error: [limits] the stack limit is 64 KiB"));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
  // Each thread of the pool wants 64 MiB of address space.
  const Finished many = shell(fmt::format("ulimit -s 65536; ulimit -v 16000000; '{}' {}", kTrainer,
                                          flags("--optimizer_threads 1000")));
  EXPECT_EQ(many.code, 3) << many.err;
  EXPECT_THAT(many.err, AllOf(HasSubstr("error: [limits] "), HasSubstr(" threads are needed and "),
                              HasSubstr("--optimizer_threads")));
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(BadInput, AFullDiskLeavesNoModelThatLooksWhole) {
  // Metrics fit below the limit of a file's size, the weights do not: the run is not begun.
  const Finished done =
      shell(fmt::format("trap '' XFSZ; ulimit -f 2000; '{}' {}", kTrainer, flags()));
  EXPECT_NE(done.code, 0);
  EXPECT_THAT(done.err, AllOf(HasSubstr("error: ["), HasSubstr("ulimit -f")));
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  EXPECT_FALSE(fs::exists(folder_ / "out/model/model.safetensors"));
}

// Saves and NVMe reads have threads, too: the run counts them before the start, so that none is
// missing later.
TEST_F(BadInput, ThreadsOfSavesAndOfNvmeAreCountedBeforeTheStart) {
  const std::vector<std::string> groups = machine::cgroup::folders("pids");
  const std::string group =
      groups.empty() ? "" : fmt::format("{}/tandem-test-{}", groups.front(), ::getpid());
  std::error_code error;
  if (groups.empty() || !fs::create_directory(group, error)) {
    GTEST_SKIP() << "no control group of its own can be made here";
  }
  const auto with = [&](int most, const std::string& more) {
    std::ofstream(group + "/pids.max") << most;
    return shell(fmt::format("echo 0 > '{}/cgroup.procs' && exec '{}' {} --io_backend threads",
                             group, kTrainer, flags(more)));
  };
  for (const std::string& more :
       {std::string("--save_every 1"),
        fmt::format("--save_every 1 --placement nvme --nvme_path '{}'", path(""))}) {
    int refused = 0;
    Finished done;
    for (int most = 4; most < 40; ++most) {  // from too few to enough
      fs::remove_all(path("out"));
      done = with(most, more);
      if (done.code == 0) {
        break;
      }
      ++refused;
      EXPECT_EQ(done.code, 3) << most << ": " << done.err;
      EXPECT_THAT(done.err, HasSubstr("error: [limits] "));
      EXPECT_EQ(done.out.find("Step "), std::string::npos) << done.out;
    }
    EXPECT_GT(refused, 0);
    EXPECT_EQ(done.code, 0);
    EXPECT_THAT(done.out, HasSubstr("checkpoint of step 1 in "));
  }
  ::rmdir(group.c_str());
}

// Each of them was another seed, without a word.
TEST_F(BadInput, ASeedOutOfRangeIsRefused) {
  for (const char* seed :
       {"-1", "18446744073709551616", "99999999999999999999999", "1.5", "1e3", ""}) {
    const Finished refused = shell(fmt::format("'{}' {} --seed '{}'", kTrainer, flags(), seed));
    EXPECT_EQ(refused.code, 2) << seed;
    EXPECT_THAT(refused.err, HasSubstr("--seed")) << seed;
    EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
}

TEST_F(BadInput, NumbersThatNothingHas) {
  const auto with = [&](const std::string& lr, const std::string& length, const std::string& more) {
    return fmt::format(
        "--model_name '{}' --dataset_name '{}' --lr {} --batch_size 2 --max_length {} "
        "--output_dir '{}' {}",
        model_, data_, lr, length, path("out"), more);
  };
  expect_refused(with("1e-3", "9223372036854775807", ""), {"--max_length", "1073741824"});
  expect_refused(with("1e-3", "32", "--steps 18446744073709551615"), {"--steps"});
  expect_refused(with("inf", "32", ""), {"--lr", "inf"});
  expect_refused(with("1e308", "32", ""), {"--lr", "1e+308"});
  expect_refused(with("1e-3", "32", "--weight_decay inf"), {"--weight_decay", "inf"});
  for (const char* gib : {"inf", "nan", "-1", "1e300"}) {
    expect_refused(with("1e-3", "32", fmt::format("--host_memory_gb {}", gib)),
                   {"--host_memory_gb"});
  }
}

TEST_F(BadInput, LongRowsTakeNoMemoryThatRecordsDoNotFill) {
  const Finished done = shell(fmt::format(
      "ulimit -v 40000000; '{}' --model_name '{}' --dataset_name '{}' --lr 1e-3 --batch_size 2 "
      "--max_length 1073741824 --steps 1 --output_dir '{}'",
      kTrainer, model_, data_, path("out")));
  EXPECT_EQ(done.code, 0) << done.err;
}

}  // namespace
}  // namespace tandem
