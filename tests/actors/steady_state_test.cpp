// All actors of a rank together, as a training step uses them: the result equals plain loops over
// the same numbers, and after warm-up no message costs an allocation.
#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "actors/data_prefetch.hpp"
#include "actors/gradient_bucket.hpp"
#include "actors/memory/arena.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "tests/actors/allocations.hpp"
#include "tests/support/actor_world.hpp"

namespace tandem {
namespace {

using test::World;

constexpr std::uint32_t kUnits = 5;
constexpr double kClip = 250;                  // acts in about half of the steps
constexpr std::uint64_t kVisits = 2 * kUnits;  // per step: forward, then backward
const UpdateConfig kAdam{.lr = 1e-2, .weight_decay = 0.1};

float initial(std::uint32_t unit, std::size_t i) {
  return std::sin(static_cast<float>(unit * 1000 + i % 1000));
}
/// "Backward" of a unit: a function of its weights and the batch.
float gradient_of(float weight, int batch) { return weight * 0.5F + static_cast<float>(batch); }

/// One rank at world 1, fp32: `slots` gather slots, 2 gradient slots.
struct Rank : World {
  std::vector<UnitLayout> layouts;
  std::size_t slot_bytes = 0;
  SelfBackend backend{pool};
  Collectives collectives{{.backend = &backend}};
  HostBuffer gather_memory, gradient_memory;
  std::unique_ptr<SlotPool> gather_slots, gradient_slots;
  std::vector<HostBuffer> weights, masters, moments, shadows, accumulators;
  std::vector<std::unique_ptr<ParameterShard>> shards;
  std::vector<std::unique_ptr<GradientBucket>> buckets;
  std::unique_ptr<CpuOptimizer> optimizer;
  DataPrefetch<int> prefetch{
      {.pool = &pool, .make = [](std::uint64_t i) { return static_cast<int>(i % 7); }}};
  std::uint64_t step = 0;
  UpdateStep update;
  UpdateStep ahead;  // ahead of the verdict; it is right in some steps

  explicit Rank(std::size_t slots) {
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      layouts.push_back(UnitLayout::make(1000 + 700 * u, 1));
      slot_bytes = std::max(slot_bytes, layouts[u].padded_elements * 4);
    }
    gather_memory = HostBuffer(slots * slot_bytes);
    gradient_memory = HostBuffer(2 * slot_bytes);
    gather_slots = std::make_unique<SlotPool>(
        SlotPool::Options{.memory = gather_memory.data(),
                          .slot_bytes = slot_bytes,
                          .plan = {.slots = slots, .max_in_flight = 2, .max_ahead = 64}});
    gradient_slots = std::make_unique<SlotPool>(
        SlotPool::Options{.memory = gradient_memory.data(),
                          .slot_bytes = slot_bytes,
                          .plan = {.slots = 2, .max_in_flight = 2, .max_ahead = 64}});
    CpuOptimizer::Options options{.pool = &pool, .chunk_elements = 1024};
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      options.units.push_back(make_unit(u));
    }
    optimizer = std::make_unique<CpuOptimizer>(std::move(options));
    start_all();
  }
  ~Rank() { end(); }

  CpuOptimizer::Unit make_unit(std::uint32_t u) {
    const std::size_t n = layouts[u].shard_elements;
    weights.emplace_back(n * 4);
    masters.emplace_back(n * 4);
    moments.emplace_back(n * 8);
    accumulators.emplace_back(n * 4);
    for (std::size_t i = 0; i < layouts[u].elements; ++i) {
      weights[u].as<float>()[i] = masters[u].as<float>()[i] = initial(u, i);
    }
    shards.push_back(std::make_unique<ParameterShard>(
        ParameterShard::Options{.unit = u,
                                .layout = layouts[u],
                                .shard = weights[u].data(),
                                .slots = gather_slots->address(),
                                .collectives = collectives.address()}));
    buckets.push_back(std::make_unique<GradientBucket>(
        GradientBucket::Options{.layout = layouts[u],
                                .accumulator = accumulators[u].data(),
                                .slots = gradient_slots->address(),
                                .collectives = collectives.address()}));
    shadows.emplace_back(n * 12);
    auto* const shadow = shadows[u].as<float>();
    return {.state = {.buffers = {.master = masters[u].as<float>(),
                                  .state = {moments[u].as<float>(), moments[u].as<float>() + n},
                                  .gradient = accumulators[u].data(),
                                  .weight = weights[u].data()},
                      .shadow = {.master = shadow, .state = {shadow + n, shadow + 2 * n}},
                      .ranges = {{0, n, 0}}},
            .shard = shards[u]->address()};
  }

  void start_all() {
    collectives.start(scope);
    gather_slots->start(scope);
    gradient_slots->start(scope);
    for (auto& shard : shards) {
      shard->start(scope);
    }
    for (auto& bucket : buckets) {
      bucket->start(scope);
    }
    optimizer->start(scope);
    prefetch.start(scope);
  }

