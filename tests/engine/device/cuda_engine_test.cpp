// The engine on a GPU: on the fake of CUDA's calls what only a GPU has, in the order that the
// device would work in; and on a real one, where there is one, what the other devices are tested
// for.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/tensors/device_choice.hpp"
#include "engine/tensors/torch_cuda.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/fakes/fake_run.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/placements.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::fake_gpus;
using test::FakeRun;
using test::kPaces;
using test::Pace;
using ::testing::AllOf;
using ::testing::HasSubstr;
using toy::arguments;
using toy::Setting;
using toy::train;
using toy::TrainingRun;

// Memory, pins and streams are taken before the first step, and events and points are there after
// it.
TEST(CudaEngine, AStepTakesNothingThatMayWaitForTheDevice) {
  for (const auto& placements : toy::default_and_all_placements()) {
    for (const int stage : {0, 3}) {
      const Setting setting =
          FakeRun::on_gpu({.stage = stage, .accumulation = 2, .placements = placements}, kPaces[0]);
      const FakeRun fake(kPaces[0]);
      Engine engine(arguments(setting));
      const int before = fake.cuda.heavy_calls();
      EXPECT_GT(before, 0);
      for (int step = 0; step < 4; ++step) {
        const std::vector<Batch> batches = {toy::batch(2 * step), toy::batch(2 * step + 1)};
        engine.train_step(batches);
      }
      EXPECT_EQ(fake.cuda.heavy_calls(), before) << "stage " << stage;
    }
  }
}

// The lane goes ahead of the device: at the slow pace a step's time is its segments', one after the
// other, and forward()'s own waiting is only for the loss.
TEST(CudaEngine, TheDeviceIsTheBusiestAndItsTimeIsKnown) {
  const Pace pace{"slower segments", 3ms, 1us};
  const FakeRun fake(pace);
  Engine engine(arguments(FakeRun::on_gpu({.stage = 3}, pace)));
  const Batch batch = toy::batch(0);
  const StepResult result = engine.train_step(std::span(&batch, 1));
  const double least_s = 3e-3 * 2 * static_cast<double>(engine.model().segments.size());
  EXPECT_GE(result.exposure.compute_busy_s, least_s);
  EXPECT_LE(result.exposure.compute_busy_s, result.step_time_s);
  EXPECT_EQ(result.peak_device_bytes, static_cast<std::int64_t>(engine.resident_bytes().device));
}

// More micro-steps than losses fit into the memory that they are read back to.
TEST(CudaEngine, ReadsBackTheLossesOfManyMicroSteps) {
  Setting setting{.overlap = Overlap::kComm, .accumulation = 1100};
  setting.optimizer_threads = 1;
  const TrainingRun expected = train(setting, 1);
  const Pace pace{"quick", Duration(0), Duration(0)};
  const FakeRun fake(pace);
  EXPECT_EQ(train(FakeRun::on_gpu(setting, pace), 1), expected);
}

/// Its LibTorch is out of memory from the n-th segment on.
class FullDevice final : public test::FakeComputeDevice {
 public:
  explicit FullDevice(int segments) : FakeComputeDevice(1us), left_(segments) {}
  void queue(std::function<void()> work) override {
    run_on_device([this] {
      TORCH_CHECK_WITH(OutOfMemoryError, left_-- > 0,
                       "CUDA out of memory. Tried to allocate 2.00 GiB. If reserved but "
                       "unallocated memory is large try something");
    });
    FakeComputeDevice::queue(std::move(work));
  }

 private:
  int left_;
};

TEST(CudaEngine, SaysWhichSegmentFoundNoMemory) {
  const FakeRun fake(kPaces[0]);
  Setting setting = FakeRun::on_gpu({.stage = 3}, kPaces[0]);
  setting.open_gpu = [](int /*local_rank*/) {
    std::shared_ptr<Gpu> gpu = fake_gpus(1us)(0);
    gpu->compute = std::make_shared<FullDevice>(2 + 3);  // two parts of a batch, three segments
    return gpu;
  };
  Engine engine(arguments(setting));
  const Batch batch = toy::batch(0);
  EXPECT_THAT(
      [&] { engine.train_step(std::span(&batch, 1)); },
      ThrowsError(ExitCode::kRefused,
                  "[device] out of device memory in forward block 2: CUDA out of memory. Tried to "
                  "allocate 2.00 GiB; use activation_checkpointing, a smaller micro-batch, "
                  "shorter rows or stage 3"));
}

TEST(CudaEngine, TrainsOnWhereNothingCanBePinnedAndSaysSoOnce) {
  const Setting setting;
  const TrainingRun expected = train(setting, 2);
  FakeRun fake(kPaces[0]);
  fake.cuda.pinned_limit = 0;
  fake.cuda.pageable_is_wrong = false;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(train(FakeRun::on_gpu(setting, kPaces[0]), 2), expected);
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string words = "for gpu 0 (fake); copies are slower";
  EXPECT_THAT(said, HasSubstr(words));
  EXPECT_EQ(said.find(words), said.rfind(words));
}

// A kernel would fault on it, and the process could not use the device any more.
TEST(CudaEngine, AValueOutsideOfATableDoesNotReachTheDevice) {
  const FakeRun fake(kPaces[0]);
  Engine engine(arguments(FakeRun::on_gpu({}, kPaces[0])));
  Batch batch = toy::batch(0);
  engine.train_step(std::span(&batch, 1));
  batch.inputs = batch.inputs.clone();
  batch.inputs[1][2] = toy::kVocabulary;
  EXPECT_THAT([&] { engine.train_step(std::span(&batch, 1)); },
              ThrowsError(ExitCode::kUserInput, HasSubstr("token id 37 is outside")));
}

