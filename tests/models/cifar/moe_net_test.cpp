// The CIFAR-10 net with mixtures of experts: the layer against its definition, and training whose
// bits depend on nothing but the batches and the seed: no stage, no overlap, no number of ranks,
// noise or not.
#include "models/cifar/moe_net.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "models/cifar/fused_net.hpp"
#include "models/cifar/net.hpp"
#include "models/moe/layer.hpp"
#include "runtime/util/error.hpp"
#include "tests/models/layers/math_support.hpp"
#include "tests/support/thread_ranks.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kWidth = 84;

// ---- the layer

/// Token by token, choice by choice, as the definition says.
at::Tensor by_definition(const at::Tensor& x, const at::Tensor& gate, const GateOptions& options,
                         const GateDraw& draw, const at::Tensor& weights) {
  const GateRoutes routes =
      route(at::linear(x, gate), options,
            gate_noise(options, draw, x.size(0), gate.size(0), at::kCPU), draw.training());
  at::Tensor y = at::zeros_like(x);
  for (std::int64_t j = 0; j < options.k; ++j) {
    for (std::int64_t t = 0; t < x.size(0); ++t) {
      if (routes.kept[j][t].item<bool>()) {
        const std::int64_t e = routes.expert[j][t].item<std::int64_t>();
        y[t] += routes.weight[j][t] * at::mv(weights[e], x[t]);
      }
    }
  }
  return y;
}

TEST(MoeLayer, IsItsDefinition) {
  for (const GateOptions& options :
       {GateOptions{.min_capacity = 0}, GateOptions{.drops_tokens = false},
        GateOptions{.min_capacity = 0, .noise = GateNoisePolicy::kRSample},
        GateOptions{.k = 2, .min_capacity = 2}, GateOptions{.k = 3, .capacity_factor = 0.7}}) {
    for (const std::int64_t micro_batch : {-1, 7}) {
      const at::Tensor x = test::random({20, 16}, 1).to(at::kFloat).requires_grad_(true);
      const at::Tensor gate = test::random({5, 16}, 2).to(at::kFloat).requires_grad_(true);
      const at::Tensor weights =
          test::random({5, 16, 16}, 3, 0.25).to(at::kFloat).requires_grad_(true);
      const GateDraw draw{.seed = 4, .gate = 1, .micro_batch = micro_batch};
      const auto experts = [&](const at::Tensor& tokens) {
        return at::bmm(tokens, weights.transpose(1, 2));
      };
      const at::Tensor cotangent = test::random({20, 16}, 5).to(at::kFloat);
      std::vector<at::Tensor> ys;
      std::vector<at::Tensor> gradients;
      for (const bool fast : {true, false}) {
        ys.push_back(fast ? mixture_of_experts(x, gate, options, draw, experts).y
                          : by_definition(x, gate, options, draw, weights));
        torch::autograd::backward({(ys.back() * cotangent).sum()}, {});
        for (const at::Tensor& leaf : {x, gate, weights}) {
          gradients.push_back(leaf.grad().clone());
          leaf.mutable_grad().reset();
        }
      }
      EXPECT_LE((ys[0] - ys[1]).abs().max().item<double>(), 1e-5);
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_LE((gradients[i] - gradients[i + 3]).abs().max().item<double>(), 2e-5) << i;
      }
    }
  }
}

TEST(MoeLayer, NoiseIsOfTheMicroBatchAlone) {
  const GateOptions options{.noise = GateNoisePolicy::kRSample};
  const auto drawn = [&](std::int64_t micro_batch, std::uint64_t gate) {
    return gate_noise(options, {.seed = 3, .gate = gate, .micro_batch = micro_batch}, 8, 4,
                      at::kCPU);
  };
  EXPECT_TRUE(at::equal(drawn(5, 0).gumbel, drawn(5, 0).gumbel));
  EXPECT_FALSE(at::equal(drawn(5, 0).gumbel, drawn(6, 0).gumbel));
  EXPECT_FALSE(at::equal(drawn(5, 0).gumbel, drawn(5, 1).gumbel));
  EXPECT_FALSE(at::equal(drawn(5, 0).uniform, drawn(6, 0).uniform));
  EXPECT_FALSE(drawn(-1, 0).gumbel.defined()) << "no sampling outside training";
}

// ---- the net

Batch random_batch(std::uint64_t seed) {
  return {.inputs = test::random({8, 3, 32, 32}, seed).to(at::kFloat),
          .labels = at::arange(8, at::kLong).add_(static_cast<std::int64_t>(seed)).remainder_(10)};
}

