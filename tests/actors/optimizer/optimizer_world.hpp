// tests/actors/optimizer/optimizer_world.hpp — a CpuOptimizer over units of random state, with
// recording shards and a pool to block.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "actors/kernels/reduce.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "tests/support/actor_world.hpp"

namespace tandem::test {

/// Stands where the units' shards are, and writes down what the optimizer tells them.
class RecordingShard : public Actor<RecordingShard, AcquireUnit, ReleaseUnit, UpdateStarts,
                                    ParamReady, UpdateRolledBack> {
 public:
  RecordingShard() : Actor("recording shard") {}
  Placed<std::byte> handle(AcquireUnit) { return nullptr; }
  void handle(ReleaseUnit) {}
  void handle(UpdateStarts update) {
    started = update.version;
    journal->push_back("start " + std::to_string(unit));
  }
  void handle(ParamReady done) {
    ready = done.version;
    journal->push_back("ready " + std::to_string(unit));
  }

  void handle(UpdateRolledBack) { journal->push_back("undone " + std::to_string(unit)); }

  std::uint32_t unit = 0;
  std::uint64_t started = 0;
  std::uint64_t ready = 0;
  std::vector<std::string>* journal = nullptr;
};

/// Keeps a pool's threads busy until it is opened.
class Roadblock {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

/// One unit's arrays, and those of its shadow.
struct State {
  std::vector<float> master, exp_avg, exp_avg_sq, gradient;
  std::vector<float> shadow_master, shadow_exp_avg, shadow_exp_avg_sq;
  std::vector<std::uint16_t> weight;
  bool weight_is_master = false;

  explicit State(std::size_t n, unsigned seed)
      : master(n),
        exp_avg(n),
        exp_avg_sq(n),
        gradient(n),
        shadow_exp_avg(n, 99.0F),
        shadow_exp_avg_sq(n, 99.0F),
        weight(n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < n; ++i) {
      master[i] = normal(random);
      gradient[i] = normal(random);
    }
    cast(master.data(), DType::kF32, weight.data(), DType::kBF16, 0, n);
    shadow_master = master;
  }
  UpdateBuffers buffers() {
    return {.master = master.data(),
            .state = {exp_avg.data(), exp_avg_sq.data()},
            .gradient = gradient.data(),
            .weight = weight_is_master ? nullptr : weight.data(),
            .weight_type = DType::kBF16};
  }
  UpdateShadow shadow() {
    return {.master = shadow_master.data(),
            .state = {shadow_exp_avg.data(), shadow_exp_avg_sq.data()}};
  }
  PlacedState unit(std::vector<UpdateRange> ranges) {
    return placed(Place::kHost, {buffers(), shadow(), std::move(ranges)});
  }
};

struct OptimizerWorld : World {
  std::vector<std::unique_ptr<RecordingShard>> shards;
  std::vector<State> states;
  std::vector<std::string> journal;
  std::unique_ptr<CpuOptimizer> optimizer;
  Roadblock roadblock;

  /// `ranges` of each unit; none: all of it in group 0. `runner` of all units; null: the pool.
  OptimizerWorld(std::vector<std::size_t> sizes, std::size_t chunk, std::size_t slice,
                 std::vector<std::vector<CpuOptimizer::Range>> ranges = {},
                 bool weight_is_master = false, UpdateRunner* runner = nullptr) {
    for (std::size_t u = ranges.size(); u < sizes.size(); ++u) {
      ranges.push_back({{0, sizes[u], 0}});
    }
    CpuOptimizer::Options options{.pool = &pool, .chunk_elements = chunk, .slice_chunks = slice};
    states.reserve(sizes.size());
    for (std::size_t u = 0; u < sizes.size(); ++u) {
      auto shard = std::make_unique<RecordingShard>();
      shard->unit = static_cast<std::uint32_t>(u);
      shard->journal = &journal;
      shard->start(scope);
      states.emplace_back(sizes[u], static_cast<unsigned>(u));
      states[u].weight_is_master = weight_is_master;
      options.units.push_back(
          {.state = states[u].unit(ranges[u]), .shard = shard->address(), .runner = runner});
      shards.push_back(std::move(shard));
    }
    optimizer = std::make_unique<CpuOptimizer>(std::move(options));
    optimizer->start(scope);
  }
  ~OptimizerWorld() {
    roadblock.open();
    end();
  }

  void block_pool() {
    scope.spawn(
        "roadblock",
        [](OptimizerWorld* w) -> Task<> {
          Roadblock* block = &w->roadblock;
          co_await w->pool.for_chunks(2, [block](std::size_t) { block->wait(); });
        },
        this);
    loop.run(&settle);
  }
  void update(std::uint32_t unit, std::uint64_t deadline, std::uint64_t version = 1) {
    update_by(&step, unit, deadline, version);
  }
  void update_by(const UpdateStep* steps, std::uint32_t unit, std::uint64_t deadline,
                 std::uint64_t version = 1) {
    send({unit, steps, deadline, version});
  }
  void send(UpdateUnit update) {
    loop.run([](OptimizerWorld* w,
                UpdateUnit message) -> Task<> { co_await w->optimizer->address().send(message); },
             this, update);
  }
  /// Opens the roadblock, and runs until everything is updated and the shards know it.
  OptimizerCounters finish() {
    loop.run(&settle);
    roadblock.open();
    const OptimizerCounters counters = drain();
    loop.run(&settle);
    return counters;
  }
  OptimizerCounters drain() {
    return loop.run(
        [](OptimizerWorld* w) -> Task<OptimizerCounters> {
          co_return co_await w->optimizer->address().ask(DrainOptimizer{});
        },
        this);
  }

  OptimizerCounters undo() {
    return loop.run(
        [](OptimizerWorld* w) -> Task<OptimizerCounters> {
          co_return co_await w->optimizer->address().ask(RollBackUpdates{});
        },
        this);
  }

  UpdateStep step = UpdateStep::make({.lr = 1e-2, .weight_decay = 0.1}, 1, 0.5);
};

}  // namespace tandem::test
