// Training adapters against PEFT's traces, at stages 0 and 3, on 1 and 2 ranks; the folder that is
// saved, merging it, and going on from a checkpoint.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "engine/engine.hpp"
#include "models/merge_adapters.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/models/lora/oracle.hpp"
#include "tests/support/tensor_file.hpp"
#include "tests/support/thread_ranks.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::LoraOracle;
using test::read;

constexpr int kMicroBatches = 2;  // per step

struct Way {
  int stage = 0;
  int ranks = 1;
  bool recomputes = false;
  std::string offload = "none";  // the optimizer's
};

std::string config_text(const Way& way) {
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": {},
           "gradient_clipping": 1.0,
           "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0,
                                  "offload_optimizer": {{"device": "{}"}}}},
           "optimizer": {{"type": "AdamW", "params": {{"lr": 5e-3, "betas": [0.9, 0.999],
                                                       "eps": 1e-8, "weight_decay": 0.01}}}}}})",
      kMicroBatches / way.ranks, way.stage, way.offload);
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> weights;
  std::size_t state_bytes = 0;
  bool operator==(const Trained&) const = default;
};

class TrainingRun {
 public:
  TrainingRun(const LoraOracle& oracle, const Way& way, const std::shared_ptr<Communicator>& ranks)
      : way_(way), engine_(arguments(oracle, way, ranks)) {
    const auto file = SafetensorsFile::open(oracle.folder() / "batches.safetensors");
    tokens_ = read(file, "tokens");
    labels_ = read(file, "labels");
  }

  void train(std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step < last; ++step) {
      std::vector<Batch> batches;
      for (int a = 0; a < kMicroBatches / way_.ranks; ++a) {
        const int m = a * way_.ranks + engine_.rank();
        batches.push_back({.inputs = tokens_[step][m], .labels = labels_[step][m]});
      }
      const StepResult result = engine_.train_step(batches);
      trained_.losses.push_back(result.loss);
      trained_.norms.push_back(result.verdict.norm.value);
    }
  }
  Trained result() {
    engine_.for_each_parameter([&](const ParameterSpec& p, std::span<const float> values) {
      trained_.weights[p.name] = {values.begin(), values.end()};
    });
    return trained_;
  }
  Engine& engine() { return engine_; }
  [[nodiscard]] std::int64_t steps() const { return tokens_.size(0); }

 private:
  static InitializeArgs arguments(const LoraOracle& oracle, const Way& way,
                                  const std::shared_ptr<Communicator>& ranks) {
    EngineOptions options;
    options.compute_threads = 1;
    options.plans_run = false;
    options.activation_checkpointing = way.recomputes;
    return {.model = oracle.model("adapter_initial"),
            .config = ConfigSource::of_text(config_text(way)),
            .options = options,
            .communicator = ranks};
  }

  Way way_;
  Engine engine_;
  at::Tensor tokens_, labels_;
  Trained trained_;
};

class TrainingAdapters : public testing::TestWithParam<LoraOracle> {
 protected:
  static const LoraOracle& oracle() { return GetParam(); }

  /// All steps; the first rank saves the adapters in `folder`, if there is one.
  static Trained train(const Way& way, const fs::path& folder = {}) {
    const auto all = on_ranks(way.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
      TrainingRun run(oracle(), way, ranks);
      run.train(0, run.steps());
      if (!folder.empty()) {
        save_adapters(run.engine(), folder, TensorType::kF32, oracle().lora(), oracle().config(),
                      "../base");
      }
      return run.result();
    });
    for (const Trained& one : all) {
      EXPECT_EQ(one, all.front()) << "the ranks of one run agree";
    }
    return all.front();
  }
  static at::Tensor values_of(const Trained& run, const std::string& name, const at::Tensor& like) {
    return at::tensor(at::ArrayRef<float>(run.weights.at(name))).view(like.sizes());
  }
};

