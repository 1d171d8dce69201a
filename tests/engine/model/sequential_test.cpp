// Models made of layers, their first values, data made of tensors, and what is said of a model or a
// batch that cannot work.
#include "engine/model/sequential.hpp"

#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/initialize.hpp"
#include "engine/model/model_check.hpp"
#include "engine/model/tensor_dataset.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<float> values_of(const Initializer& initializer, const ParameterSpec& parameter,
                             std::uint64_t seed = 1) {
  std::vector<float> values(static_cast<std::size_t>(parameter.numel()));
  initializer(parameter, seed, 0, parameter.numel(), values.data());
  return values;
}

TEST(Initializers, APartHasTheValuesOfTheWhole) {
  const ParameterSpec parameter{.name = "first.weight", .shape = {30, 20}};
  for (const Initializer& initializer :
       {init::uniform(-1, 2), init::normal(0.5, 3), init::kaiming_uniform(), init::xavier_normal(),
        init::ones()}) {
    const std::vector<float> whole = values_of(initializer, parameter);
    std::vector<float> part(100);
    initializer(parameter, 1, 250, 350, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 250));
  }
}

TEST(Initializers, FollowFromSeedAndName) {
  const ParameterSpec parameter{.name = "a", .shape = {8, 8}};
  const ParameterSpec other{.name = "b", .shape = {8, 8}};
  const Initializer normal = init::normal(1);
  EXPECT_EQ(values_of(normal, parameter, 1), values_of(normal, parameter, 1));
  EXPECT_NE(values_of(normal, parameter, 1), values_of(normal, parameter, 2));
  EXPECT_NE(values_of(normal, parameter, 1), values_of(normal, other, 1));
}

TEST(Initializers, HaveTheirDeviation) {
  const ParameterSpec parameter{.name = "w", .shape = {300, 200}};
  const auto expect = [&](const Initializer& initializer, double mean, double deviation) {
    const std::vector<float> values = values_of(initializer, parameter);
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += value;
      squares += (value - mean) * (value - mean);
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_NEAR(sum / count, mean, 0.02 * deviation);
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 0.02 * deviation);
  };
  expect(init::uniform(-1, 3), 1, 4 / std::sqrt(12));
  expect(init::normal(0.5, 3), 3, 0.5);
  expect(init::kaiming_normal(), 0, std::sqrt(2.0 / 200));
  expect(init::kaiming_uniform(), 0, std::sqrt(2.0 / 200));
  expect(init::xavier_normal(), 0, std::sqrt(2.0 / 500));
  expect(init::xavier_uniform(), 0, std::sqrt(2.0 / 500));
  EXPECT_THAT([] { (void)values_of(init::xavier_normal(), {.name = "bias", .shape = {4}}); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("bias")));
}

constexpr const char* kConfig = R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0,
  "optimizer": {"type": "SGD", "params": {"lr": 0.05}}})";

/// y = 2 a - 3 b + 1.
struct Line {
  at::Tensor x = at::linspace(-1, 1, 128).view({64, 2}).clone();
  at::Tensor y;
  Line() {
    x.select(1, 1).copy_(x.select(1, 1).flip(0));
    y = 2 * x.select(1, 0) - 3 * x.select(1, 1) + 1;
  }
};

Model regression() { return Sequential(3).add("only", {linear(2, 1)}).build(mean_squared_error()); }

Initialized started(Model model, std::shared_ptr<const Dataset> data = nullptr) {
  return initialize({.model = std::move(model),
                     .config = ConfigSource::of_text(kConfig),
                     .dataset = std::move(data),
                     .communicator = std::make_shared<Alone>()});
}