  /// Forward only looks at the weights; backward writes gradients of them. The next step's forward
  /// overlaps the updates.
  static Task<double> train_step(Rank* rank) {
    const int batch = *co_await rank->prefetch.address().ask(NextBatch<int>{});
    const std::uint64_t first_ticket = rank->step * kVisits;
    double loss = 0;
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      const std::uint64_t ticket = first_ticket + u;
      const Placed<std::byte> block =
          co_await rank->shards[u]->address().ask(AcquireUnit{rank->step, ticket});
      loss += *reinterpret_cast<float*>(block.host());
      co_await rank->shards[u]->address().send(ReleaseUnit{first_ticket + kVisits - 1 - u});
    }
    GradientNorm norm;
    rank->ahead = UpdateStep::make(kAdam, static_cast<std::int64_t>(rank->step + 1), 1);
    for (std::uint32_t v = 0; v < kUnits; ++v) {
      norm.merge(co_await backward(rank, kUnits - 1 - v, v, batch));
    }
    const double coefficient = std::min(1.0, kClip / std::sqrt(norm.sum_of_squares.value()));
    rank->update = UpdateStep::make(kAdam, static_cast<std::int64_t>(rank->step + 1), coefficient);
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      co_await rank->optimizer->address().send(UpdateUnit{u, &rank->update, u, rank->step + 1});
    }
    ++rank->step;
    co_return loss;
  }

  static Task<GradientNorm> backward(Rank* rank, std::uint32_t u, std::uint32_t v, int batch) {
    const std::uint64_t order = rank->step * kUnits + v;
    const std::uint64_t ticket = rank->step * kVisits + kUnits + v;
    const Placed<std::byte> gathered =
        co_await rank->shards[u]->address().ask(AcquireUnit{rank->step, ticket});
    const Placed<std::byte> slot = co_await rank->buckets[u]->address().ask(AcquireGradient{order});
    const auto* block = reinterpret_cast<const float*>(gathered.host());
    auto* gradient = reinterpret_cast<float*>(slot.host());
    for (std::size_t i = 0; i < rank->layouts[u].elements; ++i) {
      gradient[i] = gradient_of(block[i], batch);
    }
    co_await rank->shards[u]->address().send(ReleaseUnit{});
    const GradientNorm norm =
        co_await rank->buckets[u]->address().ask(GradientReady{true, true, order});
    co_await rank->optimizer->address().send(UpdateUnit{.unit = u,
                                                        .steps = &rank->ahead,
                                                        .deadline = u,
                                                        .new_version = rank->step + 1,
                                                        .speculative = true});
    co_return norm;
  }
};

/// The same training in plain loops.
std::vector<std::vector<float>> reference(int steps) {
  std::vector<std::vector<float>> p(kUnits), m(kUnits), v(kUnits), g(kUnits);
  for (std::uint32_t u = 0; u < kUnits; ++u) {
    const UnitLayout layout = UnitLayout::make(1000 + 700 * u, 1);
    p[u].resize(layout.padded_elements);
    m[u] = v[u] = g[u] = p[u];
    for (std::size_t i = 0; i < layout.elements; ++i) {
      p[u][i] = initial(u, i);
    }
  }
  for (int step = 0; step < steps; ++step) {
    GradientNorm norm;
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      for (std::size_t i = 0; i < 1000 + 700 * u; ++i) {
        g[u][i] = gradient_of(p[u][i], step % 7);
      }
      add_norm(g[u].data(), DType::kF32, 0, g[u].size(), norm);
    }
    const double coefficient = std::min(1.0, kClip / std::sqrt(norm.sum_of_squares.value()));
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      apply_update(
          UpdateStep::make(kAdam, step + 1, coefficient),
          {.master = p[u].data(), .state = {m[u].data(), v[u].data()}, .gradient = g[u].data()}, 0,
          p[u].size());
    }
  }
  return p;
}

OptimizerCounters drain(Rank& rank) {
  return rank.loop.run(
      [](Rank* r) -> Task<OptimizerCounters> {
        co_return co_await r->optimizer->address().ask(DrainOptimizer{});
      },
      &rank);
}

TEST(ActorsTogether, TrainToTheBitsOfPlainLoops) {
  constexpr int kSteps = 25;
  const auto expected = reference(kSteps);
  for (const std::size_t slots : {2UL, 3UL, 5UL}) {
    Rank rank(slots);
    for (int step = 0; step < kSteps; ++step) {
      rank.loop.run(&Rank::train_step, &rank);
    }
    const OptimizerCounters counters = drain(rank);
    EXPECT_EQ(counters.updates, kSteps * kUnits);
    EXPECT_GT(counters.speculative, 0U) << "updates made ahead of the verdict counted";
    EXPECT_GT(counters.redone, 0U) << "others were made again";
    for (std::uint32_t u = 0; u < kUnits; ++u) {
      const float* got = rank.optimizer->state_of(u).buffers.whole_master().host();
      EXPECT_EQ(std::vector<float>(got, got + expected[u].size()), expected[u])
          << "slots " << slots;
    }
    // With a slot for each unit, backward finds everything where forward gathered it.
    const auto& gathers = rank.collectives.counters().gathers;
    EXPECT_EQ(gathers.operations + gathers.skipped, kSteps * kVisits);
    if (slots == kUnits) {
      EXPECT_EQ(gathers.operations, kSteps * kUnits);
    }
  }
}

TEST(ActorsTogether, NoAllocationPerMessageAfterWarmUp) {
  if (!test::allocations_are_counted()) {
    GTEST_SKIP() << "under a sanitizer the runtime's pools reuse nothing";
  }
  Rank rank(3);
  const auto train = [](Rank* r, int steps) -> Task<> {
    for (int i = 0; i < steps; ++i) {
      (void)co_await Rank::train_step(r);
    }
  };
  rank.loop.run(train, &rank, 50);
  const std::int64_t before = test::allocations();
  rank.loop.run(train, &rank, 200);
  const std::int64_t allocations = test::allocations() - before;
  // 200 steps are some 20,000 messages. A queue that was never as full before may still grow once.
  EXPECT_LT(allocations, 20) << "in 200 steps";
}

}  // namespace
}  // namespace tandem
