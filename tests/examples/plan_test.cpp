// `tandem plan` and the run that it plans decide alike: the same line about the placement.
#include <cstdio>
#include <map>
#include <sstream>

#include "actors/storage/json.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

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
  const char* spec = "compute=50G,h2d=2GB,d2h=2GB,memory=128MB";
  int run = 0;
  for (const char* offload : {"none", "cpu", "half"}) {
    for (const char* more : {"", "--overlap off", "--placement stream --overlap comm",
                             "--placement gpu --overlap offload"}) {
      const std::string flags = fmt::format(
          "--model_name '{}' --deepspeed_config '{}' --batch_size 2 --max_length 16 "
          "--device sim --sim_spec {} --optimizer_threads 1 --compute_threads 1 {}",
          model, config(offload), spec, more);
      const Finished plan = shell(fmt::format("'{}/tandem' plan {}", test::bin_dir(), flags));
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
        test::bin_dir(), path("long"), more));
  };
  const Finished refused = plan("--batch_size 3");
  EXPECT_EQ(refused.code, 3) << refused.out << refused.err;
  EXPECT_THAT(refused.out, ::testing::HasSubstr("since attention_dropout is 0.1 and every head's"));
  EXPECT_THAT(refused.err, ::testing::HasSubstr("--batch_size 1 --gradient_accumulation_steps 3"));
}

/// A description of `layers` blocks in Llama's form.
std::string llama(int layers, int hidden, int intermediate, int vocabulary, int longest) {
  return fmt::format(
      R"({{"model_type": "llama", "num_hidden_layers": {}, "hidden_size": {},
           "intermediate_size": {}, "num_attention_heads": {}, "vocab_size": {},
           "max_position_embeddings": {}, "rms_norm_eps": 1e-5, "hidden_act": "silu"}})",
      layers, hidden, intermediate, hidden / 128, vocabulary, longest);
}

/// The plan of an accelerator with this memory is the same on a machine whose own updates are slow,
/// and on one where they are fast.
TEST_F(Plan, OfAnotherMachineIsTheSameEverywhere) {
  write("1b/config.json", llama(16, 2048, 8192, 128256, 8192));
  const auto plan = [&](const char* rate) {
    write(fmt::format("cache {}/bandwidths.tsv", rate),
          fmt::format("tandem bandwidths 2\n*\t{}\n", rate));
    return shell(fmt::format(
        "TANDEM_CACHE='{}' '{}/tandem' plan --model_name '{}' --gpu_memory_gb 24 "
        "--host_memory_gb 24 --batch_size 1 --max_length 2048 --activation_checkpointing",
        path(fmt::format("cache {}", rate)), test::bin_dir(), path("1b")));
  };
  const Finished slow = plan("1e9");
  EXPECT_EQ(slow.code, 0) << slow.err;
  EXPECT_THAT(slow.out, ::testing::HasSubstr("\nplacement "));
  for (const char* rate : {"5e9", "2e10", "4e10", "4e11"}) {
    EXPECT_EQ(plan(rate).out, slow.out) << rate;
  }
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
                    test::bin_dir(), path(model), more));
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
              ::testing::HasSubstr("smallest change that fits: --activation_offload 1\n"));
  const Finished large = plan("25b", "--batch_size 4 --max_length 2048");
  EXPECT_EQ(large.code, 0) << large.out << large.err;
  EXPECT_THAT(large.out, ::testing::HasSubstr("25.08 billion parameters"));
}

/// A run that has too little memory: its flags by name, so that an advice can replace some.
struct TooLarge {
  std::string what;
  std::string model;
  std::map<std::string, std::string> flags;
};

void PrintTo(const TooLarge& run, std::ostream* out) { *out << run.what; }

class Advice : public Plan, public ::testing::WithParamInterface<TooLarge> {
 protected:
  [[nodiscard]] Finished plan(const std::map<std::string, std::string>& flags,
                              const std::string& more = "") const {
    std::string words;
    for (const auto& [flag, value] : flags) {
      words += fmt::format(" {} {}", flag, value);
    }
    return shell(fmt::format("'{}/tandem' plan --model_name '{}'{} {}", test::bin_dir(),
                             path(GetParam().model), words, more));
  }