TEST_P(TrainingAdapters, IsThatOfPeftAtAnyStageOnAnyRanks) {
  simdjson::dom::parser parser;
  const simdjson::dom::element expected = parser.load((oracle().folder() / "losses.json").string());
  const simdjson::dom::element limits = expected["recommended"];
  const Trained alone = train({});
  for (const Way& way : {Way{.stage = 3}, Way{.stage = 0, .ranks = 2}, Way{.stage = 1, .ranks = 2},
                         Way{.stage = 2, .ranks = 2}, Way{.stage = 3, .ranks = 2},
                         Way{.stage = 3, .ranks = 2, .recomputes = true, .offload = "cpu"}}) {
    EXPECT_EQ(train(way), alone) << "stage " << way.stage << ", ranks " << way.ranks;
  }
  const double loss_limit = double(limits["trace loss abs"]);
  const double norm_limit = double(limits["trace grad norm rel"]);
  for (std::size_t step = 0; step < alone.losses.size(); ++step) {
    const simdjson::dom::element both = expected["loss"].at(step);
    EXPECT_NEAR(alone.losses[step], (double(both.at(0)) + double(both.at(1))) / 2, loss_limit)
        << step;
    const double norm = double(expected["grad_norm"].at(step));
    EXPECT_NEAR(alone.norms[step], norm, norm_limit * norm) << step;
  }
  const auto before =
      SafetensorsFile::open(oracle().folder() / "adapter_initial/adapter_model.safetensors");
  const auto after =
      SafetensorsFile::open(oracle().folder() / "adapter_final/adapter_model.safetensors");
  for (const TensorInfo& tensor : after.tensors()) {
    const at::Tensor wanted = read(after, tensor.name);
    const std::string name = tensor.name.substr(std::string_view("base_model.model.").size());
    const double moved = (wanted - read(before, tensor.name)).norm().item<double>();
    EXPECT_LE((values_of(alone, name, wanted) - wanted).norm().item<double>(),
              double(limits["final adapter rel to update"]) * moved)
        << name;
  }
  const Checkpoint base = Checkpoint::open(oracle().checkpoint());
  for (const std::string& name : base.names()) {
    std::vector<float> values(static_cast<std::size_t>(base.at(name).numel()));
    base.read_f32(name, 0, std::ssize(values), values.data());
    EXPECT_EQ(alone.weights.at(name), values) << name << " is frozen";
  }
}

std::map<std::string, std::vector<std::int64_t>> shapes_in(const fs::path& folder) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  const auto file = SafetensorsFile::open(folder / kAdapterWeightsFile);
  for (const TensorInfo& tensor : file.tensors()) {
    shapes[tensor.name] = tensor.shape;
    EXPECT_GT(tensor.size_bytes, 0U) << tensor.name;
  }
  return shapes;
}

TEST_P(TrainingAdapters, AreSavedAsPeftSavesThem) {
  const fs::path wanted = oracle().folder() / "adapter_final";
  const std::map<std::string, std::vector<std::int64_t>> shapes = shapes_in(wanted);
  simdjson::dom::parser parser;
  const std::string config = simdjson::minify(parser.load((wanted / kAdapterConfigFile).string()));
  std::string bytes;
  for (const Way& way : {Way{}, Way{.stage = 0, .ranks = 2}, Way{.stage = 1, .ranks = 2},
                         Way{.stage = 2, .ranks = 2}, Way{.stage = 3, .ranks = 2}}) {
    const test::TempDir dir;
    const fs::path folder = dir / "adapter";
    (void)train(way, folder);
    EXPECT_EQ(shapes_in(folder), shapes) << way.stage;
    simdjson::dom::parser ours;
    std::string text = simdjson::minify(ours.load((folder / kAdapterConfigFile).string()));
    text.replace(text.find("\"../base\""), 9,
                 simdjson::minify(parser.parse(config)["base_model_name_or_path"].value_unsafe()));
    EXPECT_EQ(text, config);
    std::string file = read_file(folder / kAdapterWeightsFile, "test", 1U << 20);
    EXPECT_TRUE(bytes.empty() || bytes == file) << "the same file at every stage";
    bytes = std::move(file);
  }
}

/// A tensor of whichever file has it.
at::Tensor tensor_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto& files = checkpoint.files();
  return read(
      *std::ranges::find_if(files, [&](const auto& file) { return file.find(name) != nullptr; }),
      name);
}

