// engine/exchange/lane_exchange.hpp — the all-to-all of a group of ranks, issued by the compute
// lane in the middle of a segment.
//
// Data in a GPU's memory goes to the other GPUs by NCCL if each rank has a GPU of its own, else
// through pinned host memory, piece by piece. Both begin after the work that is queued on the
// compute stream, and the lane waits until they end. Other data goes through host memory. The
// exchange has a loop of its own, which runs on the lane's thread only during an exchange: the lane
// waits for the data anyway, and using the rank's loop would cost two wake-ups of sleeping threads.
// Thread rule: the compute lane, except the constructor and give_up(). Its device belongs to its
// own loop.
// Failure: that of the back end (PeerLost). It is destroyed, or give_up() called, only while the
// lane does not exchange, because a step's task does not end before its lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/comms_log.hpp"
#include "engine/device/gpu.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/tensors/segment.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/device/cuda_device.hpp"
#include "runtime/event_loop.hpp"

namespace tandem {

class LaneExchange final : public RankExchange {
 public:
  /// Blocks until all ranks of `group` are connected. `log` (null: nothing is counted) outlives it;
  /// `log_group` is the group's number there. `gpu`: the GPU that the lane computes on; null: none.
  LaneExchange(Communicator& communicator, const RankGroup& group, std::shared_ptr<Gpu> gpu,
               CommsLog* log, std::uint8_t log_group);

  /// CollectiveBackend::give_up().
  void give_up(const std::exception& cause) noexcept;

  [[nodiscard]] std::int64_t ranks() const noexcept override { return ranks_; }
  [[nodiscard]] std::optional<at::Device> device() const override;
  void all_to_all(Placed<const std::byte> from, Placed<std::byte> into,
                  std::size_t piece_bytes) override;

  /// Returns the bytes of host memory through which GPUs' data passes.
  [[nodiscard]] std::size_t staging_bytes() const noexcept;

 private:
  void connect_gpu(Communicator& communicator, const RankGroup& group);

  std::int64_t ranks_;
  CommsLog* log_;
  std::uint8_t log_group_;
  EventLoop loop_;
  CpuPool pool_;  // its thread copies large data
  std::shared_ptr<Gpu> gpu_;
  std::optional<CudaDevice> cuda_;
  std::optional<DeviceStream> compute_stream_;
  std::unique_ptr<CollectiveBackend> backend_;    // for host memory, and for GPU memory through it
  std::unique_ptr<CollectiveBackend> over_nccl_;  // for GPU memory; null: backend_ serves it
};

}  // namespace tandem
