// engine/rank/rank.hpp — one rank: its parts and the actors between them.
//
// RankLayout says what lies where, RankMemory allocates it, WeightLoader fills it, and ComputeQueue
// computes with it; a Rank makes these parts (except the layout) and connects them to actors
// (make_actors()). A Rank has no schedule: TrainStep decides when each part works. It has no
// threads, connections or tensors either: a TensorRank (engine/run/tensor_rank.hpp) owns those, and
// the simulator has its own.
// Invariant: memory and pools outlive the actors; actors outlive the requests to them.
// Thread rule: the loop's thread, except what a part marks for the compute lane.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/collectives/collectives.hpp"
#include "actors/collectives/state_file_backend.hpp"
#include "actors/gradient_bucket.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "actors/optimizer/device_updates.hpp"
#include "actors/optimizer/file_updates.hpp"
#include "actors/parameter_shard.hpp"
#include "actors/slot_pool.hpp"
#include "engine/config/config.hpp"
#include "engine/device/accelerator.hpp"
#include "engine/device/core_plan.hpp"
#include "engine/layout/rank_sizes.hpp"
#include "engine/rank/boundaries.hpp"
#include "engine/rank/compute_queue.hpp"
#include "engine/rank/rank_layout.hpp"
#include "engine/rank/rank_memory.hpp"
#include "engine/rank/weight_loader.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"
#include "engine/types/row_sharing.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"

namespace tandem {

struct RankOptions {
  RankShape shape;  // contains the engine's options
  ZeroConfig zero;
  CommsLoggerConfig comms_logger = {};
  CorePlan cores;
  std::int64_t sequence_parallel_size = 1;

  /// Returns the options of a rank for a config and the engine's options.
  static RankOptions from(const Config& config, const EngineOptions& options, CorePlan cores);

  /// Returns the CPUs to which threads are bound: `cpus`, or none if cores are not pinned.
  [[nodiscard]] std::vector<int> bound(const std::vector<int>& cpus) const {
    return shape.engine.pin_cores ? cpus : std::vector<int>();
  }
};

/// Seconds that each resource has been busy since the start.
struct Busy {
  double compute_s = 0;
  double optimizer_s = 0;
  double copy_s = 0;
  double to_device_s = 0;
  double to_host_s = 0;
  double disk_s = 0;  // of NVMe
};

/// The threads, the device and the connections with which a rank works; they outlive it.
struct RankParts {
  EventLoop* loop = nullptr;
  CpuPool* optimizer_pool = nullptr;
  CpuPool* copy_pool = nullptr;
  Accelerator* accelerator = nullptr;  // null: the CPU computes
  CollectiveBackend* backend = nullptr;
  // The actor for the ranks that hold the same slice of the experts; the rank starts and closes it.
  // Null: every rank has all experts.
  Collectives* expert_collectives = nullptr;
  CommsLog* comms_log = nullptr;                       // null: nothing is counted
  std::function<void(int threads)> prepare_lane = {};  // for ComputeQueue::prepare()
  LaneDriver* lane_driver = nullptr;                   // null: the lane has a thread
  UpdateRunner* host_updates = nullptr;  // for state in host memory; null: the optimizer's pool
  // False: only the schedule runs. Then memory is addresses alone, nothing loads or clears it, and
  // back end, device, lane and host_updates must not access it.
  bool has_memory = true;
  // Makes the file back end for NVMe; empty: the one that the options name.
  std::function<std::unique_ptr<FileBackend>()> nvme_files = {};
};

class Rank {
 public:
  /// Allocates all memory. `layout` outlives this object. Throws Error(kRefused) if memory is too
  /// small.
  Rank(const RankLayout& layout, RankOptions options, RankParts parts);
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Loads the weights, then makes and starts the actors; end() must be called afterwards.
  Task<> start();
  /// Ends the actors and waits for their work; call it once. `has_failed`: the caller already knows
  /// why the rank ends, so errors of its tasks are not reported.
  Task<> end(bool has_failed);

  /// Returns why the rank ends after a call has failed with `error`: an actor that failed first
  /// ends the others, and what was awaited of those says no more than that they ended.
  [[nodiscard]] std::exception_ptr cause_of(std::exception_ptr error) const;

