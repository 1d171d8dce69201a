// Updates on a device have the bits of those on the pool, wherever master, moments, gradient and
// weight lie; what lies on the device crosses no link, and what no range covers stays as it is.
#include "actors/optimizer/device_updates.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device/sim_device.hpp"
#include "runtime/scope.hpp"
#include "tests/actors/kernels/update/packed_reference.hpp"
#include "tests/actors/optimizer/optimizer_world.hpp"

namespace tandem {
namespace {

using test::LayoutCase;
using test::LayoutShard;

constexpr std::size_t kElements = 9001;
constexpr std::size_t kSlice = 2560;  // the last one is short
constexpr std::size_t kStage = 64 * kSlice;

const UpdateConfig kAdamW{.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1, .seed = 5};
const LayoutCase kCases[] = {
    {StateLayout::kFp32, DType::kF32, DType::kF32},
    {StateLayout::kFp32, DType::kBF16, DType::kF32},
    {StateLayout::kSplit, DType::kBF16, DType::kF32},
    {StateLayout::kBf16, DType::kBF16, DType::kBF16},
    {StateLayout::kBf16, DType::kF32, DType::kF32},
    {StateLayout::kInt8, DType::kBF16, DType::kBF16},
    {StateLayout::kInt8, DType::kF32, DType::kF32},
};

/// The parts of a unit that are in device memory.
enum class Side { kAll, kWeightAndGradient, kWeight, kNothing };

struct Pair : test::ShardPair {
  // With gaps: frozen parameters between two groups.
  explicit Pair(const LayoutCase& types)
      : test::ShardPair(kAdamW, types, kElements,
                        {{0, 1024, 0}, {1152, 4992, 1}, {5120, kElements, 0}}) {
    unit.buffers.position = 640;
  }

  [[nodiscard]] bool on_device(const void* at, Side side) {
    const auto lies_in = [at](const void* array, std::size_t bytes) {
      const auto* begin = static_cast<const std::byte*>(array);
      return begin != nullptr && at >= begin && at < begin + bytes;
    };
    const UpdateBuffers& b = home.buffers;
    const std::size_t size = kElements * 4;
    const bool is_weight =
        lies_in(b.weight, kElements * 2) || lies_in(spare.buffers.weight, kElements * 2) ||
        (b.weight == nullptr && (lies_in(b.master, size) || lies_in(spare.buffers.master, size)));
    const bool is_gradient = lies_in(b.gradient, kElements * bytes_of(b.gradient_type));
    return side == Side::kAll || (is_weight && side != Side::kNothing) ||
           (is_gradient && side == Side::kWeightAndGradient);
  }

  [[nodiscard]] PlacedState placed_for(Side side) {
    PlacedState made = placed(Place::kHost, unit);
    const auto place = [&]<class T>(T*& array, const ArrayUse&, Placed<T>& made_array) {
      made_array = {on_device(array, side) ? Place::kDevice : Place::kHost, array};
    };
    visit_arrays(unit, UpdatePass::kInPlace, place, made);
    return made;
  }

  /// All bytes of home and shadow.
  std::vector<std::byte> bytes() {
    std::vector<std::byte> all;
    visit_arrays(unit, UpdatePass::kInPlace, [&]<class T>(T*& array, const ArrayUse& use) {
      if (array != nullptr) {
        const auto* begin = static_cast<const std::byte*>(static_cast<const void*>(array));
        all.insert(all.end(), begin, begin + use.bytes_of(kElements));
      }
    });
    return all;
  }
};

struct DeviceWorld {
  ManualClock clock;
  std::optional<EventLoop> loop;
  std::optional<SimDevice> device;
  DeviceBuffer buffers;
  std::optional<DeviceUpdates> updates;
  Side side;

  DeviceWorld(Side on_device, bool virtual_time) : side(on_device) {
    if (virtual_time) {
      loop.emplace(EventLoop::Options{.name = "virtual", .clock = &clock});
    } else {
      loop.emplace(EventLoop::Options{.name = "real"});
    }
    device.emplace(*loop, SimDevice::Options{.time = virtual_time ? SimDevice::Time::kVirtual
                                                                  : SimDevice::Time::kReal,
                                             .to_device_bytes_per_s = 20e9,
                                             .to_host_bytes_per_s = 10e9});
    buffers = device->allocate(DeviceUpdates::kSlices * kStage);
    updates.emplace(DeviceUpdates::Options{
        .device = &*device,
        .buffers = {Place::kDevice, side == Side::kAll ? nullptr : buffers.data()},
        .buffer_bytes = side == Side::kAll ? 0 : kStage});
  }

