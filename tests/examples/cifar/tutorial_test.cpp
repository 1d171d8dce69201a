// cifar10_tutorial's first steps beside torch's: losses, and the weights that its loop leaves.
#include <ATen/ATen.h>

#include "models/cifar/net.hpp"
#include "models/io/weights_writer.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/models/cifar/reference.hpp"
#include "trainer/cifar/accuracy.hpp"
#include "trainer/cifar/aten_net.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;

class CifarTutorial : public TrainerTest {};

std::vector<TensorPlan> initial_plan() {
  std::vector<TensorPlan> plan;
  for (const ParameterSpec& spec : cifar_parameters()) {
    plan.push_back({spec.name, TensorType::kF32, spec.shape});
  }
  return plan;
}

void expect_tutorials_losses(const std::string& file, const test::CifarReference& reference) {
  const simdjson::dom::object trace = reference.trace("tutorial_sgd");
  std::istringstream lines(content_of(file));
  simdjson::dom::parser parser;
  std::size_t step = 0;
  for (std::string line; std::getline(lines, line); ++step) {
    EXPECT_NEAR(double(parser.parse(line)["loss"]), double(trace["loss"].at(step)), 2e-6)
        << "step " << step + 1;
  }
  EXPECT_EQ(step, 20U);
}

/// The loop's net in this process, over the same batches.
void expect_tutorials_weights(const CifarImages& images, const test::CifarReference& reference) {
  AtenNet net(reference.weights());
  for (std::int64_t k = 0; k < 20; ++k) {
    const std::vector<std::int64_t> indices = {4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3};
    at::Tensor labels = at::zeros({4}, at::kLong);
    for (std::int64_t i = 0; i < 4; ++i) {
      labels.data_ptr<std::int64_t>()[i] = images.labels[static_cast<std::size_t>(4 * k + i)];
    }
    net.step(image_tensor(images, indices), labels, {});
  }
  for (std::size_t p = 0; p < cifar_parameters().size(); ++p) {
    const std::string& name = cifar_parameters()[p].name;
    const std::vector<float> expected = reference.values("final_tutorial_sgd", name);
    const auto* got = net.parameters()[p].data_ptr<float>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(got[i * reference.stride()], expected[i], 3e-5) << name << "[" << i << "]";
    }
  }
}

/// The tutorial's run on a reference's images: its losses and its weights are torch's.
TEST_F(CifarTutorial, TraceLossesAndWeightsAreTorchs) {
  for (const fs::path& folder : test::cifar_references()) {
    SCOPED_TRACE(folder.string());
    const test::CifarReference reference(folder);
    const CifarImages images = reference.images(80);
    const std::string name = reference.own() ? "own" : "large";
    fs::create_directories(folder_ / name);
    const auto bytes = [&](std::int64_t count) {
      std::string all;
      for (std::int64_t i = 0; i < count; ++i) {
        all += static_cast<char>(images.labels[static_cast<std::size_t>(i)]);
        all.append(reinterpret_cast<const char*>(images.image(i)), kCifarPixels);
      }
      return all;
    };
    write(name + "/data_batch_1.bin", bytes(80));
    write(name + "/test_batch.bin", bytes(10));
    WeightsWriter writer(folder_ / name, initial_plan(), {.file = "initial.safetensors"});
    for (const ParameterSpec& spec : cifar_parameters()) {
      std::vector<float> values(static_cast<std::size_t>(spec.numel()));
      reference.weights()(spec, 0, spec.numel(), values.data());
      writer.append_f32(values);
    }
    writer.finish();
    const Finished done =
        shell(fmt::format("'{1}/cifar10_tutorial' --data_dir '{0}' --init_weights "
                          "'{0}/initial.safetensors' --no-shuffle --steps 20 "
                          "--log-interval 10 --output_dir '{0}/t'",
                          path(name), test::bin_dir()));
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, ContainsRegex("\n\\[1,    10\\] loss: 2\\.[0-9]+\n"));
    EXPECT_THAT(done.out, ContainsRegex("Accuracy of the network on the 10 test images: [0-9]+ %"));
    expect_tutorials_losses(path(name + "/t/losses.jsonl"), reference);
    expect_tutorials_weights(images, reference);
  }
}

}  // namespace
}  // namespace tandem