TEST(CifarMoe, ExpertsStartAsCopies) {
  const CifarMoe shape{.experts = {2, 3}, .residual = true};
  const ParameterSource source = cifar_moe_initial_weights(shape, 11);
  std::vector<std::vector<float>> copies;
  std::int64_t elements = 0;
  for (const ParameterSpec& parameter : cifar_moe_parameters(shape)) {
    elements += parameter.numel();
    if (parameter.shape == std::vector<std::int64_t>{kWidth, kWidth}) {
      source(parameter, 0, parameter.numel(),
             copies.emplace_back(static_cast<std::size_t>(parameter.numel())).data());
    }
  }
  ASSERT_EQ(copies.size(), 6U) << "five experts and the residual layer";
  for (const std::vector<float>& copy : copies) {
    EXPECT_EQ(copy, copies.front());
  }
  // Trunk, gates, coefficients, experts and residual layer, fc4.
  EXPECT_EQ(elements, 62006 + 5 * kWidth + 2 * 2 * (kWidth + 1) + 6 * kWidth * (kWidth + 1));
}

TEST(CifarMoe, TheFusedTrunkIsThePlainOne) {
  const Batch batch = random_batch(3);
  const at::Tensor cotangent = test::random({8, kWidth}, 4).to(at::kFloat);
  std::vector<at::Tensor> plain;
  std::vector<Weight> weights(kCifarTrunkParameters);
  std::vector<Weight*> pointers;
  for (std::size_t i = 0; i < kCifarTrunkParameters; ++i) {
    const ParameterSpec& spec = cifar_parameters()[i];
    const at::Tensor values = at::empty(spec.shape, at::kFloat);
    cifar_initial_weights(7)(spec, 0, spec.numel(), values.data_ptr<float>());
    plain.push_back(values.clone().requires_grad_(true));
    weights[i] = {.value = values.requires_grad_(true), .grad = at::ones(spec.shape, at::kFloat)};
    pointers.push_back(&weights[i]);
  }
  const at::Tensor expected = cifar_trunk(batch.inputs, plain);
  const at::Tensor fused = fused_cifar_trunk(batch.inputs, pointers);
  EXPECT_LE((fused - expected).abs().max().item<double>(), 1e-6);
  torch::autograd::backward({(expected * cotangent).sum(), (fused * cotangent).sum()}, {});
  for (std::size_t i = 0; i < kCifarTrunkParameters; ++i) {
    const at::Tensor& gradient = plain[i].grad();
    EXPECT_TRUE(weights[i].grad_written);
    EXPECT_LE((weights[i].grad - gradient).abs().max().item<double>(),
              4e-6 * gradient.abs().max().item<double>())
        << cifar_parameters()[i].name;
  }
}

TEST(CifarMoe, RefusesMoreChoicesThanExperts) {
  EXPECT_THROW((void)make_cifar_moe_model({.experts = {4, 1}, .gate = {.k = 2}}, {}), Error);
}

struct Setting {
  int stage = 0;
  Overlap overlap = Overlap::kOff;
  int accumulation = 2;
  int threads = 1;
  std::string type = "fp32";
  bool checkpointing = false;
  StateLayout state = StateLayout::kFp32;
  DeviceKind device = DeviceKind::kCpu;
  std::string optimizer = "AdamW";
};

using Outcome = std::pair<std::vector<double>, std::vector<float>>;  // losses, weights

/// Four steps of ranks times accumulation micro-batches: the same ones however they are split.
Outcome train(const CifarMoe& shape, const Setting& setting, std::shared_ptr<Communicator> ranks) {
  const int world = ranks != nullptr ? ranks->world_size() : 1;
  const int rank = ranks != nullptr ? ranks->rank() : 0;
  const std::string config = fmt::format(
      R"({{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": {},
           "gradient_clipping": 0.5, "bf16": {{"enabled": {}}},
           "optimizer": {{"type": "{}", "params": {{"lr": 0.003}}}},
           "zero_optimization": {{"stage": {}, "stage3_param_persistence_threshold": 0}}}})",
      setting.accumulation, setting.type == "bf16", setting.optimizer, setting.stage);
  InitializeArgs args{.model = make_cifar_moe_model(shape, cifar_moe_initial_weights(shape, 1)),
                      .config = parse_config(config, "the test", world),
                      .communicator = std::move(ranks)};
  args.options.compute_threads = setting.threads;
  args.options.optimizer_threads = 1;
  args.options.overlap = setting.overlap;
  args.options.activation_checkpointing = setting.checkpointing;
  args.options.state_layout = setting.state;
  args.options.device = setting.device;
  args.options.sim = {.to_device_bytes_per_s = 1e12, .to_host_bytes_per_s = 1e12, .latency_s = 0};
  Engine engine(std::move(args));
  Outcome run;
  for (std::uint64_t step = 0; step < 4; ++step) {
    std::vector<Batch> micro;
    for (int a = 0; a < setting.accumulation; ++a) {
      micro.push_back(random_batch(step * static_cast<std::uint64_t>(setting.accumulation * world) +
                                   static_cast<std::uint64_t>(a * world + rank)));
    }
    run.first.push_back(engine.train_step(micro).loss);
  }
  engine.drain();
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    run.second.insert(run.second.end(), values.begin(), values.end());
  });
  return run;
}

