// A step on packed rows is the step on the records one by one: loss and every gradient, of all
// kinds of models, beside each other and beside what Transformers computed of each record alone.
// A leak at a boundary is far above these limits.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "actors/storage/safetensors.hpp"
#include "models/causal_lm.hpp"
#include "models/data/memory_records.hpp"
#include "models/data/token_dataset.hpp"
#include "models/io/checkpoint.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/pretrained.hpp"
#include "tests/data/references.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kPad = 0;

/// Rows `indices` of a data set, or all, as the engine gets them.
Batch batch_of(const TokenDataset& dataset, std::vector<std::int64_t> indices = {}) {
  if (indices.empty()) {
    indices.resize(static_cast<std::size_t>(dataset.size()));
    std::iota(indices.begin(), indices.end(), 0);
  }
  const HostBatch host = dataset.collate(indices);
  const auto tensor = [&](const std::vector<std::int64_t>& values) {
    return values.empty() ? at::Tensor()
                          : at::tensor(values, at::kLong).view({host.rows, host.length});
  };
  return {.inputs = tensor(host.inputs),
          .labels = tensor(host.labels),
          .positions = tensor(host.positions)};
}

TokenDataset packed(const std::shared_ptr<MemoryRecords>& records, std::int64_t room) {
  return {records, kPad, {.kind = Packing::kBfd, .room = room, .seed = 3}};
}

/// The batch with something wrong at its documents' boundaries.
struct Leak {
  const char* name;
  std::function<void(Batch&)> make;
};

/// Every document begins one token later, but a row's first one.
at::Tensor late(const at::Tensor& positions) {
  at::Tensor moved = positions.clone();
  const auto before = positions.accessor<std::int64_t, 2>();
  auto after = moved.accessor<std::int64_t, 2>();
  for (std::int64_t row = 0; row < positions.size(0); ++row) {
    std::int64_t begin = 0;
    for (std::int64_t t = 0; t < positions.size(1); ++t) {
      begin = t > 1 && before[row][t - 1] == 0 ? t : begin;
      after[row][t] = t - begin;
    }
  }
  return moved;
}

std::vector<Leak> leaks() {
  return {
      {"attention across records", [](Batch& batch) { batch.positions.reset(); }},
      {"boundaries one token late", [](Batch& batch) { batch.positions = late(batch.positions); }},
      {"the first token is learnt", [](Batch& batch) {
         const at::Tensor first = batch.positions.eq(0);
         first.select(1, 0).fill_(false);
         batch.labels = at::where(first, batch.inputs, batch.labels);
       }}};
}

// --- beside Transformers -------------------------------------------------------------------------

/// With true as the second: by ATen's operations.
class PackedOracle : public testing::TestWithParam<std::tuple<fs::path, bool>> {
 protected:
  void TearDown() override { aten::take_always(false); }
  void SetUp() override {
    aten::take_always(std::get<bool>(GetParam()));
    folder_ = std::get<fs::path>(GetParam());
    expected_ = parser_.load((folder_ / "expected.json").string());
    room_ = std::int64_t(expected_["max_length"]);
    simdjson::dom::parser lines;
    for (const simdjson::dom::element record :
         lines.load_many((folder_ / "records.jsonl").string())) {
      std::vector<std::int32_t> ids;
      std::vector<std::uint8_t> learnt;
      for (const std::int64_t id : record["input_ids"].get_array()) {
        ids.push_back(static_cast<std::int32_t>(id));
      }
      for (const std::int64_t label : record["labels"].get_array()) {
        learnt.push_back(label == kIgnoredLabel ? 0 : 1);
      }
      records_->add(ids, learnt);
    }
    const fs::path base = test::checkpoint_of(folder_, expected_);
    const auto checkpoint = std::make_shared<Checkpoint>(Checkpoint::open(base));
    model_ = std::make_unique<test::MathHarness>(
        make_causal_lm(read_hf_config(base)), at::kFloat,
        [checkpoint](const ParameterSpec& p, std::int64_t begin, std::int64_t end, float* out) {
          checkpoint->read_f32(p.name, begin, end, out);
        });
  }

