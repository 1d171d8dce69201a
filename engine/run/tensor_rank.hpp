// engine/run/tensor_rank.hpp — a rank that computes with ATen: its threads, its device and its
// connections, the Rank that is made of them, and tensors over the memory of its units.
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
  /// Connects the ranks, allocates all memory and loads the weights. Throws user_error when the
  /// options cannot work with the model, Error(kRefused) when there is no memory.
  TensorRank(Model model, RankOptions options, Communicator& communicator);
  ~TensorRank();
  TensorRank(const TensorRank&) = delete;
  TensorRank& operator=(const TensorRank&) = delete;

  [[nodiscard]] Rank& rank() noexcept { return *rank_; }

  /// Ends the actors and waits for their work. The destructor does it too, but what their work uses
  /// may be gone by then.
  void stop();
  /// This rank cannot go on: operations under way end here, and the peers learn which rank failed,
  /// this one or the one whose loss is the cause, and why.
  void give_up(const std::exception& cause) noexcept;

  /// A micro-batch for TrainStep: of `batch` the part that this rank computes, where segments
  /// compute. `looks` as of TensorBatch.
  Task<std::shared_ptr<TensorBatch>> micro_batch(Batch batch, bool looks = false);
  /// One for TrainStep::infer(); logits are those of whole rows.
  Task<std::shared_ptr<TensorBatch>> inference(Batch batch, HeadOutput output);
  /// The result of an inference that has ended, in host memory.
  Task<at::Tensor> result_of(std::shared_ptr<TensorBatch> inference);

  /// The device of the tensors that segments see.
  [[nodiscard]] at::Device device() const noexcept;
  [[nodiscard]] ResidentBytes resident_bytes() const noexcept;
  /// The counts of comms_logger of what the compute lane issues itself, to be read while that
  /// stands still; null: it is off.
  [[nodiscard]] CommsLog* lane_comms_log() noexcept {
    return lane_comms_log_ ? &*lane_comms_log_ : nullptr;
  }

 private:
  /// A half of the pinned memory through which batches go to a GPU: one is filled while the other
  /// is copied.
  struct BatchStage {
    std::span<std::byte> memory;
    std::optional<DeviceEvent> left;  // the copy that the half can be filled again after
  };

  [[nodiscard]] RankParts parts();
  /// For segments; null where neither experts nor rows are spread over ranks.
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
