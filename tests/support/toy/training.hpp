// tests/support/toy/training.hpp — trains the toy model under a setting, and keeps everything that
// must not change.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "engine/device/gpu.hpp"
#include "engine/engine.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/toy/model.hpp"

namespace tandem::toy {

struct TrainingRun {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<double> scales;
  std::vector<std::vector<float>> weights;
  bool operator==(const TrainingRun&) const = default;
};

/// Where two runs differ is seen side by side: numbers with all their digits, and of each weight
/// the digits' sum.
inline void PrintTo(const TrainingRun& run, std::ostream* out) {
  std::vector<std::uint32_t> weights;
  for (const std::vector<float>& values : run.weights) {
    std::uint32_t sum = 0;
    for (const float value : values) {
      sum = sum * 31 + std::bit_cast<std::uint32_t>(value);
    }
    weights.push_back(sum);
  }
  *out << fmt::format("losses {}, norms {}, scales {}, weights {::x}", run.losses, run.norms,
                      run.scales, weights);
}

struct Setting {
  int stage = 3;
  Overlap overlap = Overlap::kFull;
  bool checkpointing = false;
  int optimizer_threads = 1;
  int gather_slots = 0;
  int accumulation = 1;
  std::string type = "fp32";
  double clip = 0.01;  // acts at every step
  std::int64_t persistent_elements = 0;
  Speculate speculate = Speculate::kOn;
  double forced_misses = 0;
  int inflight_buckets = 0;
  StateLayout state_layout = StateLayout::kFp32;
  DeviceKind device = DeviceKind::kCpu;
  OpenGpu open_gpu;
  Placement placement = Placement::kAuto;
  std::vector<StatePlacement> placements = {};
  std::optional<std::int64_t> weights_in_memory = {};  // NvmeOptions
  // Links so fast that a test does not wait for them.
  SimSpec sim = {.to_device_bytes_per_s = 1e12, .to_host_bytes_per_s = 1e12, .latency_s = 0};
  std::string optimizer = R"({"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})";
  std::string blocks;  // further members of the config, each with a comma before it
};

// Values of Setting::optimizer whose update depends on a whole tensor.
inline const std::string kToyLamb =
    R"({"type": "Lamb", "params": {"lr": 0.02, "weight_decay": 0.1, "max_coeff": 0.9}})";
inline const std::string kToyMuon =
    R"({"type": "Muon", "params": {"lr": 0.03, "adam_lr": 0.01, "weight_decay": 0.1}})";

inline Config config_of(const Setting& setting, int world_size = 1) {
  return parse_config(
      fmt::format(
          R"({{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": {},
               "gradient_clipping": {}, "bf16": {{"enabled": {}}},
               "fp16": {{"enabled": {}, "initial_scale_power": 12, "loss_scale_window": 2}},
               "optimizer": {},
               "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": {},
                                      "offload_optimizer": {{"device": "cpu"}}}}{}}})",
          setting.accumulation, setting.clip, setting.type == "bf16", setting.type == "fp16",
          setting.optimizer, setting.stage, setting.persistent_elements, setting.blocks),
      "test", world_size);
}

inline InitializeArgs arguments(const Setting& setting,
                                std::shared_ptr<Communicator> communicator = nullptr) {
  const int world_size = communicator != nullptr ? communicator->world_size() : 1;
  InitializeArgs args{.model = toy::model(), .config = config_of(setting, world_size)};
  args.communicator = std::move(communicator);
  args.options.device = setting.device;
  args.options.open_gpu = setting.open_gpu;
  args.options.sim = setting.sim;
  args.options.placement = setting.placement;
  args.options.placements = setting.placements;
  args.options.nvme.weights_in_memory = setting.weights_in_memory;
  args.options.overlap = setting.overlap;
  args.options.speculate = setting.speculate;
  args.options.forced_misses = setting.forced_misses;
  args.options.inflight_buckets = setting.inflight_buckets;
  args.options.state_layout = setting.state_layout;
  args.options.activation_checkpointing = setting.checkpointing;
  args.options.optimizer_threads = setting.optimizer_threads;
  args.options.gather_slots = setting.gather_slots;
  args.options.compute_threads = 1;
  args.options.plans_run = false;  // placements are those asked for, and nothing is measured
  return args;
}

/// Trains this rank's part: micro-batch a * world + rank of each step is its micro-step a.
inline TrainingRun train(const Setting& setting, int steps = 6,
                         std::shared_ptr<Communicator> communicator = nullptr) {
  Engine engine(arguments(setting, std::move(communicator)));
  TrainingRun run;
  for (int step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    for (int a = 0; a < setting.accumulation; ++a) {
      batches.push_back(
          toy::batch((step * setting.accumulation + a) * engine.world_size() + engine.rank()));
    }
    const StepResult result = engine.train_step(batches);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.verdict.norm.value);
    run.scales.push_back(result.loss_scale);
  }
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    run.weights.emplace_back(values.begin(), values.end());
  });
  return run;
}

/// The same on ranks that are threads; all of them see the same run.
inline TrainingRun train_on_ranks(const Setting& setting, int world_size, int steps) {
  const std::vector<TrainingRun> runs =
      on_ranks(world_size, [&](std::shared_ptr<Communicator> communicator) {
        return train(setting, steps, std::move(communicator));
      });
  for (const TrainingRun& run : runs) {
    EXPECT_EQ(run, runs.front()) << "the ranks of one run agree";
  }
  return runs.front();
}

/// A limit that some of a run's norms are above and some below: the middle one of those without a
/// limit.
inline double middle_norm(Setting setting, int steps) {
  setting.clip = 0;
  setting.overlap = Overlap::kOff;
  std::vector<double> norms = train(setting, steps).norms;
  std::ranges::sort(norms);
  return norms[norms.size() / 2];
}

/// Names of cases of (type, ranks).
inline std::string type_and_ranks(
    const ::testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  return fmt::format("{}_{}ranks", std::get<0>(info.param), std::get<1>(info.param));
}

}  // namespace tandem::toy