  /// The greatest error of a gradient, over its tensor's greatest value; of the sum of the losses.
  double gradient_error(const Batch& batch, std::int64_t labels) {
    model_->step(batch, static_cast<float>(labels));
    const auto file = SafetensorsFile::open(folder_ / "grads.safetensors");
    double worst = 0;
    for (const auto& [name, weight] : model_->parameters()) {
      const at::Tensor wanted = test::read(file, "grad64." + name);
      worst = std::max(worst, (weight->grad - wanted).abs().max().item<double>() /
                                  wanted.abs().max().item<double>());
    }
    return worst;
  }

  fs::path folder_;
  simdjson::dom::parser parser_;
  simdjson::dom::element expected_;
  std::int64_t room_ = 0;
  std::shared_ptr<MemoryRecords> records_ = std::make_shared<MemoryRecords>();
  std::unique_ptr<test::MathHarness> model_;
};

TEST_P(PackedOracle, EachRecordsLossIsItsOwn) {
  const double limit = double(expected_["recommended"]["record loss sum abs"]);
  const TokenDataset dataset = packed(records_, room_);
  std::int64_t seen = 0;
  for (std::int64_t pack = 0; pack < dataset.size(); ++pack) {
    double wanted = 0;
    std::int64_t labels = 0;
    const std::vector<PackPiece> pieces = dataset.packs()->pieces(pack);
    for (const PackPiece& piece : pieces) {
      wanted += double(expected_["loss_sum"].at(static_cast<std::size_t>(piece.record)));
      labels += std::int64_t(expected_["labels"].at(static_cast<std::size_t>(piece.record)));
    }
    EXPECT_EQ(dataset.labels({{pack}}), labels);
    const double loss = static_cast<double>(model_->step(batch_of(dataset, {pack})));
    EXPECT_NEAR(loss * static_cast<double>(labels), wanted,
                limit * static_cast<double>(pieces.size()))
        << "pack " << pack;
    seen += labels;
  }
  EXPECT_EQ(seen, std::int64_t(expected_["total_labels"]));
}

