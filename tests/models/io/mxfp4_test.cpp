// Experts of four bits: values, the transposed layout, slices, and checkpoints that are not whole.
#include "models/io/mxfp4.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/python.hpp"

namespace tandem {
namespace {

using test::expect_error;
using test::TempDir;

struct Packed {
  std::int64_t matrices, in, out;
  std::vector<std::byte> blocks, scales;

  Packed(std::int64_t matrices, std::int64_t in, std::int64_t out, unsigned seed = 1)
      : matrices(matrices), in(in), out(out) {
    std::mt19937 random(seed);
    const std::int64_t groups = matrices * out * in / 32;
    for (std::int64_t i = 0; i < 16 * groups; ++i) {
      blocks.push_back(static_cast<std::byte>(random() % 256));
    }
    for (std::int64_t i = 0; i < groups; ++i) {
      scales.push_back(static_cast<std::byte>(100 + random() % 50));
    }
  }

  /// By the definition, one at a time.
  float value(std::int64_t m, std::int64_t i, std::int64_t o) const {
    constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    const std::int64_t group = (m * out + o) * (in / 32) + i / 32;
    const auto both =
        static_cast<unsigned>(blocks[static_cast<std::size_t>(16 * group + i % 32 / 2)]);
    const unsigned code = i % 2 == 0 ? both % 16 : both / 16;
    const int scale = static_cast<int>(scales[static_cast<std::size_t>(group)]) - 127;
    const float magnitude = std::ldexp(kValues[code % 8], scale);
    return code >= 8 ? -magnitude : magnitude;
  }
  std::vector<float> all() const {
    std::vector<float> values;
    for (std::int64_t m = 0; m < matrices; ++m) {
      for (std::int64_t i = 0; i < in; ++i) {
        for (std::int64_t o = 0; o < out; ++o) {
          values.push_back(value(m, i, o));
        }
      }
    }
    return values;
  }
};

TEST(IoMxfp4, AnySliceIsThatOfTheWhole) {
  const Packed p(3, 64, 5);
  const std::vector<float> whole = p.all();
  const auto size = static_cast<std::int64_t>(whole.size());
  for (std::int64_t begin = 0; begin <= size; begin += 7) {
    for (const std::int64_t end : {begin, begin + 1, begin + 33, begin + 333, size}) {
      if (end > size) {
        continue;
      }
      std::vector<float> out(static_cast<std::size_t>(end - begin) + 1, 77);
      unpack_mxfp4({p.blocks, p.scales, p.in, p.out}, begin, end, out.data());
      EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, whole.begin() + begin))
          << begin << " " << end;
      EXPECT_EQ(out.back(), 77) << "nothing behind the slice";
    }
  }
}

constexpr const char* kConfig = R"({
  "model_type": "gpt_oss", "vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 3, "num_experts_per_tok": 2,
  "max_position_embeddings": 64, "sliding_window": 8, "layer_types": ["full_attention"], "hidden_act": "silu", "attention_bias": true,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0},
  "quantization_config": {"quant_method": "mxfp4"}})";

/// A safetensors file of what `tensors` says; the experts' matrices packed.
struct Files {
  struct Entry {
    std::string type;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  HfConfig config = parse_hf_config(kConfig, "config.json");
  Packed up{3, 32, 128, 2};
  Packed down{3, 64, 32, 3};
  std::map<std::string, Entry> entries;

  Files() {
    for (const ParameterSpec& tensor : checkpoint_tensors(config)) {
      const Packed* packed = tensor.name.ends_with("gate_up_proj") ? &up
                             : tensor.name.ends_with("down_proj")  ? &down
                                                                   : nullptr;
      if (packed == nullptr) {
        entries[tensor.name] = {
            "F32", tensor.shape,
            std::vector<std::byte>(static_cast<std::size_t>(4 * tensor.numel()))};
        continue;
      }
      entries[tensor.name + "_blocks"] = {
          "U8", {3, packed->out, packed->in / 32, 16}, packed->blocks};
      entries[tensor.name + "_scales"] = {"U8", {3, packed->out, packed->in / 32}, packed->scales};
    }
  }

