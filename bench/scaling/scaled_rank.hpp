// bench/scaling/scaled_rank.hpp — a rank that trains in virtual time: the actors, layouts and plan
// that train, on simulated links, device and host memory.
//
// RankLayout (sharding, slots, sizes), StepPlan and Gatherer are the engine's; shards, buckets,
// slot pools, Collectives and CpuOptimizer are those of actors/. The step awaits them in the order
// of engine/step/train_step.cpp at --overlap full, without tensors: a visit is a kernel that takes
// as long as its FLOPs, an update as long as its bytes. Buffers are addresses without memory: a
// read or write of one would end the program. Thread rule: the world's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/collectives/collectives.hpp"
#include "actors/gradient_bucket.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "actors/parameter_shard.hpp"
#include "actors/slot_pool.hpp"
#include "bench/scaling/cluster.hpp"
#include "engine/layout/step_plan.hpp"
#include "engine/rank/rank_layout.hpp"
#include "engine/step/gatherer.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/sim/sim_pool.hpp"

namespace tandem::bench {

/// The work of a rank, and the machine for it.
struct RankWork {
  const Model* model = nullptr;
  int stage = 3;
  std::int64_t rows = 1;  // of a rank
  std::int64_t length = 4096;
  bool recomputes = true;      // activations, in backward
  double share_of_peak = 0.5;  // that a visit reaches

  [[nodiscard]] double flops_of(const Visit& visit) const;
};

/// Addresses without memory behind them.
class Addresses {
 public:
  Addresses();
  ~Addresses();
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  [[nodiscard]] std::byte* take(std::size_t bytes);

 private:
  std::byte* begin_;
  std::size_t used_ = 0;
};

/// Updates on the host that take as long as their bytes.
class TimedUpdates final : public UpdateRunner {
 public:
  explicit TimedUpdates(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return 16; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return 2; }
  Task<> run(UpdateSlice slice) override;

 private:
  double bytes_per_s_;
  TimePoint free_at_;
};

/// The times of a step, in seconds.
struct StepTimes {
  double step = 0;
  double waits_for_gathers = 0;
  double waits_for_reductions = 0;
  double waits_for_updates = 0;
};

class ScaledRank {
 public:
  ScaledRank(SimWorld& world, Cluster& cluster, const Machine& machine, const RankWork& work,
             std::uint32_t rank);

  void start(int steps);
  [[nodiscard]] bool ended() const noexcept {
    return main_scope_.running() == 0 && actors_scope_.running() == 0;
  }
  [[nodiscard]] const std::vector<TaskFailure>& failures() const noexcept {
    return main_scope_.failures();
  }
  [[nodiscard]] const std::vector<StepTimes>& steps() const noexcept { return steps_; }

 private:
  static Task<> main(ScaledRank* self, int steps);
  Task<> train_step();
  Task<> run_visit(std::size_t v);
  static Task<> reduce(ScaledRank* self, UnitUse use, std::uint64_t order);
  Task<> update(std::size_t unit, bool speculative);
  [[nodiscard]] std::vector<std::unique_ptr<SlotPool>> make_pools(
      Name name, const std::vector<PoolSizes>& sizes);
  CpuOptimizer::Unit make_unit(std::size_t unit);

  const RankWork work_;
  RankLayout layout_;
  StepPlan plan_;
  EventLoop& loop_;
  Scope actors_scope_;
  Scope main_scope_;
  SimDevice device_;
  DeviceStream compute_;
  SimPool workers_;
  CpuPool pool_;  // none of its threads ever works
  Addresses addresses_;
  std::unique_ptr<CollectiveBackend> backend_;
  Collectives collectives_;
  TimedUpdates updates_;
  std::vector<std::unique_ptr<SlotPool>> weight_pools_;
  std::vector<std::unique_ptr<SlotPool>> gradient_pools_;
  std::vector<std::unique_ptr<ParameterShard>> shards_;
  std::vector<std::unique_ptr<GradientBucket>> buckets_;
  std::unique_ptr<CpuOptimizer> optimizer_;
  std::optional<Gatherer> gatherer_;  // of shards_
  std::vector<std::uint64_t> deadlines_;
  std::vector<bool> has_shadow_;
  UpdateStep constants_;

  std::uint64_t version_ = 0;
  std::vector<std::uint64_t> gradient_ticket_;
  std::uint64_t reduction_order_ = 0;
  std::size_t reductions_open_ = 0;
  Event no_reduction_open_;
  StepTimes times_;
  std::vector<StepTimes> steps_;
};

}  // namespace tandem::bench
