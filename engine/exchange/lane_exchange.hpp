// engine/exchange/lane_exchange.hpp — the all-to-all of a group of ranks, issued by the compute
// lane in the middle of a segment.
//
// Data in a GPU's memory goes from there to the others' by NCCL where each rank has a GPU of
// its own, else by way of pinned host memory, piece by piece; either begins behind what the compute
// stream was given before, and the lane waits until it has ended. Other memory goes through the
// host's.
// It runs on a loop of its own, which runs on the lane's thread and only meanwhile: the lane waits
// for what comes anyway, and a hand-over to the rank's loop and back would be two wake-ups of
// sleeping threads more.
// Thread rule: the compute lane, but for making it and give_up(). Its device is of its own loop.
// Failure: that of the back end (PeerLost). It ends or gives up only while no lane exchanges,
// because a step's task does not end before its lane.
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
  /// Blocks until all ranks of `group` are connected, whose number is also CommsLog's `log_group`.
  /// `log` (null: nothing is counted) outlives it. `gpu`: that the lane computes on; null: none.
  LaneExchange(Communicator& communicator, const RankGroup& group, std::shared_ptr<Gpu> gpu,
               CommsLog* log, std::uint8_t log_group);

  /// CollectiveBackend::give_up().
  void give_up(const std::exception& cause) noexcept;

  [[nodiscard]] std::int64_t ranks() const noexcept override { return ranks_; }
  [[nodiscard]] std::optional<at::Device> device() const override;
  void all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes,
                  bool on_device = false) override;

  /// Host memory between GPUs.
  [[nodiscard]] std::size_t staging_bytes() const noexcept;

 private:
  void connect_gpu(Communicator& communicator, const RankGroup& group);

  std::int64_t ranks_;
  CommsLog* log_;
  std::uint8_t log_group_;
  EventLoop loop_;
  CpuPool pool_;  // what is large is copied by its thread
  std::shared_ptr<Gpu> gpu_;
  std::optional<CudaDevice> cuda_;
  std::optional<DeviceStream> compute_stream_;
  std::unique_ptr<CollectiveBackend> backend_;    // of host memory, and of the GPU's by way of it
  std::unique_ptr<CollectiveBackend> over_nccl_;  // of the GPU's; null: backend_ is
};

}  // namespace tandem
