// DeepSpeed's runs with LAMB and Muon, step by step: what the config says, on the tiny model that
// its checkpoints have, on one rank and on three, at the run's stage and another.
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "actors/storage/safetensors.hpp"
#include "engine/engine.hpp"
#include "models/causal_lm.hpp"
#include "models/io/checkpoint.hpp"
#include "models/io/hf_config.hpp"
#include "tests/data/references.hpp"
#include "tests/support/tensor_file.hpp"
#include "tests/support/thread_ranks.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kAccumulation = 2;
constexpr std::int64_t kRows = 6;
// The errors of the same run in plain PyTorch (2.4e-7, 2.4e-5), with room for another sum order.
constexpr double kLossLimit = 2e-6;
constexpr double kUpdateLimit = 5e-5;
constexpr double kNormLimit = 2e-6;

std::vector<fs::path> cases() {
  std::vector<fs::path> folders;
  for (const fs::path& runs : test::references({"deepspeed/runs"}, {"oracles/lamb_muon"})) {
    for (const fs::directory_entry& entry : fs::directory_iterator(runs)) {
      if (fs::exists(entry.path() / "record.json")) {
        folders.push_back(entry.path());
      }
    }
  }
  std::ranges::sort(folders);
  return folders;
}

std::string replaced(const std::string& text, const std::string& key, const std::string& value) {
  const std::size_t at = text.find("\"" + key + "\":") + key.size() + 3;
  return text.substr(0, at) + value + text.substr(text.find_first_of(",}", at));
}

class DeepSpeedRun : public ::testing::TestWithParam<fs::path> {};

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::string> names;
  std::vector<std::vector<float>> before, after;
  bool operator==(const Trained&) const = default;
};

/// Every row has as many labels, so any division of a step's rows has the same mean.
Trained train(const fs::path& folder, simdjson::dom::element record, int stage,
              const std::shared_ptr<Communicator>& ranks) {
  const fs::path checkpoint = folder / std::string(std::string_view(record["checkpoint"]));
  const int world = ranks->world_size();
  std::string config = simdjson::minify(record["config"]);
  config = replaced(config, "train_micro_batch_size_per_gpu", std::to_string(kRows / world));
  config = replaced(config, "stage", std::to_string(stage));
  Model model = make_causal_lm(read_hf_config(checkpoint));
  const auto weights = std::make_shared<Checkpoint>(Checkpoint::open(checkpoint));
  model.source = [weights](const ParameterSpec& p, std::int64_t begin, std::int64_t end,
                           float* out) { weights->read_f32(p.name, begin, end, out); };
  EngineOptions options;
  options.compute_threads = 1;
  options.plans_run = false;
  Engine engine({.model = std::move(model),
                 .config = ConfigSource::of_text(config),
                 .options = options,
                 .communicator = ranks});
  Trained run;
  const auto keep = [&](std::vector<std::vector<float>>& into) {
    run.names.clear();
    engine.for_each_parameter([&](const ParameterSpec& p, std::span<const float> values) {
      run.names.push_back(p.name);
      into.emplace_back(values.begin(), values.end());
    });
  };
  keep(run.before);
  const auto file =
      SafetensorsFile::open(folder / std::string(std::string_view(record["batches"])));
  const at::Tensor tokens = test::read(file, "tokens");
  const at::Tensor labels = test::read(file, "labels");
  const std::int64_t own = kRows / world;
  for (std::size_t step = 0; step < simdjson::dom::array(record["steps"]).size(); ++step) {
    std::vector<Batch> batches;
    for (std::int64_t a = 0; a < kAccumulation; ++a) {
      const auto of_rank = [&](const at::Tensor& all) {
        return all[static_cast<std::int64_t>(step)][a]
            .narrow(0, ranks->rank() * own, own)
            .contiguous();
      };
      batches.push_back({.inputs = of_rank(tokens), .labels = of_rank(labels)});
    }
    const StepResult result = engine.train_step(batches);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.verdict.norm.value);
    EXPECT_NEAR(result.learning_rate, double(record["steps"].at(step)["lr"].at(0)), 1e-12);
  }
  keep(run.after);
  return run;
}

TEST_P(DeepSpeedRun, IsMadeStepByStep) {
  const fs::path& folder = GetParam();
  simdjson::dom::parser parser;
  const simdjson::dom::element record = parser.load((folder / "record.json").string());
  const auto stage = static_cast<int>(std::int64_t(record["config"]["zero_optimization"]["stage"]));
  fs::path weights_file;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with("weights_after_step")) {
      weights_file = entry.path();
    }
  }
  const auto file = SafetensorsFile::open(weights_file);
  struct Division {
    int world, stage;
  };
  for (const auto& [world, at] : {Division{1, stage}, {1, 3}, {3, 2}, {2, 3}}) {
    SCOPED_TRACE(fmt::format("{} ranks, stage {}", world, at));
    const auto all = on_ranks(world, [&](const std::shared_ptr<Communicator>& ranks) {
      return train(folder, record, at, ranks);
    });
    const Trained& run = all.front();
    EXPECT_EQ(all.back(), run) << "the ranks of one run agree";
    for (std::size_t step = 0; step < run.losses.size(); ++step) {
      const simdjson::dom::element wanted = record["steps"].at(step);
      EXPECT_NEAR(run.losses[step], double(wanted["loss"]), kLossLimit) << step;
      const double norm = double(wanted["grad_norm"]);
      EXPECT_NEAR(run.norms[step], norm, kNormLimit * norm) << step;
    }
    const auto options = at::TensorOptions().dtype(at::kFloat);
    double worst = 0;
    for (std::size_t i = 0; i < run.names.size(); ++i) {
      const TensorInfo* info = file.find(run.names[i]);
      const std::string name = info != nullptr ? run.names[i] : "fp32." + run.names[i];
      const at::Tensor wanted = test::read(file, name).flatten();
      const auto tensor = [&](const std::vector<float>& values) {
        return at::from_blob(const_cast<float*>(values.data()), {std::ssize(values)}, options);
      };
      const double error = (tensor(run.after[i]) - wanted).norm().item<double>();
      const double update = (wanted - tensor(run.before[i])).norm().item<double>();
      // Each side rounds a master once a step, by half a unit in its last place at most.
      const double rounding = 2 * static_cast<double>(run.losses.size()) * std::exp2(-24) *
                              wanted.norm().item<double>();
      EXPECT_LE(error, kUpdateLimit * update + rounding) << run.names[i];
      worst = std::max(worst, error / update);
    }
    EXPECT_GT(run.names.size(), 10U);
    RecordProperty("worst_rel_to_update", std::to_string(worst));
  }
}

INSTANTIATE_TEST_SUITE_P(LambMuon, DeepSpeedRun, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.filename().string(); });

}  // namespace
}  // namespace tandem
