// bench/scaling/scaled_rank.hpp — a rank that trains in virtual time: the Rank and the TrainStep
// that ship, on simulated links, device and host memory.
//
// All memory is addresses alone (RankParts::has_memory): a visit takes as long as its FLOPs, an
// update as long as its bytes, and neither touches anything.
// Thread rule: the world's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bench/scaling/cluster.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/timed_work.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/sim/sim_lane.hpp"
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

  [[nodiscard]] double flops_of(std::size_t segment, Phase phase) const;
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

  void start(int steps) { main_scope_.spawn("training", &ScaledRank::main, this, steps); }
  [[nodiscard]] bool ended() const noexcept {
    return main_scope_.running() == 0 && rank_->scope().running() == 0;
  }
  [[nodiscard]] const std::vector<StepTimes>& steps() const noexcept { return steps_; }

 private:
  static Task<> main(ScaledRank* self, int steps);
  Task<> train_step(std::int64_t number);

  const RankWork work_;
  RankOptions options_;
  RankLayout layout_;
  std::vector<Duration> visits_;  // of a step, in order
  EventLoop& loop_;
  Scope main_scope_;
  Accelerator accelerator_;
  std::unique_ptr<CollectiveBackend> backend_;
  SimPool workers_;
  CpuPool pool_;  // none of its threads ever works
  SimLane lane_;
  TimedUpdates updates_;
  std::optional<Rank> rank_;
  std::optional<TrainStep> step_;  // from the start on
  std::vector<StepTimes> steps_;
};

}  // namespace tandem::bench