  /// The flags with one part of an advice.
  void apply(std::string part, std::map<std::string, std::string>& flags) const {
    const auto replace = [&part](const std::string& from, const std::string& to) {
      for (std::size_t at = 0; (at = part.find(from, at)) != std::string::npos; at += to.size()) {
        part.replace(at, from.size(), to);
      }
    };
    if (const std::size_t note = part.find(" ("); note != std::string::npos) {
      part.resize(note);
    }
    long ranks = 0;
    long hosts = 0;
    if (std::sscanf(part.c_str(), "%ld ranks on %ld such hosts", &ranks, &hosts) > 0) {
      flags["--world_size"] = std::to_string(ranks);
      if (hosts > 0) {
        flags["--ranks_per_host"] = std::to_string(ranks / hosts);
      }
      return;
    }
    const std::string config = " in the --deepspeed_config";
    if (const std::size_t at = part.find(config); at != std::string::npos) {
      std::string flags_behind = part.substr(at + config.size());
      part = "{" + part.substr(0, at) + "}";
      replace("FOLDER", path("."));
      flags["--deepspeed_config"] = fmt::format("'{}'", write("advised.json", part));
      part = std::move(flags_behind);
    }
    std::istringstream words(part);
    std::string flag;
    for (std::string word; words >> word;) {
      if (word.starts_with("--")) {
        flags[flag = word] = "";
      } else {
        flags[flag] = word == "FOLDER" ? fmt::format("'{}'", path(".")) : word;
      }
    }
  }

  /// The advice under `name` in the JSON of a plan.
  [[nodiscard]] static std::vector<std::string> parts_of(const std::string& json,
                                                         const std::string& name) {
    std::vector<std::string> parts;
    const JsonDocument found = JsonDocument::parse(json, {.where = "plan", .file = "its JSON"});
    for (const JsonValue& part : found.root().at(name).items()) {
      parts.emplace_back(part.string());
    }
    return parts;
  }
};

TEST_P(Advice, FitsWhereItIsPlanned) {
  write("qwen/config.json", llama(64, 5120, 25600, 151936, 32768));
  write("small/config.json", llama(16, 2048, 8192, 32000, 8192));
  const TooLarge& run = GetParam();
  const Finished refused = plan(run.flags);
  ASSERT_EQ(refused.code, 3) << refused.out << refused.err;
  EXPECT_THAT(refused.err, ::testing::HasSubstr("smallest change that fits: "));
  const std::string json = plan(run.flags, "--json").out;
  int advices = 0;
  for (const char* name : {"change", "more_ranks"}) {
    const std::vector<std::string> parts = parts_of(json, name);
    if (parts.empty()) {
      continue;
    }
    std::map<std::string, std::string> flags = run.flags;
    for (const std::string& part : parts) {
      EXPECT_THAT(refused.err, ::testing::HasSubstr(part));
      apply(part, flags);
    }
    const Finished advised = plan(flags);
    EXPECT_EQ(advised.code, 0) << refused.err << advised.out << advised.err;
    ++advices;
  }
  EXPECT_GT(advices, 0);
  if (run.what.starts_with("NothingElse")) {
    EXPECT_EQ(advices, 2) << "files, and more ranks: " << refused.err;
    EXPECT_THAT(refused.err, ::testing::AllOf(::testing::HasSubstr("nvme"),
                                              ::testing::HasSubstr("of a local disk); or "),
                                              ::testing::HasSubstr(" such hosts")));
  }
}

std::vector<TooLarge> too_large() {
  std::vector<TooLarge> runs;
  const auto add = [&runs](const std::string& what, const std::string& model,
                           std::map<std::string, std::string> flags) {
    flags.try_emplace("--dtype", "bf16");
    flags.try_emplace("--batch_size", "1");
    runs.push_back({what, model, std::move(flags)});
  };
  const std::map<std::string, std::string> card = {
      {"--device", "cuda"}, {"--gpu_memory_gb", "24"}, {"--host_memory_gb", "64"},
      {"--stage", "3"},     {"--max_length", "512"},   {"--activation_checkpointing", ""}};
  add("NothingElseFitsBesideACard", "qwen", card);
  auto with = [&card](const std::string& flag, const std::string& value) {
    std::map<std::string, std::string> flags = card;
    flags[flag] = value;
    return flags;
  };
  add("NothingElseFitsOnTheHost", "qwen", with("--placement", "cpu"));
  add("NothingElseFitsWithARatio", "qwen", with("--offload_ratio", "0.9"));
  add("NothingElseFitsAtStageZero", "qwen", with("--stage", "0"));
  add("StateAloneOnADisk", "qwen", with("--host_memory_gb", "150"));
  add("FourRanksOfAHost", "qwen", with("--world_size", "4"));
  add("RowsOfAMillionTokens", "qwen", with("--max_length", "32768"));
  for (const char* device : {"cpu", "cuda"}) {
    for (const char* gib : {"3", "6", "12"}) {
      add(fmt::format("Small_{}_{}", device, gib), "small",
          {{"--device", device},
           {"--gpu_memory_gb", gib},
           {"--host_memory_gb", gib},
           {"--batch_size", "8"}});
    }
  }
  add("SmallWithAdapters", "small",
      {{"--device", "cpu"}, {"--host_memory_gb", "3"}, {"--lora_r", "16"}, {"--batch_size", "8"}});
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Runs, Advice, ::testing::ValuesIn(too_large()),
                         [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace tandem