TEST(CudaEngine, ALostDeviceEndsTheStepWithItsError) {
  FakeRun fake(kPaces[0]);
  Engine engine(arguments(FakeRun::on_gpu({.stage = 3}, kPaces[0])));
  const Batch batch = toy::batch(0);
  engine.train_step(std::span(&batch, 1));
  engine.drain();
  fake.cuda.lose();
  EXPECT_THAT(
      [&] { engine.train_step(std::span(&batch, 1)); },
      ThrowsError(AllOf(HasSubstr("[device] gpu 0 (fake)"), HasSubstr("cudaErrorIllegalAddress"))));
}

// ---- what --device means ----
TEST(DeviceChoice, TakesAGpuWhereThreeThingsComeTogether) {
  const DeviceFacts all{.built_with_cuda = true, .gpus = 1};
  EXPECT_EQ(choose_device("auto", all), DeviceKind::kCuda);
  EXPECT_EQ(choose_device("cuda", all), DeviceKind::kCuda);
  EXPECT_EQ(choose_device("cpu", all), DeviceKind::kCpu);
  EXPECT_EQ(choose_device("sim", all), DeviceKind::kSim);
  const std::pair<DeviceFacts, const char*> lacking[] = {
      {{.built_with_cuda = false, .gpus = 1}, "this build has no CUDA parts"},
      {{.built_with_cuda = true, .gpus = 0}, "no GPU with a driver was found"},
      {{.built_with_cuda = true, .gpus = 1, .torch_lacks_cuda = "this LibTorch is one for the CPU"},
       "this LibTorch is one for the CPU"}};
  for (const auto& [facts, why] : lacking) {
    EXPECT_EQ(choose_device("auto", facts), DeviceKind::kCpu);
    EXPECT_THAT(
        [&] { (void)choose_device("cuda", facts); },
        ThrowsError(ExitCode::kUserInput, HasSubstr(std::string("device is cuda, and ") + why)));
  }
}

// ---- on a real GPU ----
#define REQUIRE_GPU()                                                               \
  if (const std::string why = why_no_cuda(DeviceFacts::of_machine()); !why.empty()) \
  GTEST_SKIP() << "needs --device cuda: " << why

/// Two runs may differ by the rounding of a type's operations, step after step.
void expect_near(const TrainingRun& got, const TrainingRun& expected, double limit) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < got.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], expected.losses[i], limit * std::abs(expected.losses[i]));
    EXPECT_NEAR(got.norms[i], expected.norms[i], 10 * limit * expected.norms[i]);
  }
}

TEST(CudaEngine, RealTrainsAsTheCpuDoes) {
  REQUIRE_GPU();
  for (const auto& [type, limit] : {std::pair{"fp32", 1e-4}, {"bf16", 3e-2}, {"fp16", 1e-2}}) {
    Setting setting{.accumulation = 2, .type = type};
    const TrainingRun on_cpu = train(setting);
    setting.device = DeviceKind::kCuda;
    expect_near(train(setting), on_cpu, limit);
  }
}

TEST(CudaEngine, RealGivesOneRunsBitsAtEveryStageAndOverlap) {
  REQUIRE_GPU();
  for (const std::string type : {"fp32", "bf16", "fp16"}) {
    Setting setting{.stage = 0, .overlap = Overlap::kOff, .accumulation = 2, .type = type};
    setting.device = DeviceKind::kCuda;
    const TrainingRun expected = train(setting);
    for (const int stage : {0, 1, 2, 3}) {
      for (const Overlap overlap :
           {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull}) {
        setting.stage = stage;
        setting.overlap = overlap;
        EXPECT_EQ(train(setting), expected)
            << type << " stage " << stage << " " << name_of(overlap);
      }
    }
  }
}

TEST(CudaEngine, RealTwoRanksShareTheGpu) {
  REQUIRE_GPU();
  Setting setting{.accumulation = 2};
  setting.device = DeviceKind::kCuda;
  const TrainingRun expected = toy::train_on_ranks(setting, 2, 3);
  setting.stage = 1;
  setting.overlap = Overlap::kOff;
  EXPECT_EQ(toy::train_on_ranks(setting, 2, 3), expected);
}

TEST(CudaEngine, AtenHoldsNothingOfAGpuWhereItComputesInHostMemory) {
  EXPECT_EQ(held_by_aten(at::kCPU), 0U);
}

TEST(CudaEngine, RealCountsWhatAtenHolds) {
  REQUIRE_GPU();
  Setting setting;
  setting.device = DeviceKind::kCuda;
  Engine engine(arguments(setting));
  const Batch batch = toy::batch(0);
  engine.train_step(std::span(&batch, 1));
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const at::Device gpu(at::kCUDA, 0);
  (void)at::empty({kBytes}, at::TensorOptions(at::kByte).device(gpu));
  const std::size_t held = held_by_aten(gpu);  // at its most: the tensor is gone
  EXPECT_GE(held, static_cast<std::size_t>(kBytes));
  EXPECT_GT(engine.resident_bytes().device, held) << "the engine's blocks besides";
}

TEST(CudaEngine, RealEvaluatesAndGivesLogits) {
  REQUIRE_GPU();
  Setting setting;
  Engine on_cpu(arguments(setting));
  setting.device = DeviceKind::kCuda;
  Engine on_gpu(arguments(setting));
  EXPECT_NEAR(on_gpu.evaluate(toy::batch(1)), on_cpu.evaluate(toy::batch(1)), 1e-4);
  EXPECT_TRUE(at::allclose(on_gpu.logits(toy::batch(1)), on_cpu.logits(toy::batch(1)), 1e-3, 1e-4));
  EXPECT_GT(on_gpu.measure_peak().best_tflops, 0);
}

}  // namespace
}  // namespace tandem
