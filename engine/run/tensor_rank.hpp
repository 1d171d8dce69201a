// engine/run/tensor_rank.hpp — a rank that computes with ATen: owns its threads, device and
// connections, the Rank made of them, and tensors over the memory of its units.
//
// Invariant: threads, device and connections outlive the rank; the rank outlives the tensors.
// Thread rule: the loop's thread.
#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "actors/collectives/comms_log.hpp"
#include "engine/device/accelerator.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/exchange/expert_parallel_group.hpp"
#include "engine/exchange/lane_exchange.hpp"
#include "engine/rank/rank.hpp"
#include "engine/tensors/segment.hpp"
#include "engine/tensors/segment_runner.hpp"
#include "engine/tensors/tensor_batch.hpp"
#include "engine/tensors/unit.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/supervision/watchdog.hpp"

namespace tandem {

class TensorRank {
 public:
  /// Connects the ranks, allocates all memory and loads the weights. Throws user_error if the
  /// options do not fit the model, Error(kRefused) if memory is too small.
  TensorRank(Model model, RankOptions options, Communicator& communicator);
  ~TensorRank();
  TensorRank(const TensorRank&) = delete;
  TensorRank& operator=(const TensorRank&) = delete;

  [[nodiscard]] Rank& rank() noexcept { return *rank_; }

  /// Ends the actors and waits for their work. The destructor does it, too, but by then objects
  /// that the work uses may be destroyed.
  void stop();
  /// Aborts this rank: operations under way end here, and peers are notified of the reason and of
  /// the failed rank: this one, or the lost rank that caused it.
  void give_up(const std::exception& cause) noexcept;

  /// Makes a micro-batch for TrainStep: the part of `batch` that this rank computes, on the device
  /// of the segments. `looks` as in TensorBatch.
  Task<std::shared_ptr<TensorBatch>> micro_batch(Batch batch, bool looks = false);
  /// Makes a micro-batch for TrainStep::infer(); logits are those of whole rows.
  Task<std::shared_ptr<TensorBatch>> inference(Batch batch, HeadOutput output);
  /// Copies the result of an inference that has ended to host memory.
  Task<at::Tensor> result_of(std::shared_ptr<TensorBatch> inference);

  /// The device of the tensors that segments see.
  [[nodiscard]] at::Device device() const noexcept;
  [[nodiscard]] ResidentBytes resident_bytes() const noexcept;
  /// Returns comms_logger's counts of the operations that the compute lane issues, to be read while
  /// the lane is idle; null if the logger is off.
  [[nodiscard]] CommsLog* lane_comms_log() noexcept {
    return lane_comms_log_ ? &*lane_comms_log_ : nullptr;
  }

 private:
  /// One half of the pinned memory through which batches are copied to a GPU: one half is filled
  /// while the other is copied.
  struct BatchStage {
    std::span<std::byte> memory;
    std::optional<DeviceEvent> left;  // the copy after which the half can be filled again
  };

  [[nodiscard]] RankParts parts();
  /// Returns the exchange for segments; null if neither experts nor rows are spread over ranks.
  [[nodiscard]] RankExchange* exchange() noexcept;
  Task<Batch> part_of(Batch batch);
  Task<Batch> upload(Batch batch);

  Model model_;
  EventLoop loop_;
  CpuPool optimizer_pool_;
  CpuPool copy_pool_;
  std::unique_ptr<Accelerator> accelerator_;  // null: the CPU computes
  RankLayout layout_;
  std::optional<CommsLog> comms_log_;
  std::optional<CommsLog> lane_comms_log_;
  std::unique_ptr<CollectiveBackend> backend_;
  std::unique_ptr<ExpertParallelGroup> expert_group_;  // null: every rank has all experts
  std::unique_ptr<LaneExchange> row_group_;            // null: rows are not shared
  std::optional<Rank> rank_;
  std::optional<Watchdog> watchdog_;          // from the end of loading on
  std::vector<std::unique_ptr<Unit>> units_;  // [unit]
  std::optional<SegmentRunner> runner_;
  TensorUnits tensors_;
  std::array<BatchStage, 2> batch_stages_;
  std::size_t next_stage_ = 0;
  bool stopped_ = false;
  bool gave_up_ = false;
};

}  // namespace tandem