  /// The slices up to `end`, as many at a time as the runner takes.
  void run(UpdatePass pass, Pair& pair, const UpdateStep* steps, std::size_t end = kElements) {
    const PlacedState unit = pair.placed_for(side);
    loop->run(
        [](DeviceUpdates* runner, UpdateSlice whole) -> Task<> {
          Scope scope(EventLoop::current(), "slices");
          for (std::size_t i = 0; i < runner->slices_under_way(); ++i) {
            scope.spawn(
                "slices",
                [](DeviceUpdates* on, UpdateSlice slice, std::size_t first) -> Task<> {
                  for (std::size_t begin = first * kSlice; begin < slice.end;
                       begin += on->slices_under_way() * kSlice) {
                    UpdateSlice part = slice;
                    part.begin = begin;
                    part.end = std::min(begin + kSlice, slice.end);
                    co_await on->run(part);
                  }
                },
                runner, whole, i);
          }
          co_await scope.join();
        },
        &*updates,
        UpdateSlice{.unit = &unit, .steps = steps, .pass = pass, .begin = 0, .end = end});
  }
};

void run_here(UpdatePass pass, Pair& pair, const UpdateStep* steps, std::size_t end = kElements) {
  run_update_pass(pass, pair.unit, steps, 0, end);
}

class DeviceUpdatesOf : public ::testing::TestWithParam<std::tuple<LayoutCase, bool>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, DeviceUpdatesOf,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Bool()),
                         [](const auto& info) {
                           const LayoutCase& types = std::get<0>(info.param);
                           return fmt::format("{}_{}_{}", name_of(types.layout),
                                              name_of(types.weight),
                                              std::get<1>(info.param) ? "virtual" : "real");
                         });

TEST_P(DeviceUpdatesOf, HaveTheBitsOfThePass) {
  const auto& [types, virtual_time] = GetParam();
  const UpdateStep likely[] = {UpdateStep::make(kAdamW, 3, 1.0), UpdateStep::make(kAdamW, 3, 0.5)};
  const UpdateStep clipped[] = {UpdateStep::make(kAdamW, 3, 0.1),
                                UpdateStep::make(kAdamW, 3, 0.05)};
  constexpr std::size_t kPart = 2 * kSlice;  // how far a speculative pass came
  for (const Side side : {Side::kAll, Side::kWeightAndGradient, Side::kWeight, Side::kNothing}) {
    SCOPED_TRACE(static_cast<int>(side));
    Pair expected(types);
    Pair got(types);
    DeviceWorld world(side, virtual_time);
    const std::vector<std::byte> before = got.bytes();
    const auto same = [&](const char* what) {
      EXPECT_TRUE(got.bytes() == expected.bytes()) << what;
    };
    run_here(UpdatePass::kInPlace, expected, likely);
    world.run(UpdatePass::kInPlace, got, likely);
    same("in place");
    EXPECT_TRUE(got.bytes() != before);
    run_here(UpdatePass::kSpeculative, expected, likely);
    world.run(UpdatePass::kSpeculative, got, likely);
    same("ahead");
    commit_speculative(expected.unit);
    commit_speculative(got.unit);
    run_here(UpdatePass::kSpeculative, expected, likely, kPart);
    world.run(UpdatePass::kSpeculative, got, likely, kPart);
    run_here(UpdatePass::kRedo, expected, clipped, kPart);
    world.run(UpdatePass::kRedo, got, clipped, kPart);
    same("again");
    run_here(UpdatePass::kSpeculative, expected, likely, kPart);
    world.run(UpdatePass::kSpeculative, got, likely, kPart);
    run_here(UpdatePass::kRollback, expected, likely, kPart);
    world.run(UpdatePass::kRollback, got, likely, kPart);
    same("back");
    EXPECT_EQ(world.updates->bytes_in() == 0, side == Side::kAll);
    EXPECT_EQ(world.updates->bytes_out() == 0, side == Side::kAll);
  }
}

