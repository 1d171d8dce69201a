// engine/rank/rank.hpp — one rank: its threads, its parts and the actors between them.
//
// RankLayout says what lies where, RankMemory holds it, WeightLoader fills it, ComputeQueue
// computes with it; here they are made in that order and wired to actors (make_actors). A Rank has
// no schedule: TrainStep decides what happens when, with the parts.
// Invariant: memory and pools outlive the actors, actors outlive what is asked of them.
// Thread rule: the loop's thread, but for what a part marks for the compute lane.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
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
#include "engine/distributed/communicator.hpp"
#include "engine/exchange/expert_parallel_group.hpp"
#include "engine/exchange/lane_exchange.hpp"
#include "engine/layout/rank_sizes.hpp"
#include "engine/rank/boundaries.hpp"
#include "engine/rank/compute_queue.hpp"
#include "engine/rank/rank_layout.hpp"
#include "engine/rank/rank_memory.hpp"
#include "engine/rank/unit.hpp"
#include "engine/rank/weight_loader.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"
#include "engine/types/row_sharing.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/supervision/watchdog.hpp"

namespace tandem {

struct RankOptions {
  RankShape shape;  // the engine's options among it
  ZeroConfig zero;
  CommsLoggerConfig comms_logger = {};
  CorePlan cores;
  std::int64_t sequence_parallel_size = 1;

  /// Fills in what the engine's options leave to the config.
  static RankOptions from(const Config& config, const EngineOptions& options, CorePlan cores);

  /// The CPUs that threads are bound to: `cpus`, or none if cores are not pinned.
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

class Rank {
 public:
  /// Connects the ranks, allocates all memory and loads the weights. Throws user_error when the
  /// options cannot work with the model, Error(kRefused) when there is no memory.
  Rank(Model model, RankOptions options, Communicator& communicator);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Ends the actors and waits for their work. The destructor does it too, but what their work uses
  /// may be gone by then.
  void stop();

  /// This rank cannot go on: operations under way end here, and the peers learn which rank failed,
  /// this one or the one whose loss is the cause, and why.
  void give_up(const std::exception& cause) noexcept;

  [[nodiscard]] const RankOptions& options() const noexcept { return options_; }
  [[nodiscard]] EventLoop& loop() noexcept { return loop_; }
  [[nodiscard]] Scope& scope() noexcept { return scope_; }

  [[nodiscard]] const RankLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const RankMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] WeightLoader& loader() noexcept { return loader_; }
  [[nodiscard]] ComputeQueue& compute() noexcept { return compute_; }

  [[nodiscard]] const std::vector<std::unique_ptr<Unit>>& units() const noexcept { return units_; }
  [[nodiscard]] const std::vector<std::unique_ptr<ParameterShard>>& shards() const noexcept {
    return shards_;
  }
  /// Null for a frozen unit.
  [[nodiscard]] GradientBucket* bucket(std::size_t unit) noexcept { return buckets_[unit].get(); }
  [[nodiscard]] CpuOptimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] Collectives& collectives() noexcept { return *collectives_; }
  /// For segments; null where neither experts nor rows are spread over ranks.
  [[nodiscard]] RankExchange* exchange() noexcept {
    return row_group_ ? row_group_.get() : expert_group_ ? &expert_group_->exchange() : nullptr;
  }
  /// Null where none leave, and none are counted.
  [[nodiscard]] Boundaries* boundaries() noexcept { return boundaries_.get(); }
  [[nodiscard]] ResidentBytes resident_bytes() const noexcept;
  /// This rank's place in the group that shares its rows.
  [[nodiscard]] const RowSharing& row_sharing() const noexcept { return row_sharing_; }

  [[nodiscard]] CpuPool& copy_pool() noexcept { return copy_pool_; }
  [[nodiscard]] CpuPool& optimizer_pool() noexcept { return optimizer_pool_; }

  [[nodiscard]] Busy busy() const;

  /// The counts of comms_logger; null: it is off. It has operations on the loop, and those that the
  /// compute lane issues itself, to be read while that stands still.
  [[nodiscard]] CommsLog* comms_log() noexcept { return comms_log_ ? &*comms_log_ : nullptr; }
  [[nodiscard]] CommsLog* lane_comms_log() noexcept {
    return lane_comms_log_ ? &*lane_comms_log_ : nullptr;
  }

 private:
  using SlotPoolList = std::vector<std::unique_ptr<SlotPool>>;

  static Task<> fill_memory(Rank* self);
  void make_actors();
  void make_unit_actors(std::size_t unit);
  /// The optimizer's options of a unit; after make_unit_actors().
  [[nodiscard]] CpuOptimizer::Unit optimizer_unit(std::size_t unit);
  /// The runner of updates with that placement; null: the pool's threads.
  [[nodiscard]] UpdateRunner* runner_of(StatePlacement placement);
  [[nodiscard]] UpdateRunner* nvme_runner();
  /// The back end, with shards and accumulators on NVMe where there are such.
  [[nodiscard]] CollectiveBackend* with_nvme();
  /// "weights of "block 3"", by the address of an array on NVMe.
  [[nodiscard]] std::string name_on_nvme(const void* array) const;
  static Task<> open_nvme(Rank* self);
  FileIo& nvme_io();
  [[nodiscard]] std::string path_on_nvme(std::string_view what) const;
  void make_boundaries();
  [[nodiscard]] std::unique_ptr<BoundaryPlace> place_of_boundaries();
  void start_actors();
  static Task<> end_actors(Rank* self);

  RankOptions options_;
  Model model_;
  EventLoop loop_;
  CpuPool optimizer_pool_;
  CpuPool copy_pool_;
  std::unique_ptr<Accelerator> accelerator_;  // null: the CPU computes
  RankLayout layout_;
  std::optional<CommsLog> comms_log_;
  std::optional<CommsLog> lane_comms_log_;
  std::unique_ptr<CollectiveBackend> backend_;
  std::unique_ptr<ExpertParallelGroup> expert_group_;
  RowSharing row_sharing_;
  std::unique_ptr<LaneExchange> row_group_;  // null: rows are not shared
  Scope scope_;
  ComputeQueue compute_;
  std::optional<FileIo> nvme_io_;  // where anything lies on NVMe
  BusyTime nvme_busy_;             // of all of it
  std::unique_ptr<Boundaries> boundaries_;
  RankMemory memory_;
  WeightLoader loader_;
  bool stopped_ = false;

  std::unique_ptr<StateFileBackend> nvme_backend_;  // null: no weights lie on NVMe
  SlotPoolList weight_pools_;                       // [pool]; null where no unit uses it
  SlotPoolList gradient_pools_;                     // [gradient pool]; null likewise
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::unique_ptr<ParameterShard>> shards_;   // [unit]
  std::vector<std::unique_ptr<GradientBucket>> buckets_;  // [unit]; null: frozen
  std::unique_ptr<DeviceUpdates> resident_updates_;       // null where no unit needs it
  std::unique_ptr<DeviceUpdates> streamed_updates_;       // likewise
  std::unique_ptr<FileUpdates> nvme_updates_;             // likewise
  std::unique_ptr<CpuOptimizer> optimizer_;
  std::optional<Watchdog> watchdog_;  // from the end of loading on
};

}  // namespace tandem
