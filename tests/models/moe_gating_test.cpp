// DeepSpeed's gates against its own answers (oracles/gating), and the ways of tokens to experts and back.
#include <cmath>
#include <cstring>
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/io/safetensors.hpp"
#include "models/moe/gating.hpp"
#include "tests/models/math_support.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::random;

constexpr double kLimit = 1e-6;  // the oracle's

const fs::path kFolder = fs::path(TANDEM_SOURCE_DIR) / "../shared/oracles/gating";

at::Tensor read(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* info = file.find(name);
  if (info == nullptr) {
    return {};
  }
  const at::ScalarType type = info->type == TensorType::kI64   ? at::kLong
                              : info->type == TensorType::kI32 ? at::kInt
                              : info->type == TensorType::kU8  ? at::kByte
                                                               : at::kFloat;
  at::Tensor tensor = at::empty(info->shape, at::TensorOptions().dtype(type));
  const auto bytes = file.bytes(*info);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// [tokens, experts, capacity]
at::Tensor dense(const at::Tensor& of_pairs, const Gated& g) {
  const at::Tensor places = at::zeros({g.place.size(0), g.place.size(1), g.capacity})
                                .scatter_(2, g.place.clamp(0, g.capacity - 1).unsqueeze(2), 1);
  return (of_pairs * g.kept).unsqueeze(2) * places;
}

void compare(const simdjson::dom::object& note) {
  const std::string name{std::string_view(note["name"])};
  SCOPED_TRACE(name);
  const auto file = SafetensorsFile::open(kFolder / (name + ".safetensors"));
  const GateRule rule{.k = std::int64_t(note["k"]),
                      .capacity_factor = double(note["capacity_factor"]),
                      .min_capacity = std::int64_t(note["min_capacity"]),
                      .drop_tokens = bool(note["drop_tokens"]),
                      .drop_policy = std::string_view(note["drop_policy"]) == "position"
                                         ? DropPolicy::kPosition
                                         : DropPolicy::kProbability};
  const at::Tensor logits = read(file, "logits").requires_grad_(true);
  const Gated g =
      gate(logits, rule, {read(file, "uniform"), read(file, "gumbel"), read(file, "used_token")});
  EXPECT_EQ(g.capacity, std::int64_t(note["capacity"]));
  EXPECT_TRUE(at::equal(g.counts, read(file, "exp_counts")));
  EXPECT_LE(difference(g.loss, read(file, "l_aux")), kLimit);
  const at::Tensor theirs = read(file, "combine_weights");
  if (bool(note["kept_set_is_arbitrary"])) {
    EXPECT_TRUE(at::equal(g.kept.sum(0), read(file, "dispatch_mask").sum(2).sum(0)));
    return;
  }
  const at::Tensor ours = dense(g.weight, g);
  EXPECT_TRUE(at::equal(dense(at::ones({}), g).to(at::kByte), read(file, "dispatch_mask")));
  EXPECT_LE(difference(ours, theirs), kLimit);
  torch::autograd::backward({(ours * read(file, "cotangent")).sum() + 0.01 * g.loss});
  EXPECT_LE(difference(logits.grad(), read(file, "grad_logits")), kLimit);
}

TEST(Gating, GivesDeepSpeedsAnswers) {
  if (!fs::exists(kFolder)) {
    GTEST_SKIP() << "shared/oracles/gating is not here";
  }
  simdjson::dom::parser parser;
  std::size_t cases = 0;
  for (const simdjson::dom::object note :
       parser.load((kFolder / "cases.json").string()).get_array()) {
    compare(note);
    ++cases;
  }
  EXPECT_EQ(cases, 10U);
}

TEST(Gating, DispatchAndCombineAreTheSumsOverPlaces) {
  for (const std::int64_t k : {1, 2, 3}) {
    const at::Tensor logits = random({19, 4}, 1).to(at::kFloat).requires_grad_(true);
    const Gated g = gate(logits, {.k = k, .capacity_factor = 0.7, .min_capacity = 1});
    const at::Tensor x = random({19, 6}, 2).to(at::kFloat).requires_grad_(true);
    const at::Tensor to = dispatch(x, g);
    const at::Tensor mask = dense(at::ones({}), g);
    EXPECT_LE(difference(to, at::einsum("sec,sm->ecm", {mask, x})), 0) << k;
    const at::Tensor back = combine(to, g);
    const at::Tensor expected = at::einsum("sec,ecm->sm", {dense(g.weight, g), to});
    EXPECT_LE(difference(back, expected), kLimit) << k;
    const at::Tensor seed = random({19, 6}, 3).to(at::kFloat);
    const auto ours = torch::autograd::grad({back}, {x, logits}, {seed}, true);
    const auto theirs = torch::autograd::grad({expected}, {x, logits}, {seed}, true);
    EXPECT_LE(difference(ours[0], theirs[0]), kLimit) << k;
    EXPECT_LE(difference(ours[1], theirs[1]), kLimit) << k;
    EXPECT_EQ(g.kept.sum(0).max().item<std::int64_t>() <= g.capacity, true);
  }
}

TEST(Gating, ATokenWithoutAPlaceGetsNothing) {
  const at::Tensor logits = at::tensor({5.0F, 0.0F}).repeat({6, 1});
  const Gated g = gate(logits, {.k = 1, .capacity_factor = 1, .min_capacity = 0});
  EXPECT_EQ(g.capacity, 3);
  const at::Tensor out = combine(dispatch(at::ones({6, 2}), g), g);
  EXPECT_TRUE((out.narrow(0, 0, 3) > 0).all().item<bool>()) << "those that come first";
  EXPECT_TRUE((out.narrow(0, 3, 3) == 0).all().item<bool>());
  EXPECT_EQ(g.counts[0].item<std::int64_t>(), 6);
}

}  // namespace
}  // namespace tandem
