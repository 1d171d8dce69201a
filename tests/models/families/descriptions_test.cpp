// Plans for the model families: units and tensors from config.json alone, for families that can be
// trained (the very units of the run) and for those that are only described.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/memory/memory_check.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/io/hf_config.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/python.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// What published models' config.json say of their sizes.
const fs::path kConfigs = test::source_path("tests/data/model_sizes");
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

Shapes shapes_of(const Model& model) {
  Shapes shapes;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      EXPECT_TRUE(shapes.emplace(parameter.name, parameter.shape).second) << parameter.name;
    }
  }
  return shapes;
}

std::int64_t count_of(const Model& model) {
  std::int64_t count = 0;
  for (const UnitSpec& unit : model.units) {
    count += unit.numel();
  }
  return count;
}

HfConfig sizes_of(const std::string& file) { return read_hf_config(kConfigs / file); }

TEST(Descriptions, HaveThePublishedNumbersOfParameters) {
  const std::map<std::string, std::int64_t> published = {
      {"Qwen3-0.6B.json", 596'049'920},
      {"Qwen3-14B.json", 14'768'307'200},
      {"Qwen3-30B-A3B.json", 30'532'122'624},
      {"Llama-3.1-8B.json", 8'030'261'248},
      {"Llama-3.3-70B.json", 70'553'706'496},
      {"Phi-4.json", 14'659'507'200},
      {"Seed-OSS-36B.assembled.json", 36'151'104'512},
      {"gpt-oss-20b.json", 20'914'757'184},
      {"gpt2.json", 124'439'808},
      {"Qwen2.5-7B.json", 7'615'616'512},
      {"Mistral-7B-v0.1.json", 7'241'732'096},
      {"Mixtral-8x7B-v0.1.json", 46'702'792'704},
      {"gemma-3-1b-it.json", 999'885'952}};
  for (const auto& [file, parameters] : published) {
    EXPECT_EQ(count_of(make_causal_lm(sizes_of(file))), parameters) << file;
  }
}

TEST(Descriptions, ListTheTensorsOfTheCheckpointOnce) {
  for (const char* file :
       {"Qwen3-0.6B.json", "gpt2.json", "Llama-3.1-8B.json", "Phi-4.json",
        "Seed-OSS-36B.assembled.json", "Qwen3-30B-A3B.json", "gpt-oss-20b.json", "Qwen2.5-7B.json",
        "Mistral-7B-v0.1.json", "Mixtral-8x7B-v0.1.json", "gemma-3-1b-it.json"}) {
    const HfConfig config = sizes_of(file);
    const Model model = make_causal_lm(config);
    EXPECT_NE(model.segments.front().run, nullptr);
    Shapes checkpoint;
    for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
      checkpoint.emplace(tensor.name, tensor.shape);
    }
    EXPECT_EQ(shapes_of(model), checkpoint) << file;
  }
}

TEST(Descriptions, LeafModulesCutUnitsAndKeepTheOrder) {
  const HfConfig config = sizes_of("Qwen3-30B-A3B.json");
  const auto names_of = [&](std::string_view leaf, std::size_t units) {
    const Model model = make_causal_lm(config, leaf);
    EXPECT_EQ(model.units.size(), units) << leaf;
    std::vector<std::string> names;
    for (const WeightRef& ref : model.segments[1].weights) {
      names.push_back(model.units[ref.unit].parameters[ref.parameter].name);
    }
    return names;
  };
  const auto whole = names_of("", 50);
  EXPECT_EQ(whole.size(), 9U + 3 * 128);
  EXPECT_EQ(names_of("Qwen3MoeDecoderLayer", 50), whole);
  EXPECT_EQ(names_of("Qwen3MoeSparseMoeBlock", 50 + 48), whole);
  EXPECT_EQ(names_of("Qwen3MoeMLP", 50 + 48 * 129), whole);

  const HfConfig mixtral = sizes_of("Mixtral-8x7B-v0.1.json");
  for (const auto& [leaf, units] :
       std::map<std::string_view, std::size_t>{{"", 34},
                                               {"MixtralSparseMoeBlock", 34 + 32},
                                               {"MixtralBlockSparseTop2MLP", 34 + 32 * 9}}) {
    EXPECT_EQ(make_causal_lm(mixtral, leaf).units.size(), units) << leaf;
  }
}

/// Transformers' own parameters on the meta device; joined experts are left to the count.
constexpr const char* kScript = R"(
import json, math, pathlib, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
apart, renamed = ".mlp.experts.", ".block_sparse_moe."
for mine in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    ours = {name.replace(renamed, ".mlp."): shape for name, shape in json.loads(mine.read_text()).items()}
    values = json.loads((pathlib.Path(sys.argv[2]) / mine.name).read_text())
    values.pop("quantization_config", None)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    theirs = {name: list(value.shape) for name, value in model.named_parameters()}
    total = lambda shapes: sum(math.prod(shape) for shape in shapes.values())
    assert total(ours) == total(theirs), (mine.name, total(ours), total(theirs))
    if any(apart + "0." in name for name in ours):  # each expert's matrices apart, Transformers joins them
        ours, theirs = ({n: s for n, s in one.items() if apart not in n} for one in (ours, theirs))
    assert ours == theirs, (mine.name, sorted(set(map(str, ours.items())) ^ set(map(str, theirs.items())))[:6])
    print(mine.name)
)";

TEST(Descriptions, HaveTransformersNamesAndShapes) {
  if (!test::python_has("transformers")) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("described {}", ::getpid());
  fs::create_directories(folder / "ours");
  std::ofstream(folder / "compare.py") << kScript;
  // One of each family; layers of one model are alike.
  const std::vector<std::string> files = {"Qwen3-0.6B.json",
                                          "Qwen3-30B-A3B.json",
                                          "Llama-3.1-8B.json",
                                          "Phi-4.json",
                                          "Seed-OSS-36B.assembled.json",
                                          "gpt-oss-20b.json",
                                          "gpt2.json",
                                          "Qwen2.5-7B.json",
                                          "Mistral-7B-v0.1.json",
                                          "Mixtral-8x7B-v0.1.json",
                                          "gemma-3-1b-it.json"};
  fs::create_directories(folder / "configs");
  for (const std::string& file : files) {
    std::string json = "{";
    for (const auto& [name, shape] : shapes_of(make_causal_lm(sizes_of(file)))) {
      json +=
          fmt::format("{}\"{}\": [{}]", json.size() > 1 ? ", " : "", name, fmt::join(shape, ", "));
    }
    std::ofstream(folder / "ours" / file) << json << "}";
    std::ofstream(folder / "configs" / file) << sizes_of(file).json;
  }
  const int status =
      std::system(fmt::format("'{0}' '{1}/compare.py' '{1}/ours' '{1}/configs' >'{1}/log' 2>&1",
                              test::kPython, folder.string())
                      .c_str());
  std::ifstream log(folder / "log");
  const std::string text(std::istreambuf_iterator<char>(log), {});
  EXPECT_EQ(status, 0) << text;
  for (const std::string& file : files) {
    EXPECT_NE(text.find(file), std::string::npos) << file << " was compared";
  }
  fs::remove_all(folder);
}

/// An H200 beside 128 GiB of host memory.
FitReport on_h200(const std::string& file, PlanInput input) {
  input.shape.type = DType::kBF16;
  input.zero.stage = 3;
  input.zero.offload_optimizer.device = "cpu";
  input.accelerator = true;
  input.shape.engine.activation_checkpointing = true;
  const MemoryLimits limits = {.device = MemoryLimit{139 * kGiB, "of an H200"},
                               .host = MemoryLimit{128 * kGiB, "of the host"}};
  return check_fit(make_causal_lm(sizes_of(file)), input, limits);
}

TEST(Descriptions, PlansOfLargeModelsAreSane) {
  const PlanInput run = {.rows = 4, .length = 4096};
  const FitReport qwen = on_h200("Qwen3-14B.json", run);
  EXPECT_FALSE(qwen.lacks) << qwen.advice();
  EXPECT_GT(qwen.plan.of(MemoryPurpose::kMoments, MemoryKind::kDevice), 0);
  EXPECT_GT(qwen.plan.of(MemoryPurpose::kMoments, MemoryKind::kHost), 0);

  PlanInput four = run;
  four.world_size = 4;
  four.ranks_per_host = 1;
  const FitReport seventy_on_four = on_h200("Llama-3.3-70B.json", four);
  ASSERT_TRUE(seventy_on_four.change) << "fp32 state and sums are 16 bytes for each parameter";
  EXPECT_EQ(seventy_on_four.change->parts.size(), 1U) << seventy_on_four.advice();
  EXPECT_FALSE(on_h200("Llama-3.3-70B.json", seventy_on_four.change->input).lacks);
  four.ranks_per_host = 4;  // 128 GiB for all of them
  const FitReport crowded = on_h200("Llama-3.3-70B.json", four);
  ASSERT_TRUE(crowded.lacks);
  // Gradients of several ranks are added up on the host, 263 GiB: they leave with the weights.
  ASSERT_TRUE(crowded.change) << crowded.advice();
  EXPECT_TRUE(crowded.change->input.shape.engine.nvme.weights_in_memory) << crowded.advice();
  EXPECT_FALSE(on_h200("Llama-3.3-70B.json", crowded.change->input).lacks);
  ASSERT_TRUE(crowded.ranks) << crowded.advice();
  EXPECT_EQ(crowded.ranks->text(), "12 ranks on 3 such hosts");

  const FitReport oss = on_h200("gpt-oss-20b.json", run);
  ASSERT_TRUE(oss.lacks) << "fp32 state of 20 billion parameters";
  ASSERT_TRUE(oss.change) << oss.advice();
  EXPECT_FALSE(on_h200("gpt-oss-20b.json", oss.change->input).lacks);

  const FitReport seventy = on_h200("Llama-3.3-70B.json", run);
  EXPECT_TRUE(seventy.lacks) << "on one accelerator";
}

}  // namespace
}  // namespace tandem