TEST(Sequential, NamesParametersBySegmentAndLayer) {
  const Model model = Sequential()
                          .add("in", {embedding(10, 4), layer_norm(4).named("norm")})
                          .add("block", {linear(4, 8).named("up"), activation(at::relu),
                                         linear(8, 4).named("down")})
                          .add("out", {linear(4, 10, {.bias = false, .same_as = "in.weight"})})
                          .build(cross_entropy());
  check_model(model);
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      names.push_back(parameter.name);
    }
  }
  EXPECT_THAT(names, ::testing::ElementsAre("in.weight", "in.norm.weight", "in.norm.bias",
                                            "block.up.weight", "block.up.bias", "block.down.weight",
                                            "block.down.bias"));
  EXPECT_EQ(model.segments.size(), 3U);
  EXPECT_EQ(model.segments[2].weights.at(0).unit, 0U);
}

TEST(Sequential, LearnsTokensWithTiedWeights) {
  auto [engine, optimizer, loader, scheduler] =
      started(Sequential(1)
                  .add("in", {embedding(10, 16, 0.1)})
                  .add("block", {linear(16, 16), activation(at::tanh)})
                  .add("out", {linear(16, 10, {.bias = false, .same_as = "in.weight"})})
                  .build(cross_entropy()));
  const at::Tensor ids = at::arange(80).view({8, 10}).remainder(10);
  const Batch batch{.inputs = ids, .labels = ids};
  const double first = engine.train_step(std::vector{batch}).loss;
  EXPECT_NEAR(first, std::log(10), 0.3);
  double last = first;
  for (int i = 0; i < 300; ++i) {
    last = engine.train_step(std::vector{batch}).loss;
  }
  EXPECT_LT(last, first - 0.3);
  EXPECT_EQ(engine.logits({.inputs = ids}).sizes(), (std::vector<std::int64_t>{8, 10, 10}));
}

TEST(Sequential, LearnsNumbers) {
  const Line line;
  auto [engine, optimizer, loader, scheduler] =
      started(regression(), std::make_shared<TensorDataset>(line.x, line.y));
  EXPECT_EQ(loader.size(), 8);
  for (int epoch = 0; epoch < 60; ++epoch) {
    for (auto& batch : loader) {
      EXPECT_EQ(batch.labels.scalar_type(), at::kFloat);
      engine.backward(engine.forward(batch));
      engine.step();
    }
  }
  const at::Tensor error = engine.logits({.inputs = line.x}).flatten() - line.y;
  EXPECT_LT(error.abs().max().item<float>(), 0.05);
  const EvalSums sums = engine.evaluate_sums(TensorDataset(line.x, line.y), {.micro_batch = 10});
  EXPECT_EQ(sums.labels, 64);
  EXPECT_LT(sums.loss / 64, 1e-3);
}

TEST(Sequential, SaysWhatIsWrong) {
  const auto text = [](const Sequential& sequential) {
    return error_text([&] { (void)sequential.build(cross_entropy()); });
  };
  EXPECT_THAT(text(Sequential().add("a", {linear(2, 2), linear(2, 2)})),
              HasSubstr("two parameters are called a.weight; name the layers of segment a"));
  EXPECT_THAT(text(Sequential().add("a", {linear(2, 2)}).add("b", {activation(at::tanh)})),
              HasSubstr("segment b has no parameters"));
  EXPECT_THAT(text(Sequential().add("a", {linear(2, 3, {.same_as = "x.weight"})})),
              HasSubstr("a.weight is to be the same as x.weight, and no segment before it"));
  EXPECT_THAT(text(Sequential()
                       .add("a", {linear(2, 3)})
                       .add("b", {linear(3, 2, {.bias = false, .same_as = "a.weight"})})),
              HasSubstr("their shapes are [2, 3] and [3, 2]"));
}