TEST_P(TrainingAdapters, AreMergedIntoTheirBase) {
  simdjson::dom::parser parser;
  const simdjson::dom::element limits =
      parser.load((oracle().folder() / "losses.json").string())["recommended"];
  const test::TempDir dir;
  const MergedAdapters merged =
      merge_adapters(AdapterFolder::open(oracle().folder() / "adapter_final"),
                     oracle().checkpoint(), dir / "merged");
  const auto wanted = SafetensorsFile::open(oracle().folder() / "merged.safetensors");
  EXPECT_EQ(merged.adapted, wanted.tensors().size());
  EXPECT_EQ(merged.replaced, 0U);
  const Checkpoint base = Checkpoint::open(oracle().checkpoint());
  const Checkpoint after = Checkpoint::open(dir / "merged");
  EXPECT_EQ(after.names(), base.names());
  for (const std::string& name : base.names()) {
    const at::Tensor got = tensor_of(after, name);
    const at::Tensor expected = test::find_tensor(wanted, name);
    if (expected.defined()) {
      EXPECT_LE((got - expected).abs().max().item<double>(),
                double(limits["merged weights max abs"]))
          << name;
    } else {
      EXPECT_TRUE(at::equal(got, tensor_of(base, name))) << name;
    }
  }
  const auto file = SafetensorsFile::open(oracle().folder() / "logits.safetensors");
  test::MathHarness harness(make_causal_lm(read_hf_config(dir / "merged")), at::kFloat,
                            LoraOracle::base_source(dir / "merged"));
  const at::Tensor mask = read(file, "attention_mask").to(at::kBool);
  const at::Tensor difference =
      (harness.logits(read(file, "input_ids")) - read(file, "merged")).abs().amax(-1);
  EXPECT_LE(difference.masked_select(mask).max().item<double>(), 1e-5);
}

TEST_P(TrainingAdapters, GoOnFromACheckpointOnOtherRanks) {
  const Trained straight = train({.stage = 3});
  const test::TempDir dir;
  (void)on_ranks(1, [&](const std::shared_ptr<Communicator>& ranks) {
    TrainingRun run(oracle(), {.stage = 3, .offload = "cpu"}, ranks);
    run.train(0, 4);
    EXPECT_TRUE(run.engine().save_checkpoint((dir / "checkpoints").string()).error.empty());
    return 0;
  });
  for (const Way& way : {Way{.stage = 3}, Way{.stage = 3, .ranks = 2, .offload = "cpu"},
                         Way{.stage = 2, .ranks = 2}}) {
    const auto all = on_ranks(way.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
      TrainingRun run(oracle(), way, ranks);
      (void)run.engine().load_checkpoint((dir / "checkpoints").string());
      run.train(4, run.steps());
      return run.result();
    });
    EXPECT_EQ(all.front().weights, straight.weights) << way.stage << ' ' << way.ranks;
    EXPECT_EQ(all.front().losses,
              std::vector<double>(straight.losses.begin() + 4, straight.losses.end()));
  }
}

TEST_P(TrainingAdapters, HoldStateOfTheirOwnAlone) {
  const auto bytes_with = [&](const std::function<Model()>& make) {
    Engine engine({.model = make(),
                   .config = ConfigSource::of_text(config_text({.stage = 3})),
                   .options = {.plans_run = false, .compute_threads = 1}});
    return engine.resident_bytes().total();
  };
  const std::size_t adapters = bytes_with([] { return oracle().model("adapter_initial"); });
  const std::size_t whole = bytes_with([] {
    Model model = make_causal_lm(oracle().config());
    model.source = LoraOracle::base_source(oracle().checkpoint());
    return model;
  });
  // The base's moments, gradients and accumulators, 16 bytes for each of its parameters, are gone.
  if (!test::is_own(oracle().folder())) {  // the adapters of a small base are larger than it
    EXPECT_LT(adapters, whole / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainingAdapters, testing::ValuesIn(test::lora_oracles()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace
}  // namespace tandem
