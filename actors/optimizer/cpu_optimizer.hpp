// actors/optimizer/cpu_optimizer.hpp — the optimizer of all units of a rank; it updates them in the
// order of their deadlines.
//
// A unit's update is cut into chunks at fixed positions (multiples of kNormTile; the chunks' size
// changes no bit). The unit's runner gets the chunks in slices; a slice is a few chunks of one
// unit. A runner is the pool, or a device that has the unit's state or gets it slice by slice
// (update_runner.hpp). Each slice is taken from that queued unit of the runner which has the
// earliest deadline, so an urgent unit waits for the slices under way (two on the pool), not for a
// large unit's end. As many slices are under way as the runner wants, also of one unit alone, so it
// does not idle between slices. A speculative update that has begun is finished first: each
// gradient is more urgent than those before it, so if the optimizer is slower than backward, the
// next unit would interrupt every unit, which would then be finished out of place, and that takes
// longer. An update that has not begun at the verdict is done in place. The work before each
// deadline is the same either way.
//
// States of a unit: idle -> queued -> running (slices under way or done) -> idle. An update of a
// unit with a shadow (update_pass.hpp) may be requested before the step's verdict, as a speculative
// one. At its end it waits until the same update is requested without `speculative`. If the
// constants are the same, the speculative pass counts, and only pointers are swapped. If they
// differ, the update is redone from the old state. RollBackUpdates restores the old bits. An update
// that has not begun at the verdict becomes an ordinary one.
//   speculative: queued -> running -> waiting -> idle, by
//                (the same) swap | (others) running again | (no verdict, or skip) running back
// A checkpoint freezes (holds) the units whose state it still reads: their updates stay queued
// until UnfreezeUnit. So a save needs no copy of the state, and waits only for the updates of its
// own step.
//
// A joint update (LAMB, Muon) has two halves. DirectUnit updates the moments and writes the
// direction, in chunks of the same queue. Then the requester does the work that concerns the whole
// tensor. The UpdateUnit that follows is an ordinary one.
//   idle -> directing -> idle -> queued -> running -> idle
// Only the second half writes the weight. A hold cannot begin between the two halves, because a
// step requests both before it ends.
//
// The unit's shard gets UpdateStarts before the first slice, and ParamReady or UpdateRolledBack
// after the last chunk.
// Buffers: from UpdateUnit to ParamReady or UpdateRolledBack, the unit's state, gradient (the
// bucket's accumulator) and weight (the shard's bytes) belong to the optimizer. Before and after,
// gradient and weight belong to the bucket and the shard. When ParamReady is sent, every thread
// sees the weight fully written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/memory/busy_time.hpp"
#include "actors/memory/ring_queue.hpp"
#include "actors/optimizer/update_runner.hpp"
#include "actors/parameter_shard.hpp"
#include "runtime/actor.hpp"
#include "runtime/clock.hpp"
#include "runtime/cpu_pool.hpp"