TEST(ModelCheck, SaysWhatIsWrong) {
  const auto text = [](auto change) {
    Model model = regression();
    change(model);
    return error_text([&] { (void)started(std::move(model)); });
  };
  EXPECT_THAT(text([](Model& m) { m.segments[0].weights[0].unit = 9; }),
              HasSubstr("[model] segment only uses a weight of unit 9, and the last unit is 0"));
  EXPECT_THAT(text([](Model& m) { m.segments[0].weights[1].parameter = 2; }),
              HasSubstr("uses parameter 2 of unit only, whose last one is 1"));
  EXPECT_THAT(text([](Model& m) { m.source = nullptr; }), HasSubstr("no source of initial values"));
  EXPECT_THAT(text([](Model& m) { m.segments[0].run = nullptr; }), HasSubstr("nothing to run"));
  EXPECT_THAT(text([](Model& m) { m.segments[0].weights.clear(); }), HasSubstr("no weights"));
  EXPECT_THAT(text([](Model& m) { m.segments.clear(); }), HasSubstr("no segments"));
  EXPECT_THAT(text([](Model& m) { m.units[0].parameters[1].name = "only.weight"; }),
              HasSubstr("two parameters are called only.weight"));
  EXPECT_THAT(text([](Model& m) { m.units[0].parameters[1].shape = {0}; }),
              HasSubstr("only.bias has the shape [0]"));
}

TEST(SegmentErrors, NameTheSegmentInOneLine) {
  auto [engine, optimizer, loader, scheduler] = started(
      Sequential(1).add("body", {linear(2, 4)}).add("head", {linear(4, 3)}).build(cross_entropy()));
  const auto text = error_text([&] {
    (void)engine.forward({.inputs = at::zeros({8, 2}), .labels = at::full({8}, 532, at::kLong)});
  });
  EXPECT_THAT(text, HasSubstr("[model] segment head, forward: Target 532 is out of bounds"));
  EXPECT_THAT(text, HasSubstr("inputs Float [8, 2], labels Long [8]"));
  EXPECT_THAT(text, Not(HasSubstr("\n")));
}

TEST(TensorDataset, RefusesOtherRows) {
  const auto text = [](const at::Tensor& inputs, const at::Tensor& labels) {
    return error_text([&] { (void)TensorDataset(inputs, labels); });
  };
  EXPECT_THAT(text(at::zeros({3, 2}), at::zeros({4})), HasSubstr("Float [3, 2]"));
  EXPECT_THAT(text(at::zeros({3, 2}, at::kLong), at::zeros({3, 2})), HasSubstr("Long [3, 2]"));
  EXPECT_THAT(text({}, at::zeros({4})), HasSubstr("missing"));
}

float weight_after(double factor, bool divided) {
  const Line line;
  auto [engine, optimizer, loader, scheduler] = started(regression());
  const Loss loss = engine.forward({.inputs = line.x, .labels = line.y});
  engine.backward(divided ? loss / (1 / factor) : factor * loss);
  engine.step();
  float first = 0;
  engine.for_each_parameter([&](const ParameterSpec& parameter, std::span<const float> values) {
    first = parameter.name == "only.weight" ? values[0] : first;
  });
  return first;
}

TEST(Backward, MeansItsArgument) {
  const float start = weight_after(0, false);
  const float once = weight_after(1, false) - start;
  EXPECT_NE(once, 0);
  EXPECT_NEAR(weight_after(2, false) - start, 2 * once, 1e-6);
  EXPECT_NEAR(weight_after(0.5, true) - start, 0.5 * once, 1e-6);
}

TEST(Backward, RefusesAnotherLoss) {
  const Line line;
  const Batch batch{.inputs = line.x, .labels = line.y};
  auto [engine, optimizer, loader, scheduler] = started(regression());
  const auto refused = [&engine = engine](const Loss& loss) {
    return error_text([&] { engine.backward(loss); });
  };
  EXPECT_THAT(refused({}), HasSubstr("not the last forward()'s"));
  const Loss first = engine.forward(batch);
  engine.backward(first);
  EXPECT_THAT(refused(first), HasSubstr("not the last forward()'s"));
  (void)engine.step();
  const Loss second = engine.forward(batch);
  EXPECT_THAT(refused(first), HasSubstr("not the last forward()'s"));
  EXPECT_THAT(refused({second.value}), HasSubstr("not the last forward()'s"));
  EXPECT_THAT(refused(second * std::nan("")), HasSubstr("a factor is finite"));
  engine.backward(second);  // nothing was lost
  EXPECT_EQ(engine.step()->step, 2);
}

}  // namespace
}  // namespace tandem