  CheckpointReader open(const TempDir& dir) const {
    std::string header = "{";
    std::string data;
    for (const auto& [name, entry] : entries) {
      header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                            header.size() > 1 ? "," : "", name, entry.type, shape_text(entry.shape),
                            data.size(), data.size() + entry.bytes.size());
      data.append(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
    }
    header += "}";
    const std::uint64_t length = header.size();
    std::string file(sizeof length, 0);
    std::memcpy(file.data(), &length, sizeof length);
    test::put(dir / "model.safetensors", file + header + data);
    return CheckpointReader::open(dir.path(), config);
  }
};

constexpr const char* kUp = "model.layers.0.mlp.experts.gate_up_proj";
constexpr const char* kDown = "model.layers.0.mlp.experts.down_proj";

TEST(IoMxfp4, CheckpointsGiveTheFullSizeParameters) {
  const TempDir dir;
  const Files files;
  const CheckpointReader reader = files.open(dir);
  for (const auto& [name, packed] : {std::pair(kUp, &files.up), std::pair(kDown, &files.down)}) {
    const std::vector<float> whole = packed->all();
    std::vector<float> out(whole.size());
    reader.read_f32(name, 0, static_cast<std::int64_t>(whole.size()), out.data());
    EXPECT_EQ(out, whole) << name;
    std::vector<float> slice(1000);
    reader.read_f32(name, 1555, 2555, slice.data());
    EXPECT_TRUE(std::equal(slice.begin(), slice.end(), whole.begin() + 1555)) << name;
  }
}

TEST(IoMxfp4, AFileThatShrankIsAnError) {
  const TempDir dir;
  const Files files;
  const CheckpointReader reader = files.open(dir);
  test::fs::resize_file(dir / "model.safetensors", 0);
  std::vector<float> out(1000);
  expect_error([&] { reader.read_f32(kUp, 0, 1000, out.data()); }, {"gate_up_proj", "shortened"});
}

TEST(IoMxfp4, PartsThatAreMissingOrDoNotFitAreRefused) {
  const TempDir dir;
  const auto refused = [&](auto change, std::initializer_list<std::string_view> parts) {
    Files files;
    change(files.entries);
    expect_error([&] { (void)files.open(dir); }, parts);
  };
  const std::string up = kUp;
  refused([&](auto& e) { e.erase(up + "_scales"); },
          {"gate_up_proj_blocks", "no", "gate_up_proj_scales"});
  refused([&](auto& e) { e.erase(up + "_blocks"); },
          {"gate_up_proj_scales", "no", "gate_up_proj_blocks"});
  refused([&](auto& e) { e[up + "_scales"].shape = {3, 64, 2}; },
          {"gate_up_proj_scales", "[3, 64, 2]", "[3, 128, 1]"});
  refused([&](auto& e) { e[up + "_blocks"].type = "I8"; }, {"gate_up_proj_blocks", "I8", "U8"});
  refused([&](auto& e) { e[up] = {"F32", {1}, std::vector<std::byte>(4)}; }, {"gate_up_proj"});
}

/// Transformers' own widening of a random checkpoint, beside ours.
constexpr const char* kScript = R"(
import sys, torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
packed = load_file(sys.argv[1])
save_file({n[:-7]: convert_moe_packed_tensors(packed[n], packed[n[:-7] + "_scales"]).contiguous()
           for n in packed if n.endswith("_blocks")}, sys.argv[2])
)";

TEST(IoMxfp4, TransformersWidensToTheSameValues) {
  if (!test::python_has("transformers")) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  const TempDir dir;
  const Files files;
  const CheckpointReader reader = files.open(dir);
  test::put(dir / "widen.py", kScript);
  ASSERT_EQ(
      std::system(
          fmt::format(
              "'{0}' '{1}/widen.py' '{1}/model.safetensors' '{1}/wide.safetensors' >'{1}/log' 2>&1",
              test::kPython, dir.path().string())
              .c_str()),
      0)
      << test::get(dir / "log");
  const SafetensorsFile wide = SafetensorsFile::open(dir / "wide.safetensors");
  for (const char* name : {kUp, kDown}) {
    const std::int64_t count = wide.at(name).numel();
    std::vector<float> theirs(static_cast<std::size_t>(count));
    std::vector<float> ours(theirs.size());
    wide.read_f32(name, 0, count, theirs.data());
    reader.read_f32(name, 0, count, ours.data());
    EXPECT_EQ(ours, theirs) << name;
  }
}

}  // namespace
}  // namespace tandem