namespace tandem {

/// Updates the unit's shard, except frozen elements. Units with smaller deadlines come first, those
/// with equal deadlines in the order of arrival. `steps`, one for each parameter group, is lent
/// until the ParamReady or UpdateRolledBack that follows.
struct UpdateUnit {
  std::uint32_t unit = 0;
  const UpdateStep* steps = nullptr;  // [group]
  std::uint64_t deadline = 0;
  std::uint64_t new_version = 0;
  bool speculative = false;  // before the verdict; the unit has a shadow
  bool redo = false;         // a speculative pass does not count, whatever its constants
};

/// Does the first half of a joint update (direction.hpp), after the verdict, or before it if the
/// verdict depends on it. The unit's UpdateUnit, the second half, follows in the same step. No
/// update of the unit may be queued or running. Replies when the whole shard is done. `direction`
/// and `steps`, one for each parameter group, are lent until then.
struct DirectUnit {
  using Reply = void;
  std::uint32_t unit = 0;
  const DirectionStep* steps = nullptr;  // [group]
  Direction* direction = nullptr;
  std::uint64_t deadline = 0;
};

struct OptimizerCounters {
  std::uint64_t updates = 0;   // units done
  std::uint64_t elements = 0;  // of these units
  // Updates that were speculative and committed.
  std::uint64_t speculative = 0;
  std::uint64_t redone = 0;       // done a second time
  std::uint64_t rolled_back = 0;  // ended with the old bits
  double busy_s = 0;              // time in which at least one slice was under way
  std::size_t queued = 0;         // units queued or running now, except speculative ones
  std::size_t queued_max = 0;
};

/// Replies when no update is queued or running, except speculative ones.
struct DrainOptimizer {
  using Reply = OptimizerCounters;
};

/// Rolls back all speculative updates, because the step is skipped or has no verdict. Replies when
/// every such unit has its old bits.
struct RollBackUpdates {
  using Reply = OptimizerCounters;
};

/// Freezes the state of all units; only updates that were requested before still change it. Call it
/// between steps, while no speculative update is under way. Units without state are not affected.
struct FreezeUnits {
  using Reply = std::size_t;  // units held
};

/// Replies when the last update of the frozen unit, requested before the hold, has ended.
struct AwaitFrozen {
  using Reply = bool;  // whether the unit is held at all
  std::uint32_t unit = 0;
};

/// Replies with a frozen unit for which an update waits, and with each such unit once. Replies with
/// nullopt when no unit is frozen any more.
struct NextWanted {
  using Reply = std::optional<std::uint32_t>;
};

/// Allows updates of the unit's state again.
struct UnfreezeUnit {
  std::uint32_t unit = 0;
};

class CpuOptimizer
    : public Actor<CpuOptimizer, UpdateUnit, DirectUnit, DrainOptimizer, RollBackUpdates,
                   FreezeUnits, AwaitFrozen, NextWanted, UnfreezeUnit> {
 public:
  using Range = UpdateRange;

  struct Unit {
    Name name = "update";  // in traces
    PlacedState state;
    ParameterShardAddress shard;
    UpdateRunner* runner = nullptr;  // null: the pool; outlives the actor
  };

  struct Options {
    CpuPool* pool = nullptr;  // outlives the actor
    std::vector<Unit> units;
    std::size_t chunk_elements = 128 * 1024;  // about 3.5 MB of traffic; a multiple of kNormTile
    std::size_t slice_chunks = 0;  // per hand-over to the pool; 0: four for each of its threads
  };

  explicit CpuOptimizer(Options options);

  Task<> handle(UpdateUnit update);
  void handle(DirectUnit request, ReplyTo<DirectUnit> reply);
  void handle(DrainOptimizer request, ReplyTo<DrainOptimizer> reply);
  void handle(RollBackUpdates request, ReplyTo<RollBackUpdates> reply);
  std::size_t handle(FreezeUnits request);
  void handle(AwaitFrozen request, ReplyTo<AwaitFrozen> reply);
  void handle(NextWanted request, ReplyTo<NextWanted> reply);
  void handle(UnfreezeUnit end);

  /// Loop thread.
  [[nodiscard]] const OptimizerCounters& counters() const noexcept { return counters_; }
  /// Loop thread. Returns the number of units whose speculative update has ended and waits for the
  /// verdict.
  [[nodiscard]] std::size_t waiting_for_verdict() const noexcept;
  /// Loop thread. Call it while no update of the unit is queued or running. The addresses of its
  /// state may change with each step.
  [[nodiscard]] const PlacedState& state_of(std::size_t unit) const noexcept {
    return options_.units[unit].state;
  }
  /// Loop thread. Returns the time until which a hold last delayed an update of the unit; the
  /// clock's epoch if none did.
  [[nodiscard]] TimePoint held_back_until(std::size_t unit) const noexcept {
    return holds_[unit].kept_waiting_until;
  }

 private:
  /// The units of one runner. Different runners work at the same time.
  struct RunnerQueue {
    UpdateRunner* runner = nullptr;
    std::vector<std::uint32_t> queue;  // units with chunks not handed out, unordered
    std::size_t workers = 0;           // work() tasks that run
  };

  struct Job {
    UpdateUnit update;
    std::uint64_t arrival = 0;
    UpdatePass pass = UpdatePass::kInPlace;
    std::optional<UpdatePass> next;  // the pass that follows the slices under way
    std::size_t chunks = 0;          // of the pass; 0: idle
    std::size_t next_chunk = 0;      // not handed out yet
    std::size_t done = 0;
    // Chunks that the speculative pass has written, if a redo or rollback follows.
    std::size_t speculative_chunks = 0;
    DirectUnit directs;  // if it has a direction, the job is this request, not an update
  };

  /// The hold of a checkpoint on a unit.
  struct Hold {
    enum class State : std::uint8_t { kNone, kAsked, kHeld };  // kAsked: an update still runs
    State state = State::kNone;
    std::optional<ReplyTo<AwaitFrozen>> awaits;
    TimePoint kept_waiting_until;
  };

  [[nodiscard]] std::size_t chunks_of(std::size_t unit) const noexcept;
  [[nodiscard]] bool same_constants(std::size_t unit, const UpdateStep* steps) const;
  void begin(UpdateUnit update);
  Task<> confirm(UpdateUnit update);
  void turn(std::uint32_t unit, UpdatePass pass);
  void begin_pass(std::uint32_t unit, UpdatePass pass);
  void enqueue(std::uint32_t unit);
  [[nodiscard]] RunnerQueue& queue_of(std::uint32_t unit) noexcept {
    return runner_queues_[queue_of_[unit]];
  }
  [[nodiscard]] Job* most_urgent(const RunnerQueue& runner_queue);
  Task<> work(std::size_t runner_queue);
  [[nodiscard]] UpdateSlice take_slice(RunnerQueue& runner_queue, Job& job);
  Task<> run_slice(UpdateRunner* runner, UpdateSlice slice);
  Task<> finish(std::uint32_t unit);
  void answer();
  void hold(std::uint32_t unit);
  void answer_wanted();

  Options options_;
  PoolUpdates pool_;
  std::vector<RunnerQueue> runner_queues_;  // of the pool, and of each other runner
  std::vector<std::size_t> queue_of_;       // [unit]
  std::vector<Job> jobs_;                   // by unit; queued or running while chunks > 0
  BusyTime busy_;                           // of slices
  std::uint64_t arrivals_ = 0;
  std::size_t speculative_ = 0;  // units with a speculative update, or its rollback, under way
  std::vector<std::optional<ReplyTo<DirectUnit>>> directed_;  // [unit] its DirectUnit under way
  std::size_t directing_ = 0;                                 // their number
  std::vector<Hold> holds_;                                   // [unit]
  std::size_t held_ = 0;                                      // units that are held, or will be
  RingQueue<std::uint32_t> wanted_;
  std::optional<ReplyTo<NextWanted>> wants_;
  RingQueue<std::optional<ReplyTo<DrainOptimizer>>> drains_;
  RingQueue<std::optional<ReplyTo<RollBackUpdates>>> rollbacks_;
  OptimizerCounters counters_;
};

}  // namespace tandem
