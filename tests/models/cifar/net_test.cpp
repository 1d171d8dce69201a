// The example's net: logits and gradients of the first batch, and twenty training steps of the
// engine, against torch.
#include "models/cifar/net.hpp"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "actors/storage/safetensors.hpp"
#include "engine/config/config.hpp"
#include "engine/engine.hpp"
#include "models/cifar/dataset.hpp"
#include "models/cifar/records.hpp"
#include "tests/models/cifar/reference.hpp"
#include "tests/models/layers/harness.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr double kLossLimit = 2e-6;  // oracles/README.md: losses, norms (relative), weights
constexpr double kNormLimit = 1e-6;
constexpr double kWeightLimit = 3e-5;
constexpr std::int64_t kBatch = 16;

Batch batch_of(const CifarImages& images, std::int64_t first, std::int64_t count) {
  Batch batch{.inputs = at::empty({count, kCifarChannels, kCifarSide, kCifarSide}),
              .labels = at::empty({count}, at::kLong)};
  for (std::int64_t i = 0; i < count; ++i) {
    normalise_cifar(images.image(first + i), batch.inputs.data_ptr<float>() + i * kCifarPixels);
    batch.labels.data_ptr<std::int64_t>()[i] = images.labels[static_cast<std::size_t>(first + i)];
  }
  return batch;
}

