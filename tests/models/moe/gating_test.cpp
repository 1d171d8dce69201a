// The gates of the MoE layer against DeepSpeed's own (routes exactly, weights, loss and gradients
// within rounding), and what DeepSpeed leaves open.
#include "models/moe/gating.hpp"

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "actors/storage/json.hpp"
#include "actors/storage/safetensors.hpp"
#include "runtime/util/error.hpp"
#include "tests/data/references.hpp"
#include "tests/models/layers/math_support.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::read;

GateOptions options_of(const JsonValue& c) {
  return {.k = c.at("k").integer(),
          .capacity_factor = c.at("capacity_factor").number(),
          .min_capacity = c.at("min_capacity").integer(),
          .drops_tokens = c.at("drop_tokens").boolean(),
          .drop_policy = c.at("drop_policy").string() == "position" ? DropPolicy::kPosition
                                                                    : DropPolicy::kProbabilities,
          .random_token_selection = c.at("random_token_selection").boolean(),
          .samples_second = c.at("sample").boolean()};
}

/// [S, E, C] as the oracle has it.
at::Tensor combine_weights(const GateRoutes& routes, at::IntArrayRef shape) {
  at::Tensor weights = at::zeros({shape[0], shape[1] * shape[2] + 1}, at::kFloat);
  for (std::int64_t j = 0; j < routes.expert.size(0); ++j) {
    const at::Tensor place =
        at::where(routes.kept[j], routes.expert[j] * shape[2] + routes.location[j],
                  at::scalar_tensor(shape[1] * shape[2], at::kLong));
    weights = weights.scatter_add(1, place.unsqueeze(1), routes.weight[j].unsqueeze(1));
  }
  return weights.narrow(1, 0, shape[1] * shape[2]).view(shape);
}

void expect_routes(const SafetensorsFile& file, const GateRoutes& routes) {
  const at::Tensor expert = read(file, "route_expert").to(at::kLong);
  const at::Tensor kept = expert.ge(0);
  EXPECT_TRUE(at::equal(routes.kept, kept));
  EXPECT_TRUE(at::equal(routes.expert.masked_select(kept), expert.masked_select(kept)));
  EXPECT_TRUE(at::equal(routes.location.masked_select(kept),
                        read(file, "route_location").to(at::kLong).masked_select(kept)));
  EXPECT_LE(
      (routes.weight - read(file, "route_weight")).masked_select(kept).abs().max().item<double>(),
      1e-6);
}

void expect_the_routes_of(const fs::path& folder) {
  const JsonDocument cases = JsonDocument::load(
      folder / "cases.json", {.where = "oracle", .file = "cases.json", .advice = ""}, 1 << 20);
  int compared = 0;
  for (const JsonValue& c : cases.root().items()) {
    SCOPED_TRACE(c.at("name").string());
    const auto file =
        SafetensorsFile::open(folder / (std::string(c.at("name").string()) + ".safetensors"));
    at::Tensor logits = read(file, "logits").requires_grad_(true);
    const at::Tensor used = test::find_tensor(file, "used_token");
    const GateRoutes routes =
        route(logits, options_of(c),
              {test::find_tensor(file, "uniform"), test::find_tensor(file, "gumbel")}, true,
              used.defined() ? used.to(at::kFloat) : used);
    EXPECT_NEAR(routes.aux_loss.item<double>(), read(file, "l_aux").item<double>(), 1e-6);
    EXPECT_TRUE(at::equal(routes.counts, read(file, "exp_counts")));
    EXPECT_EQ(routes.kept.sum().item<std::int64_t>(), c.at("kept").integer());
    ++compared;
    if (c.at("kept_set_is_arbitrary").boolean()) {
      continue;
    }
    expect_routes(file, routes);
    const at::Tensor cotangent = read(file, "cotangent");
    const at::Tensor objective =
        (combine_weights(routes, cotangent.sizes()) * cotangent).sum() + 0.01 * routes.aux_loss;
    torch::autograd::backward({objective}, {});
    EXPECT_LE((logits.grad() - read(file, "grad_logits")).abs().max().item<double>(), 1e-6);
  }
  EXPECT_EQ(compared, 10);
}

TEST(Gating, RoutesAsDeepSpeedDoes) {
  for (const fs::path& folder : test::references({"gating"}, {"oracles/gating"})) {
    SCOPED_TRACE(folder.string());
    expect_the_routes_of(folder);
  }
}

TEST(Gating, WithoutADrawTheFirstToComeAreKept) {
  const at::Tensor logits =
      at::tensor({1.0F, 0.0F, 1.0F, 0.0F, 1.0F, 0.0F, 0.0F, 1.0F}).view({4, 2});
  const GateRoutes routes =
      route(logits, {.min_capacity = 0, .random_token_selection = false}, {}, true);
  EXPECT_EQ(routes.capacity, 2);
  EXPECT_TRUE(at::equal(routes.kept[0], at::tensor({1, 1, 0, 1}).to(at::kBool)));
  EXPECT_TRUE(at::equal(routes.counts, at::tensor({std::int64_t{3}, std::int64_t{1}})));
}

TEST(Gating, NoiseDecidesTheChoiceAndNotTheWeight) {
  const at::Tensor logits = at::tensor({2.0F, 0.0F}).view({1, 2});
  const GateNoise noise{.uniform = {}, .gumbel = at::tensor({0.0F, 5.0F}).view({1, 2})};
  const GateOptions options{
      .min_capacity = 1, .random_token_selection = false, .noise = GateNoisePolicy::kRSample};
  const GateRoutes training = route(logits, options, noise, true);
  EXPECT_EQ(training.expert.item<std::int64_t>(), 1);
  EXPECT_NEAR(training.weight.item<double>(), 1 / (1 + std::exp(2.0)), 1e-6);
  EXPECT_EQ(route(logits, options, noise, false).expert.item<std::int64_t>(), 0)
      << "not when evaluating";
}

TEST(Gating, CapacityIsWhatItsFactorsSay) {
  EXPECT_EQ(gate_capacity(16, 2, {.min_capacity = 0}, true), 8);
  EXPECT_EQ(gate_capacity(17, 2, {.min_capacity = 0}, true), 9);
  EXPECT_EQ(gate_capacity(16, 8, {.min_capacity = 4}, true), 4);
  EXPECT_EQ(gate_capacity(3, 8, {.min_capacity = 4}, true), 3) << "no more places than tokens";
  EXPECT_EQ(gate_capacity(16, 4, {.k = 2, .eval_capacity_factor = 2, .min_capacity = 0}, false),
            16);
  EXPECT_EQ(gate_capacity(16, 4, {.drops_tokens = false}, true), 16);
}

TEST(Gating, RefusesWhatNoGateCanHave) {
  EXPECT_THROW(require_gate({.k = 3}, 2, "moe"), Error);
  EXPECT_THROW(require_gate({.k = 0}, 2, "moe"), Error);
  EXPECT_THROW(require_gate({.capacity_factor = 0}, 2, "moe"), Error);
  EXPECT_THROW(require_gate({.min_capacity = -1}, 2, "moe"), Error);
  EXPECT_NO_THROW(require_gate({.k = 2}, 2, "moe"));
}

}  // namespace
}  // namespace tandem
