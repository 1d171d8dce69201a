#include "actors/gradient_bucket.hpp"

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/memory/arena.hpp"
#include "tests/support/actor_world.hpp"
#include "tests/support/fakes/fake_backend.hpp"

namespace tandem {
namespace {

using test::FakeBackend;
using test::settle;
using test::World;

/// One unit with one gradient slot; reduces by itself, or on the given backend.
struct BucketWorld : World {
  SelfBackend self{pool};
  CollectiveBackend& backend;
  UnitLayout layout;
  Collectives collectives;
  HostBuffer memory;
  SlotPool slots;
  std::vector<float> accumulator;
  GradientBucket bucket;

  explicit BucketWorld(std::size_t elements, CollectiveBackend* other = nullptr)
      : backend(other != nullptr ? *other : self),
        layout(UnitLayout::make(elements, backend.world())),
        collectives({.backend = &backend}),
        memory(layout.padded_elements * 4),
        slots({.memory = memory.data(),
               .slot_bytes = layout.padded_elements * 4,
               .plan = {.slots = 1, .max_in_flight = 1, .max_ahead = 16}}),
        accumulator(layout.shard_elements, -1.0F),
        bucket({.layout = layout,
                .first_element = layout.shard_begin(backend.rank()),
                .accumulator = accumulator.data(),
                .slots = slots.address(),
                .collectives = collectives.address()}) {
    collectives.start(scope);
    slots.start(scope);
    bucket.start(scope);
  }
  ~BucketWorld() { end(); }

  /// One micro-step whose gradient is value(i).
  GradientNorm micro_step(std::uint64_t number, bool first, bool last,
                          float (*value)(std::size_t)) {
    return loop.run(
        [](BucketWorld* w, std::uint64_t n, bool is_first, bool is_last,
           float (*fill)(std::size_t)) -> Task<GradientNorm> {
          const Placed<std::byte> lent = co_await w->bucket.address().ask(AcquireGradient{n});
          auto* slot = reinterpret_cast<float*>(lent.host());
          for (std::size_t i = w->layout.elements; i < w->layout.padded_elements; ++i) {
            EXPECT_EQ(slot[i], 0.0F) << "padding is zeroed";
            slot[i] = 0.0F;
          }
          for (std::size_t i = 0; i < w->layout.elements; ++i) {
            slot[i] = fill(i);
          }
          GradientNorm norm = co_await w->bucket.address().ask(GradientReady{is_first, is_last, n});
          for (std::size_t i = 0; i < w->layout.padded_elements; ++i) {
            slot[i] = 77.0F;  // the next borrower finds rubbish
          }
          co_return norm;
        },
        this, number, first, last, value);
  }
};

float ramp(std::size_t i) { return static_cast<float>(i % 64) * 0.25F; }
float halves(std::size_t i) { return i % 2 == 0 ? 0.5F : -0.5F; }
float with_infinity(std::size_t i) {
  return i == 4321 ? std::numeric_limits<float>::infinity() : 1.0F;
}

TEST(GradientBucket, AccumulatesMicroStepsAndTakesTheNormLast) {
  BucketWorld world(5000);
  for (std::uint64_t step = 0; step < 2;
       ++step) {  // the second step overwrites what the first left
    world.micro_step(3 * step, true, false, &ramp);
    world.micro_step(3 * step + 1, false, false, &halves);
    const GradientNorm norm = world.micro_step(3 * step + 2, false, true, &halves);
    double expected = 0;
    for (std::size_t i = 0; i < 5000; ++i) {
      const float sum = ramp(i) + halves(i) + halves(i);
      ASSERT_EQ(world.accumulator[i], sum);
      expected += static_cast<double>(sum) * sum;
    }
    EXPECT_EQ(world.accumulator[5000], 0.0F);
    EXPECT_DOUBLE_EQ(norm.sum_of_squares.value(), expected);
    EXPECT_EQ(norm.first_bad_element, -1);
  }
  EXPECT_EQ(world.bucket.counters().reductions, 6U);
}

TEST(GradientBucket, NamesTheBadElement) {
  BucketWorld world(5000);
  const GradientNorm norm = world.micro_step(0, true, true, &with_infinity);
  EXPECT_EQ(norm.first_bad_element, 4321);
  EXPECT_FALSE(norm.sum_of_squares.is_finite());
}

TEST(GradientBucket, ReducesTheRightSliceAtWorldEight) {
  FakeBackend backend(8, 6);
  backend.norm.first_bad_element = 10;
  BucketWorld world(5000, &backend);
  EXPECT_EQ(world.accumulator.size(), 1024U);
  const GradientNorm norm = world.micro_step(0, true, true, &ramp);
  ASSERT_EQ(backend.reductions.size(), 1U);
  const ReduceArguments& arguments = backend.reductions[0];
  EXPECT_EQ(arguments.block, world.memory.data());
  EXPECT_EQ(arguments.accumulator, world.accumulator.data());
  EXPECT_EQ(arguments.shard_elements, 1024U);
  EXPECT_EQ(arguments.mode, AccumulateMode::kOverwrite);
  EXPECT_TRUE(arguments.want_norm);
  EXPECT_EQ(norm.first_bad_element, 6 * 1024 + 10);  // an index into the unit
}

TEST(GradientBucket, TheSlotIsFreeOnceReduced) {
  Event gate;
  FakeBackend slow;
  BucketWorld held(600, &slow);
  slow.gate_reductions = &gate;
  held.scope.spawn(
      "micro-steps",
      [](BucketWorld* w) -> Task<> {
        (void)co_await w->bucket.address().ask(AcquireGradient{0});
        (void)co_await w->bucket.address().ask(GradientReady{true, false, 0});
        (void)co_await w->bucket.address().ask(AcquireGradient{1});
      },
      &held);
  held.loop.run(&settle);
  EXPECT_EQ(held.slots.counters().grants, 1U);
  gate.set();
  held.loop.run(&settle);
  EXPECT_EQ(held.slots.counters().grants, 2U);
}

}  // namespace
}  // namespace tandem