/// The example's optimizer; `scheduler` begins with a comma, or is empty.
Config config_of(std::string_view scheduler, double clip) {
  return parse_config(fmt::format(R"({{"train_batch_size": 16, "zero_optimization": {{"stage": 3}},
        "gradient_clipping": {}, "optimizer": {{"type": "Adam", "params": {{"lr": 0.001,
        "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}}}}{}}})",
                                  clip, scheduler),
                      "the test", 1);
}

TEST(CifarNet, HasTheExamplesParameters) {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : cifar_parameters()) {
    count += parameter.numel();
  }
  EXPECT_EQ(count, 62'006);
}

TEST(CifarNet, FreshWeightsFillTorchsBoundsAndDependOnTheSeed) {
  const ParameterSpec& fc1 = cifar_parameters()[4];
  ASSERT_EQ(fc1.name, "fc1.weight");
  std::vector<float> a(static_cast<std::size_t>(fc1.numel()));
  std::vector<float> b(a.size());
  cifar_initial_weights(1)(fc1, 0, fc1.numel(), a.data());
  cifar_initial_weights(2)(fc1, 0, fc1.numel(), b.data());
  EXPECT_NE(a, b);
  const auto [low, high] = std::ranges::minmax(a);
  EXPECT_GE(low, -0.05F);
  EXPECT_LE(high, 0.05F);
  EXPECT_GT(high - low, 0.0999F);
  const double mean = std::accumulate(a.begin(), a.end(), 0.0) / static_cast<double>(a.size());
  EXPECT_NEAR(mean, 0, 5 * 0.05 / std::sqrt(3.0 * static_cast<double>(a.size())));
}

void expect_the_first_batch_of(const test::CifarReference& reference) {
  test::MathHarness harness(make_cifar_model({}), at::kFloat, reference.weights());
  const Batch batch = batch_of(reference.images(kBatch), 0, kBatch);
  const auto wanted = [&](const std::string& name) {
    return at::tensor(reference.values("first_batch", name));
  };
  EXPECT_LE((harness.logits(batch.inputs).flatten() - wanted("logits")).abs().max().item<double>(),
            reference.limit("logits", 1e-6));
  EXPECT_NEAR(harness.step(batch), wanted("loss").item<double>(), kLossLimit);
  for (const auto& [name, weight] : harness.parameters()) {
    const at::Tensor expected = wanted("grad." + name);
    const at::Tensor all = weight->grad_written ? weight->grad : weight->value.grad();
    const at::Tensor got =
        all.flatten().slice(0, 0, {}, static_cast<std::int64_t>(reference.stride()));
    EXPECT_LE((got - expected).abs().max().item<double>(),
              reference.limit("gradients", 2e-6) * all.abs().max().item<double>())
        << name;
  }
}

TEST(CifarNet, LogitsLossAndGradientsOfTheFirstBatch) {
  for (const fs::path& folder : test::cifar_references()) {
    SCOPED_TRACE(folder.string());
    expect_the_first_batch_of(test::CifarReference(folder));
  }
}

/// Loss, logits and gradients by ATen's operations and autograd.
struct Plain {
  std::vector<at::Tensor> parameters;
  at::Tensor logits, loss;

  Plain(const Batch& batch, const ParameterSource& source) {
    for (const ParameterSpec& spec : cifar_parameters()) {
      at::Tensor values = at::empty(spec.shape, at::kFloat);
      source(spec, 0, spec.numel(), values.data_ptr<float>());
      parameters.push_back(values.requires_grad_(true));
    }
    logits = cifar_logits(batch.inputs, parameters);
    loss = at::cross_entropy_loss(logits, batch.labels);
    loss.backward();
  }
};

void expect_fused_as_aten(const Batch& batch, const ParameterSource& source) {
  const Plain plain(batch, source);
  test::MathHarness fused(make_cifar_model({}), at::kFloat, source);
  EXPECT_LE((fused.logits(batch.inputs) - plain.logits).abs().max().item<double>(), 1e-6);
  EXPECT_NEAR(fused.step(batch), plain.loss.item<double>(), 1e-6);
  for (std::size_t i = 0; i < plain.parameters.size(); ++i) {
    const std::string& name = cifar_parameters()[i].name;
    const at::Tensor& expected = plain.parameters[i].grad();
    Weight* weight = fused.parameters().at(name);
    ASSERT_TRUE(weight->grad_written) << name;
    EXPECT_LE((weight->grad - expected).abs().max().item<double>(),
              4e-6 * expected.abs().max().item<double>())
        << name;
  }
}

TEST(CifarNet, TheFusedNetIsThePlainOneForEveryBatchSize) {
  const CifarImages images = generated_cifar(40, 1).train;
  for (const std::int64_t count : {1, 3, 16, 37}) {
    SCOPED_TRACE(count);
    expect_fused_as_aten(batch_of(images, 0, count), cifar_initial_weights(7));
  }
}

// Equal values under a pool: the gradient belongs to the first of them, as in torch. The first
// convolution sees only a channel that is the same everywhere, so all its outputs are equal; what
// the other channels hold at the chosen place shows in the gradients of their weights.
TEST(CifarNet, TheFirstOfEqualsGetsThePoolsGradient) {
  Batch batch = batch_of(generated_cifar(4, 1).train, 0, 4);
  batch.inputs.select(1, 0).fill_(0.5);
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    expect_fused_as_aten(
        batch, [seed](const ParameterSpec& spec, std::int64_t begin, std::int64_t end, float* out) {
          cifar_initial_weights(seed)(spec, begin, end, out);
          for (std::int64_t i = begin; spec.name == "conv1.weight" && i < end; ++i) {
            out[i - begin] *= i / 25 % 3 == 0 ? 1.0F : 0.0F;
          }
        });
  }
}

TEST(CifarNet, TheSeedScalesGradientsAndThreadsDoNotChangeThem) {
  const Batch batch = batch_of(generated_cifar(9, 1).train, 0, 9);
  test::MathHarness harness(make_cifar_model({}), at::kFloat, cifar_initial_weights(3));
  const int threads = at::get_num_threads();
  const float loss = harness.step(batch);
  const at::Tensor whole = harness.gradients().front().clone();
  at::set_num_threads(1);
  EXPECT_EQ(harness.step(batch), loss);
  EXPECT_TRUE(at::equal(harness.gradients().front(), whole));
  at::set_num_threads(threads);
  harness.step(batch, 0.25F);
  EXPECT_TRUE(at::equal(harness.gradients().front() * 4, whole));
}

TEST(CifarNet, ALabelThatIsNoClassIsTheUsersMistake) {
  Batch batch = batch_of(generated_cifar(2, 1).train, 0, 2);
  batch.labels.data_ptr<std::int64_t>()[1] = 10;
  test::MathHarness harness(make_cifar_model({}), at::kFloat, cifar_initial_weights(3));
  test::expect_error([&] { harness.step(batch); }, {"[model]", "label 10", "image 1"});
}

TEST(CifarNet, SixteenBitWeightsTakeTheSameBatches) {
  const Batch batch = batch_of(generated_cifar(8, 1).train, 0, 8);
  test::MathHarness exact(make_cifar_model({}), at::kFloat, cifar_initial_weights(3));
  test::MathHarness rounded(make_cifar_model({}), at::kBFloat16, cifar_initial_weights(3));
  EXPECT_NEAR(rounded.step(batch), exact.step(batch), 2e-2);
  // fp16 has no room for the harness's poison: the net alone.
  std::vector<at::Tensor> half;
  for (const ParameterSpec& spec : cifar_parameters()) {
    const at::Tensor values = at::empty(spec.shape, at::kFloat);
    cifar_initial_weights(3)(spec, 0, spec.numel(), values.data_ptr<float>());
    half.push_back(values.to(at::kHalf).requires_grad_(true));
  }
  const at::Tensor logits = cifar_logits(batch.inputs.to(at::kHalf), half);
  EXPECT_LE((logits - exact.logits(batch.inputs)).abs().max().item<double>(), 1e-2);
  logits.to(at::kFloat).square().sum().backward();
  for (const at::Tensor& parameter : half) {
    EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
  }
}

struct Trace {
  const char* name;
  std::string_view scheduler;
  double clip;
};

std::ostream& operator<<(std::ostream& out, const Trace& trace) { return out << trace.name; }

class CifarTrace : public testing::TestWithParam<Trace> {};

/// Losses and norms of 20 steps in file order, then the weights.
void expect_the_trace_of(const test::CifarReference& reference, const Trace& which) {
  const CifarImages images = reference.images(20 * kBatch);
  const simdjson::dom::object trace = reference.trace(which.name);
  Engine engine({.model = make_cifar_model(reference.weights()),
                 .config = config_of(which.scheduler, which.clip)});
  std::int64_t first = 0;
  for (std::size_t step = 0; step < 20; ++step) {
    const Batch batch = batch_of(images, first, kBatch);
    first += kBatch;
    const StepResult result = engine.train_step(std::span(&batch, 1));
    EXPECT_NEAR(result.loss, double(trace["loss"].at(step)), kLossLimit) << "step " << step + 1;
    const double norm = double(trace["grad_norm"].at(step));
    EXPECT_NEAR(result.verdict.norm.value, norm, kNormLimit * norm) << "step " << step + 1;
    EXPECT_EQ(result.tokens, kBatch);
  }
  engine.for_each_parameter([&](const ParameterSpec& parameter, std::span<const float> values) {
    const std::vector<float> expected =
        reference.values(fmt::format("final_{}", which.name), parameter.name);
    ASSERT_EQ(expected.size(), (values.size() - 1) / reference.stride() + 1);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(values[i * reference.stride()], expected[i], kWeightLimit)
          << parameter.name << "[" << i << "]";
    }
  });
}

TEST_P(CifarTrace, AsTorchAndDeepSpeedsSchedule) {
  // A small set's steps enlarge rounding beyond these limits from the tenth on.
  TANDEM_NEEDS_SHARED("oracles/cifar");
  expect_the_trace_of(test::CifarReference(test::shared("oracles/cifar")), GetParam());
}

constexpr std::string_view kWarmup =
    R"(, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001,
        "warmup_num_steps": 1000}})";