TEST_P(PackedOracle, GradientsAreTheSumOfTheRecords) {
  const double limit = double(expected_["recommended"]["grads max rel to tensor"]);
  const std::int64_t labels = std::int64_t(expected_["total_labels"]);
  const TokenDataset dataset = packed(records_, room_);
  EXPECT_EQ(static_cast<std::size_t>(dataset.size()),
            expected_["rows_by_best_fit_decreasing"].get_array().size());
  EXPECT_LE(gradient_error(batch_of(dataset), labels), limit);
  EXPECT_LE(gradient_error(batch_of({records_, kPad}), labels), limit) << "one by one";
  const TokenDataset wrapped(records_, kPad, {.kind = Packing::kWrapped, .room = room_});
  EXPECT_GE(gradient_error(batch_of(wrapped), labels), 100 * limit) << "records were divided";
  for (const Leak& leak : leaks()) {
    Batch batch = batch_of(dataset);
    leak.make(batch);
    EXPECT_GE(gradient_error(batch, labels), 100 * limit) << leak.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PackedOracle,
                         testing::Combine(testing::ValuesIn(test::references(
                                              {"packing/gpt2", "packing/qwen3"},
                                              {"oracles/packing/gpt2", "oracles/packing/qwen3"})),
                                          testing::Bool()),
                         [](const auto& info) {
                           const std::filesystem::path folder = std::get<0>(info.param);
                           const char* way = std::get<1>(info.param) ? "_plain" : "";
                           return (test::is_own(folder) ? "small_" : "") +
                                  folder.filename().string() + way;
                         });

// --- beside the records one by one ---------------------------------------------------------------

struct Kind {
  const char* name;
  const char* config;  // its members beside the sizes
};
void PrintTo(const Kind& one, std::ostream* out) { *out << one.name; }

constexpr Kind kKinds[] = {
    {"gpt2", R"("model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 32, "n_head": 4,
                "n_layer": 2, "n_positions": 64)"},
    {"qwen3", R"("model_type": "qwen3", "rms_norm_eps": 1e-6)"},
    {"qwen3_sliding", R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": 7,
                         "max_window_layers": 1, "tie_word_embeddings": true)"},
    {"gpt_oss", R"("model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2,
                   "sliding_window": 6,
                   "rope_scaling": {"rope_type": "linear", "factor": 2.0})"},
    {"qwen3_moe", R"("model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                     "moe_intermediate_size": 24, "output_router_logits": true,
                     "router_aux_loss_coef": 0.1)"}};

class PackedModels : public testing::TestWithParam<std::tuple<Kind, bool>> {
 protected:
  void TearDown() override { aten::take_always(false); }
  void SetUp() override {
    aten::take_always(std::get<bool>(GetParam()));
    const HfConfig config = parse_hf_config(
        fmt::format(R"({{{}, "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48,
                         "num_hidden_layers": 2, "num_attention_heads": 4,
                         "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
                         "max_position_embeddings": 64, "initializer_range": 0.2}})",
                    std::get<Kind>(GetParam()).config),
        "config.json");
    model_ = std::make_unique<test::MathHarness>(make_causal_lm(config), at::kFloat,
                                                 random_weights(config, 1));
    for (std::int32_t i = 0; i < 24; ++i) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(1 + (i * 19 + 7) % 48));
      std::vector<std::uint8_t> learnt(ids.size());
      for (std::size_t t = 0; t < ids.size(); ++t) {
        ids[t] = static_cast<std::int32_t>((t * t + t * static_cast<std::size_t>(i) * 5) % 66) + 1;
        learnt[t] = t > ids.size() / 3 && (i % 5 != 0 || t + 2 < ids.size()) ? 1 : 0;
      }
      records_->add(ids, learnt);
    }
  }

  struct Step {
    double loss;
    std::vector<at::Tensor> gradients;  // [parameter]
  };
  Step step(const Batch& batch) {
    Step step{.loss = static_cast<double>(model_->step(batch)), .gradients = {}};
    for (const auto& [name, weight] : model_->parameters()) {
      step.gradients.push_back(weight->grad.to(at::kDouble));
    }
    return step;
  }
  /// Relative distances: of the loss, of the gradient as one vector, and of the tensor that is
  /// farthest from its own.
  struct Distance {
    double loss, gradient, tensor;
  };
  static Distance distance(const Step& a, const Step& b) {
    Distance d{.loss = std::abs(a.loss / b.loss - 1), .gradient = 0, .tensor = 0};
    double difference = 0;
    double whole = 0;
    for (std::size_t i = 0; i < a.gradients.size(); ++i) {
      const double apart = (a.gradients[i] - b.gradients[i]).norm().item<double>();
      const double norm = b.gradients[i].norm().item<double>();
      d.tensor = std::max(d.tensor, apart / norm);
      difference += apart * apart;
      whole += norm * norm;
    }
    d.gradient = std::sqrt(difference / whole);
    return d;
  }

  std::unique_ptr<test::MathHarness> model_;
  std::shared_ptr<MemoryRecords> records_ = std::make_shared<MemoryRecords>();
};

// Sums over tokens come in another order, which a tensor feels that is what large terms leave.
constexpr double kLimit = 1e-6;
constexpr double kTensorLimit = 4e-6;

TEST_P(PackedModels, AStepIsThatOnTheRecordsOneByOne) {
  const Step one_by_one = step(batch_of({records_, kPad}));
  const TokenDataset dataset = packed(records_, 64);
  ASSERT_LE(dataset.size(), 12);
  const Distance packed_ones = distance(step(batch_of(dataset)), one_by_one);
  EXPECT_LE(packed_ones.loss, kLimit);
  EXPECT_LE(packed_ones.gradient, kLimit);
  EXPECT_LE(packed_ones.tensor, kTensorLimit);
  for (const Leak& leak : leaks()) {
    Batch batch = batch_of(dataset);
    leak.make(batch);
    EXPECT_GE(distance(step(batch), one_by_one).gradient, 1000 * kLimit) << leak.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PackedModels,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<Kind>(info.param).name) +
                                  (std::get<bool>(info.param) ? "_plain" : "");
                         });

}  // namespace
}  // namespace tandem
