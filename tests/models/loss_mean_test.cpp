// The mean in a step's loss: five steps of unequal micro-batches against PyTorch's, on 1, 2 and 4
// ranks, with and without clipping, and with a micro-batch that has no label.
#include <filesystem>
#include <ostream>

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

constexpr int kMicroBatches = 4;  // per step

struct Case {
  const char* run;
  LossMean mean;
  const char* batches;
  const char* final_weights;  // empty: not stored
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.run; }

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  std::vector<std::string> names;
  bool operator==(const Trained&) const = default;
};

Trained train(const Case& c, const fs::path& folder, const fs::path& checkpoint, double clipping,
              const std::shared_ptr<Communicator>& ranks) {
  const int world = ranks->world_size();
  const int rank = ranks->rank();
  Model model = make_causal_lm(read_hf_config(checkpoint));
  const auto weights = std::make_shared<Checkpoint>(Checkpoint::open(checkpoint));
  model.source = [weights](const ParameterSpec& p, std::int64_t begin, std::int64_t end,
                           float* out) { weights->read_f32(p.name, begin, end, out); };
  EngineOptions options;
  options.compute_threads = 1;
  options.plans_run = false;
  options.loss_mean = c.mean;
  Engine engine({.model = std::move(model),
                 .config = ConfigSource::of_text(fmt::format(
                     R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": {},
                "gradient_clipping": {}, "zero_optimization": {{"stage": {}}},
                "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "betas": [0.9, 0.999],
                                                            "eps": 1e-8, "weight_decay": 0.01}}}}}})",
                     kMicroBatches / world, clipping, world == 1 ? 0 : 3)),
                 .options = options,
                 .communicator = ranks});
  const auto file = SafetensorsFile::open(folder / c.batches);
  const at::Tensor tokens = test::read(file, "tokens");
  const at::Tensor labels = test::read(file, "labels");
  Trained run;
  for (std::int64_t step = 0; step < tokens.size(0); ++step) {
    std::vector<Batch> batches;
    for (int a = 0; a < kMicroBatches / world; ++a) {
      const int m = a * world + rank;
      batches.push_back({.inputs = tokens[step][m], .labels = labels[step][m]});
    }
    const StepResult result = engine.train_step(batches);
    run.losses.push_back(result.loss);
    run.norms.push_back(result.verdict.norm.value);
  }
  engine.for_each_parameter([&](const ParameterSpec& p, std::span<const float> values) {
    run.names.push_back(p.name);
    run.weights.emplace_back(values.begin(), values.end());
  });
  return run;
}

void expect_the_trace_of(const fs::path& folder, const Case& c) {
  simdjson::dom::parser parser;
  const simdjson::dom::element expected = parser.load((folder / "expected.json").string());
  const fs::path checkpoint = test::checkpoint_of(folder, expected);
  const double loss_limit = double(expected["recommended"]["loss abs"]);
  const double norm_limit = double(expected["recommended"]["grad norm rel"]);
  const double weight_limit = double(expected["recommended"]["final weights rel to update"]);
  for (const bool clips : {false, true}) {
    const std::string name = std::string(c.run) + (clips ? "_clip" : "");
    SCOPED_TRACE(name);
    const simdjson::dom::element run = expected["runs"][name];
    const double clipping = double(run["gradient_clipping"]);
    Trained alone;
    for (const int world : {1, 2, 4}) {
      const auto all = on_ranks(world, [&](const std::shared_ptr<Communicator>& ranks) {
        return train(c, folder, checkpoint, clipping, ranks);
      });
      for (const Trained& one : all) {
        EXPECT_EQ(one, all.front()) << "the ranks of one run agree";
      }
      if (world == 1) {
        alone = all.front();
      }
      EXPECT_EQ(all.front(), alone) << world << " ranks";
    }
    for (std::size_t step = 0; step < alone.losses.size(); ++step) {
      const simdjson::dom::element wanted = run["steps"].at(step);
      EXPECT_NEAR(alone.losses[step], double(wanted["loss"]), loss_limit) << step;
      const double norm = double(wanted["grad_norm"]);
      EXPECT_NEAR(alone.norms[step], norm, norm_limit * norm) << step;
    }
    if (clips || *c.final_weights == 0) {
      continue;
    }
    const auto after = SafetensorsFile::open(folder / c.final_weights);
    const Checkpoint before = Checkpoint::open(checkpoint);
    for (std::size_t i = 0; i < alone.names.size(); ++i) {
      const at::Tensor wanted = test::read(after, alone.names[i]).flatten();
      at::Tensor old = at::empty_like(wanted);
      before.read_f32(alone.names[i], 0, wanted.numel(), old.data_ptr<float>());
      const at::Tensor got =
          at::from_blob(alone.weights[i].data(), {std::ssize(alone.weights[i])}, at::kFloat);
      EXPECT_LE((got - wanted).norm().item<double>(),
                weight_limit * (wanted - old).norm().item<double>())
          << alone.names[i];
    }
  }
}

class LossMeans : public ::testing::TestWithParam<Case> {};

TEST_P(LossMeans, AreThoseOfPyTorchOnAnyNumberOfRanks) {
  for (const fs::path& folder :
       test::references({"packing/loss_mean"}, {"oracles/packing/loss_mean_qwen3"})) {
    SCOPED_TRACE(folder.string());
    expect_the_trace_of(folder, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LossMeans,
    ::testing::Values(Case{"micro_batches", LossMean::kMicroBatches, "batches.safetensors",
                           "final_micro_batches.safetensors"},
                      Case{"tokens", LossMean::kTokens, "batches.safetensors",
                           "final_tokens.safetensors"},
                      Case{"tokens_empty", LossMean::kTokens, "batches_empty.safetensors", ""}),
    [](const ::testing::TestParamInfo<Case>& info) { return std::string(info.param.run); });

}  // namespace
}  // namespace tandem