/// 8 bytes of moments and 4 of a master per element each way, and nothing else.
TEST(DeviceUpdates, MoveWhatThePassReadsAndWrites) {
  Pair pair(kCases[1]);
  DeviceWorld world(Side::kWeightAndGradient, true);
  const UpdateStep steps[] = {UpdateStep::make(kAdamW, 1, 1.0), UpdateStep::make(kAdamW, 1, 1.0)};
  world.run(UpdatePass::kInPlace, pair, steps);
  std::size_t elements = 0;
  for (const UpdateRange& range : pair.unit.ranges) {
    elements += range.end - range.begin;
  }
  EXPECT_EQ(world.updates->bytes_in(), 12 * elements);
  EXPECT_EQ(world.updates->bytes_out(), 12 * elements);
}

TEST(DeviceUpdates, TakeTheTimeOfTheirBytes) {
  ManualClock clock;
  EventLoop loop({.name = "virtual", .clock = &clock});
  SimDevice device(loop, {.memory_bytes_per_s = 1e6, .operation_latency = Duration(0)});
  Pair pair(kCases[1]);
  DeviceUpdates updates({.device = &device});
  const UpdateStep steps[] = {UpdateStep::make(kAdamW, 1, 1.0), UpdateStep::make(kAdamW, 1, 1.0)};
  const PlacedState unit = pair.placed_for(Side::kAll);
  const TimePoint began = clock.now();
  loop.run([](DeviceUpdates* on, UpdateSlice slice) -> Task<> { co_await on->run(slice); },
           &updates, UpdateSlice{.unit = &unit, .steps = steps, .begin = 0, .end = kElements});
  std::size_t elements = 0;
  for (const UpdateRange& range : pair.unit.ranges) {
    elements += range.end - range.begin;
  }
  // Master and moments read and written, the gradient read, the weight written.
  const double bytes = static_cast<double>(elements) * (24 + 4 + 2);
  EXPECT_NEAR(std::chrono::duration<double>(clock.now() - began).count(), bytes / 1e6, 1e-6);
}

/// Units of a pool, and of a device, under one optimizer: each gets its update, and a blocked pool
/// holds up its own alone.
TEST(DeviceUpdates, DoNotWaitForThePool) {
  test::OptimizerWorld world({512 * 8, 512 * 8}, 512, 2);
  SimDevice device(world.loop, {});
  DeviceUpdates updates({.device = &device});
  std::vector<CpuOptimizer::Unit> units;
  for (std::size_t u = 0; u < 2; ++u) {
    const UpdatedUnit unit{world.states[u].buffers(), world.states[u].shadow(), {{0, 4096, 0}}};
    units.push_back({.state = placed(u == 1 ? Place::kDevice : Place::kHost, unit),
                     .shard = world.shards[u]->address(),
                     .runner = u == 1 ? &updates : nullptr});
  }
  world.optimizer->close();
  world.loop.run(&test::settle);
  world.optimizer = std::make_unique<CpuOptimizer>(CpuOptimizer::Options{
      .pool = &world.pool, .units = std::move(units), .chunk_elements = 512, .slice_chunks = 2});
  world.optimizer->start(world.scope);
  world.block_pool();
  world.update(0, 0);
  world.update(1, 1);
  world.loop.run(
      [](test::OptimizerWorld* w) -> Task<> {
        while (w->shards[1]->ready == 0) {
          co_await yield();
        }
      },
      &world);
  EXPECT_EQ(world.shards[0]->ready, 0U);
  EXPECT_EQ(world.finish().updates, 2U);
  EXPECT_EQ(world.shards[0]->ready, 1U);
  world.end();
}

TEST(DeviceUpdates, AFailingDeviceEndsTheSlice) {
  Pair pair(kCases[0]);
  DeviceWorld world(Side::kWeight, true);
  const UpdateStep steps[] = {UpdateStep::make(kAdamW, 1, 1.0), UpdateStep::make(kAdamW, 1, 1.0)};
  world.device->fail_copy(1);
  EXPECT_THROW(world.run(UpdatePass::kInPlace, pair, steps), DeviceError);
}

}  // namespace
}  // namespace tandem