INSTANTIATE_TEST_SUITE_P(Traces, CifarTrace,
                         testing::Values(Trace{"deepspeed", kWarmup, 1.0},
                                         Trace{"deepspeed_constant_lr", "", 1.0},
                                         Trace{"deepspeed_constant_lr_clip_0.1", "", 0.1}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

/// The loader feeds what the caller would: same losses for batches handed in, for every number of
/// workers.
TEST(CifarNet, TheOrderOfBatchesDoesNotDependOnWorkers) {
  const auto images = std::make_shared<const CifarImages>(generated_cifar(150, 1).train);
  const auto losses_with = [&](int workers, std::size_t depth) {
    Engine engine({.model = make_cifar_model(cifar_initial_weights(5)),
                   .config = config_of("", 1.0),
                   .dataset = std::make_shared<CifarDataset>(images),
                   .epochs = 2,
                   .seed = 9,
                   .prefetch = {.depth = depth, .workers = workers}});
    std::vector<double> losses;
    while (const auto result = engine.train_step()) {
      losses.push_back(result->loss);
    }
    return losses;
  };
  const std::vector<double> one = losses_with(1, 1);
  EXPECT_EQ(one.size(), 20U);  // 150 records: 9 whole batches and a short one, twice
  EXPECT_EQ(losses_with(2, 2), one);
  EXPECT_EQ(losses_with(4, 7), one);
}

}  // namespace
}  // namespace tandem