  [[nodiscard]] const RankOptions& options() const noexcept { return options_; }
  [[nodiscard]] EventLoop& loop() noexcept { return *parts_.loop; }
  [[nodiscard]] Scope& scope() noexcept { return scope_; }
  [[nodiscard]] const Scope& scope() const noexcept { return scope_; }

  [[nodiscard]] const RankLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const RankMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] WeightLoader& loader() noexcept { return loader_; }
  [[nodiscard]] ComputeQueue& compute() noexcept { return compute_; }
  [[nodiscard]] bool computes_on_gpu() const noexcept { return compute_.on_gpu(); }

  [[nodiscard]] const std::vector<std::unique_ptr<ParameterShard>>& shards() const noexcept {
    return shards_;
  }
  /// Null for a frozen unit.
  [[nodiscard]] GradientBucket* bucket(std::size_t unit) noexcept { return buckets_[unit].get(); }
  [[nodiscard]] CpuOptimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] Collectives& collectives() noexcept { return *collectives_; }
  /// Null if boundaries are neither offloaded nor counted.
  [[nodiscard]] Boundaries* boundaries() noexcept { return boundaries_.get(); }
  [[nodiscard]] ResidentBytes resident_bytes() const noexcept;
  /// This rank's place in the group that shares its rows.
  [[nodiscard]] const RowSharing& row_sharing() const noexcept { return row_sharing_; }

  [[nodiscard]] CpuPool& copy_pool() noexcept { return *parts_.copy_pool; }
  [[nodiscard]] CpuPool& optimizer_pool() noexcept { return *parts_.optimizer_pool; }

  [[nodiscard]] Busy busy() const;

  /// Returns comms_logger's counts of the operations that the loop issues; null if the logger is
  /// off.
  [[nodiscard]] CommsLog* comms_log() noexcept { return parts_.comms_log; }

 private:
  using SlotPoolList = std::vector<std::unique_ptr<SlotPool>>;

  void make_actors();
  void make_unit_actors(std::size_t unit);
  /// Returns the optimizer's options for a unit; call it after make_unit_actors(unit).
  [[nodiscard]] CpuOptimizer::Unit optimizer_unit(std::size_t unit);
  /// Returns the runner of updates with that placement; null: the optimizer's pool.
  [[nodiscard]] UpdateRunner* runner_of(StatePlacement placement);
  [[nodiscard]] UpdateRunner* nvme_runner();
  /// Returns the back end; if weights lie on NVMe, one that reads and writes them there.
  [[nodiscard]] CollectiveBackend* with_nvme();
  /// Returns the name of the array at an address on NVMe: "weights of "block 3"".
  [[nodiscard]] std::string name_on_nvme(Placed<const std::byte> array) const;
  Task<> open_nvme();
  FileIo& nvme_io();
  [[nodiscard]] std::string path_on_nvme(std::string_view what) const;
  void make_boundaries();
  [[nodiscard]] std::unique_ptr<BoundaryPlace> place_of_boundaries();
  void start_actors();

  const RankLayout& layout_;
  RankOptions options_;
  RankParts parts_;
  RowSharing row_sharing_;
  Scope scope_;
  ComputeQueue compute_;
  std::optional<FileIo> nvme_io_;  // absent if nothing lies on NVMe
  BusyTime nvme_busy_;             // of all transfers there
  std::unique_ptr<Boundaries> boundaries_;
  RankMemory memory_;
  WeightLoader loader_;

  std::unique_ptr<StateFileBackend> nvme_backend_;  // null: no weights lie on NVMe
  SlotPoolList weight_pools_;                       // [pool]; null where no unit uses it
  SlotPoolList gradient_pools_;                     // [gradient pool]; null likewise
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::unique_ptr<ParameterShard>> shards_;   // [unit]
  std::vector<std::unique_ptr<GradientBucket>> buckets_;  // [unit]; null: frozen
  std::unique_ptr<DeviceUpdates> resident_updates_;       // null where no unit needs it
  std::unique_ptr<DeviceUpdates> streamed_updates_;       // likewise
  std::unique_ptr<FileUpdates> nvme_updates_;             // likewise
  std::unique_ptr<CpuOptimizer> optimizer_;
};

/// Returns the units' names, such as "block 3", by unit.
[[nodiscard]] std::vector<std::string> unit_names(const Model& model);

}  // namespace tandem
