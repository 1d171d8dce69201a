// A run that goes on from DeepSpeed's checkpoint makes DeepSpeed's next steps.
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
#include "models/foreign/foreign_state.hpp"
#include "models/io/hf_config.hpp"
#include "tests/models/foreign/import_support.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/process/warm_python.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSaved = 4;  // steps before the save
constexpr std::int64_t kSteps = 3;  // after it
constexpr std::int64_t kAccumulation = 2;

struct Limits {
  double loss;    // absolute
  double update;  // error of a tensor's change in the steps, L2
};

/// The folders of the tree's own checkpoints, or of all others that are there.
std::vector<fs::path> cases(bool own) {
  std::vector<fs::path> all;
  for (const fs::path& root : test::deepspeed_checkpoints()) {
    const std::vector<fs::path> found = test::recorded_checkpoints(root);
    if (test::is_own(root) == own) {
      all.insert(all.end(), found.begin(), found.end());
    }
  }
  return all;
}

class GoOn : public test::WithWarmPython<::testing::TestWithParam<fs::path>> {};

TEST_P(GoOn, MakesDeepSpeedsNextSteps) {
  const fs::path& folder = GetParam();
  const fs::path golden = folder.parent_path();
  const std::string name = folder.filename();
  simdjson::dom::parser parser;
  simdjson::dom::element record = parser.load((folder / "record.json").string());
  fs::path states = folder;
  if (std::string_view source; record["source"].get(source) == simdjson::SUCCESS) {
    states = folder / source;  // it was made of that one
    record = parser.load((states / "record.json").string());
  }
  const bool bf16 = std::string_view(record["dtype"]) == "bf16";
  const Limits limits = bf16 ? Limits{1e-3, 5e-2} : Limits{2e-6, 5e-5};

  const fs::path model_folder =
      golden / (name.starts_with("tied") ? "checkpoint_tied" : "checkpoint");
  Model model = make_causal_lm(read_hf_config(model_folder));
  // Every row has as many labels, so the number of ranks that shared a step does not matter.
  const std::string config = simdjson::minify(record["config"]);
  const std::string rows = "\"train_micro_batch_size_per_gpu\":";
  const std::size_t at = config.find(rows) + rows.size();
  const std::string for_one_rank =
      config.substr(0, at) + "6" + config.substr(config.find_first_of(",}", at));
  EngineOptions options;
  options.compute_threads = 1;
  options.plans_run = false;
  ImportedCheckpoint checkpoint = open_foreign_checkpoint(folder);
  const bool has_groups = name.starts_with("groups");  // norms without weight decay
  bool has_frozen = false;
  for (UnitSpec& unit : model.units) {
    for (ParameterSpec& parameter : unit.parameters) {
      const ImportedTensor* tensor = checkpoint.find(parameter.name);
      parameter.frozen = tensor != nullptr && tensor->frozen;
      has_frozen |= parameter.frozen;
      parameter.group = has_groups && parameter.shape.size() == 1 ? 1 : 0;
    }
  }
  EXPECT_EQ(has_frozen, name.starts_with("frozen"));
  ForeignState state = foreign_state(std::move(checkpoint), model);
  EXPECT_TRUE(state.moments);
  model.source = [](const ParameterSpec&, std::int64_t begin, std::int64_t end, float* out) {
    std::fill_n(out, end - begin, 0.0F);
  };
  std::vector<ParameterGroup> groups;
  if (has_groups) {
    groups = {ParameterGroup(), ParameterGroup{.weight_decay = 0.0}};
  }
  Engine engine({.model = std::move(model),
                 .config = ConfigSource::of_text(for_one_rank),
                 .options = options,
                 .parameter_groups = std::move(groups)});
  EXPECT_EQ(engine.load_foreign(std::move(state)).step, kSaved);

  const auto batches = SafetensorsFile::open(golden / "batches.safetensors");
  const at::Tensor tokens = test::read(batches, "tokens");
  const at::Tensor labels = test::read(batches, "labels");
  for (std::int64_t step = kSaved; step < kSaved + kSteps; ++step) {
    std::vector<Batch> micro_batches;
    for (std::int64_t a = 0; a < kAccumulation; ++a) {
      micro_batches.push_back({.inputs = tokens[step][a], .labels = labels[step][a]});
    }
    const StepResult result = engine.train_step(micro_batches);
    const simdjson::dom::element next = record["next"].at(static_cast<std::size_t>(step - kSaved));
    EXPECT_NEAR(result.loss, double(next["loss"]), limits.loss) << "step " << step + 1;
    EXPECT_NEAR(result.learning_rate, double(next["lr"].at(0)), 1e-12) << "step " << step + 1;
  }

  const auto before = SafetensorsFile::open(states / "state_at_save.safetensors");
  const auto after = SafetensorsFile::open(states / "weights_after_next.safetensors");
  std::size_t compared = 0;
  engine.for_each_parameter([&](const ParameterSpec& parameter, std::span<const float> values) {
    if (parameter.frozen) {
      return;
    }
    const at::Tensor wanted = test::read(after, "fp32." + parameter.name).flatten();
    const at::Tensor old = test::read(before, "fp32." + parameter.name).flatten();
    const at::Tensor got =
        at::from_blob(const_cast<float*>(values.data()), {std::ssize(values)}, at::kFloat);
    const double change = (wanted - old).norm().item<double>();
    // Each side rounds a master once a step, by half a unit in its last place at most: which is
    // more than that share of the update where weights are near 1, as in norms.
    const double rounding = 2 * kSteps * std::exp2(-24) * wanted.norm().item<double>();
    EXPECT_LE((got - wanted).norm().item<double>(), limits.update * change + rounding)
        << parameter.name;
    ++compared;
  });
  EXPECT_GT(compared, 10U);
}

std::string case_name(const ::testing::TestParamInfo<fs::path>& info) {
  return info.param.filename().string();
}

INSTANTIATE_TEST_SUITE_P(Small, GoOn, ::testing::ValuesIn(cases(true)), case_name);
INSTANTIATE_TEST_SUITE_P(Golden, GoOn, ::testing::ValuesIn(cases(false)), case_name);

}  // namespace
}  // namespace tandem
