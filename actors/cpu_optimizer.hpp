// actors/cpu_optimizer.hpp — the optimizer of all units of a rank, on the pool, earliest deadline first.
//
// A unit's update is cut into chunks at fixed positions (multiples of kNormBlock; where they lie changes no bit), and
// chunks are handed to the pool in slices: a few chunks of one unit. Before each slice the queued unit with the earliest
// deadline is chosen, so a late, urgent unit waits for two slices at most, not for a large unit's end. Two slices are
// under way at any time: while one runs out, the pool already has the next, and does not idle between units.
//
// States of a unit: idle -> queued -> running (slices under way or done) -> idle. UpdateStarts goes to its shard
// before its first slice, ParamReady after its last chunk.
// Buffers, from UpdateUnit to ParamReady: master, state, gradient (the bucket's accumulator) and the weight (the
// shard's bytes) of that unit are the optimizer's; before and after, gradient and weight belong to the bucket and the
// shard. The weight is fully written when ParamReady is sent, on every thread's view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "actors/kernels/optimizer_step.hpp"
#include "actors/parameter_shard.hpp"
#include "actors/ring_queue.hpp"
#include "runtime/actor.hpp"
#include "runtime/clock.hpp"
#include "runtime/cpu_pool.hpp"

namespace tandem {

/// All of the unit's shard, but for frozen elements. The smaller the deadline, the sooner; equal ones in the order of
/// arrival. `steps`, one for each parameter group, is lent until the ParamReady that follows.
struct UpdateUnit {
  std::uint32_t unit = 0;
  const UpdateStep* steps = nullptr;  // [group]
  std::uint64_t deadline = 0;
  std::uint64_t new_version = 0;
};

struct OptimizerCounters {
  std::uint64_t updates = 0;   // units done
  std::uint64_t elements = 0;  // of these
  double busy_s = 0;           // at least one slice was under way
  std::size_t queued = 0;      // units queued or running now
  std::size_t queued_max = 0;
};

/// Replies when nothing is queued or running.
struct DrainOptimizer {
  using Reply = OptimizerCounters;
};

class CpuOptimizer : public Actor<CpuOptimizer, UpdateUnit, DrainOptimizer> {
 public:
  /// Elements of a shard that belong to one parameter group.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t group = 0;
  };

  struct Unit {
    UpdateBuffers buffers;      // of the shard; outlive the actor
    std::vector<Range> ranges;  // of the shard, ascending; what lies in none is never written
    ParameterShardAddress shard;
  };

  struct Options {
    CpuPool* pool = nullptr;  // outlives the actor
    std::vector<Unit> units;
    std::size_t chunk_elements = 128 * 1024;  // about 3.5 MB of traffic; a multiple of kNormBlock
    std::size_t slice_chunks = 0;  // per hand-over to the pool; 0: four for each of its threads
  };

  explicit CpuOptimizer(Options options);

  void handle(UpdateUnit update);
  void handle(DrainOptimizer request, ReplyTo<DrainOptimizer> reply);

  /// Loop thread.
  [[nodiscard]] const OptimizerCounters& counters() const noexcept { return counters_; }

 private:
  static constexpr int kSlicesUnderWay = 2;

  struct Job {
    UpdateUnit update;
    std::uint64_t arrival = 0;
    std::size_t chunks = 0;
    std::size_t next_chunk = 0;  // not handed out yet
    std::size_t done = 0;
  };

  [[nodiscard]] Job* most_urgent();
  Task<> work();
  Task<> run_slice(std::size_t unit, std::size_t first_chunk, std::size_t chunks);
  Task<> finish(std::size_t unit);
  void enter_slice();
  void leave_slice();

  Options options_;
  std::vector<Job> jobs_;             // by unit; queued or running while chunks > 0
  std::vector<std::uint32_t> queue_;  // units with chunks not handed out, unordered
  int workers_ = 0;                   // work() tasks that run
  int slices_ = 0;
  TimePoint busy_since_;
  std::uint64_t arrivals_ = 0;
  RingQueue<std::optional<ReplyTo<DrainOptimizer>>> drains_;
  OptimizerCounters counters_;
};

}  // namespace tandem