const CifarMoe kStandard{
    .experts = {2}, .gate = {.min_capacity = 0, .noise = GateNoisePolicy::kRSample}, .seed = 5};
const CifarMoe kResidual{.experts = {2, 4},
                         .residual = true,
                         .gate = {.k = 2, .min_capacity = 0, .noise = GateNoisePolicy::kJitter},
                         .aux_loss_coefficient = 0.01};

/// Trains on `world` ranks and returns their outcome, which is the same on all of them.
Outcome train_on_ranks(const CifarMoe& shape, const Setting& setting, int world) {
  const std::vector<Outcome> runs = on_ranks(world, [&](std::shared_ptr<Communicator> ranks) {
    return train(shape, setting, std::move(ranks));
  });
  for (const Outcome& run : runs) {
    EXPECT_TRUE(run == runs.front()) << "the ranks of one run agree";
  }
  return runs.front();
}

TEST(CifarMoe, BitsDependOnBatchesAndSeedAlone) {
  for (const CifarMoe& shape : {kStandard, kResidual}) {
    for (const std::string type : {"fp32", "bf16"}) {
      const Outcome expected = train(shape, {.type = type}, nullptr);
      EXPECT_NE(expected.first.back(), expected.first.front());
      for (const int stage : {0, 1, 2, 3}) {
        if (type == "bf16" && stage % 3 != 0) {
          continue;  // as in fp32
        }
        for (const Overlap overlap : {Overlap::kOff, Overlap::kFull}) {
          SCOPED_TRACE(fmt::format("{} mixtures, {}, stage {}, {}", shape.experts.size(), type,
                                   stage, name_of(overlap)));
          const Setting alone{.stage = stage,
                              .overlap = overlap,
                              .threads = 2,
                              .type = type,
                              .checkpointing = stage == 2};
          EXPECT_TRUE(train(shape, alone, nullptr) == expected);
          Setting on_two = alone;
          on_two.accumulation = 1;
          on_two.threads = 1;
          EXPECT_TRUE(train_on_ranks(shape, on_two, 2) == expected) << "two ranks";
          CifarMoe spread = shape;
          spread.expert_ranks = 2;
          EXPECT_TRUE(train_on_ranks(spread, on_two, 2) == expected) << "experts over two ranks";
        }
      }
    }
  }
}

/// Parts of several ranks, more experts than parts, several micro-steps, state in blocks and with
/// stochastic rounding; updates that need whole tensors.
TEST(CifarMoe, ExpertsOverRanksChangeNoBit) {
  for (const auto& [state, optimizer] : {std::pair{StateLayout::kFp32, "AdamW"},
                                         {StateLayout::kBf16, "AdamW"},
                                         {StateLayout::kInt8, "AdamW"},
                                         {StateLayout::kFp32, "Lamb"},
                                         {StateLayout::kFp32, "Muon"}}) {
    CifarMoe shape = kResidual;
    shape.experts = {4, 8};
    const Setting setting{.stage = 1,
                          .overlap = Overlap::kFull,
                          .accumulation = 8,
                          .state = state,
                          .optimizer = optimizer};
    const Outcome expected = train(shape, setting, nullptr);
    Setting on_four = setting;
    on_four.accumulation = 2;
    for (const int stage : {0, 3}) {
      for (const std::int64_t parts : {1, 2, 4}) {
        SCOPED_TRACE(
            fmt::format("{}, {}, stage {}, {} parts", optimizer, name_of(state), stage, parts));
        shape.expert_ranks = parts;
        on_four.stage = stage;
        EXPECT_TRUE(train_on_ranks(shape, on_four, 4) == expected);
      }
    }
  }
}

/// Blocks on a device, shards and accumulators on the host.
TEST(CifarMoe, ExpertsOverRanksBesideADeviceChangeNoBit) {
  CifarMoe shape = kResidual;
  const Setting setting{.overlap = Overlap::kFull, .accumulation = 4, .type = "bf16"};
  const Outcome expected = train(shape, setting, nullptr);
  shape.expert_ranks = 2;
  for (const int stage : {0, 3}) {
    for (const int world : {2, 4}) {
      Setting on_devices = setting;
      on_devices.stage = stage;
      on_devices.accumulation = 4 / world;
      on_devices.device = DeviceKind::kSim;
      EXPECT_TRUE(train_on_ranks(shape, on_devices, world) == expected)
          << "stage " << stage << ", " << world << " ranks";
    }
  }
}

TEST(CifarMoe, RefusesRanksThatCannotShareTheExperts) {
  CifarMoe shape = kResidual;
  shape.expert_ranks = 4;
  EXPECT_THROW((void)make_cifar_moe_model(shape, {}), Error);
  shape.expert_ranks = 2;
  EXPECT_THROW((void)train(shape, {}, nullptr), Error) << "one rank";
}

}  // namespace
}  // namespace tandem
