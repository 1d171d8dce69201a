#include "engine/exchange/lane_exchange.hpp"

#include <utility>

#include <fmt/format.h>

#include "actors/collectives/awaited.hpp"
#include "actors/collectives/staged_backend.hpp"
#include "engine/tensors/torch_cuda.hpp"
#include "runtime/flight.hpp"
#include "runtime/io/net.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

LaneExchange::LaneExchange(Communicator& communicator, const RankGroup& group,
                           std::shared_ptr<Gpu> gpu, CommsLog* log, std::uint8_t log_group)
    : ranks_(group.world_size),
      log_(log),
      log_group_(log_group),
      loop_({.name = fmt::format("exchange {}", communicator.rank())}),
      pool_(loop_, {.threads = 1, .name = "exchange"}),
      gpu_(std::move(gpu)),
      backend_(communicator.make_group_backend(loop_, pool_, group)) {
  if (gpu_ != nullptr && ranks_ > 1) {
    connect_gpu(communicator, group);
  }
}

void LaneExchange::connect_gpu(Communicator& communicator, const RankGroup& group) {
  cuda_.emplace(loop_, *gpu_->api, CudaDevice::Options{.index = gpu_->index, .name = gpu_->name});
  compute_stream_ = cuda_->adopt("compute", gpu_->compute->stream());
  over_nccl_ = communicator.make_gpu_group_backend(loop_, *cuda_, group);
  if (over_nccl_ == nullptr) {
    backend_ = std::make_unique<StagedBackend>(*cuda_, std::move(backend_));
  }
}

void LaneExchange::give_up(const std::exception& cause) noexcept {
  backend_->give_up(cause);
  if (over_nccl_ != nullptr) {
    over_nccl_->give_up(cause);
  }
}

std::optional<at::Device> LaneExchange::device() const {
  return cuda_ ? std::optional(device_of_tensors(gpu_->compute.get())) : std::nullopt;
}

std::size_t LaneExchange::staging_bytes() const noexcept {
  const auto* const staged = dynamic_cast<const StagedBackend*>(backend_.get());
  return staged != nullptr ? staged->staging_bytes() : 0;
}

void LaneExchange::all_to_all(Placed<const std::byte> from, Placed<std::byte> into,
                              std::size_t piece_bytes) {
  const bool on_device = from.place() == Place::kDevice;
  TANDEM_CHECK(!on_device || cuda_, "only a device that is reached has pieces");
  const TimePoint start = loop_.now();
  const std::optional<DeviceEvent> computed =
      on_device ? std::optional(compute_stream_->record()) : std::nullopt;
  CollectiveBackend* const backend =
      on_device && over_nccl_ != nullptr ? over_nccl_.get() : backend_.get();
  try {
    loop_.run([](CollectiveBackend* exchange,
                 AllToAllArguments arguments) -> Task<> { return exchange->all_to_all(arguments); },
              backend,
              AllToAllArguments{.from = from,
                                .into = into,
                                .bytes = piece_bytes,
                                .in_use_until = computed ? &*computed : nullptr});
  } catch (const PeerLost& lost) {
    if (lost.rank() != kUnknownRank) {
      flight::blame(lost.rank());
    }
    throw;
  }
  if (log_ != nullptr && ranks_ > 1) {  // the lane does nothing else meanwhile
    const Duration took = loop_.now() - start;
    log_->add({.group = log_group_,
               .ranks = static_cast<std::uint32_t>(ranks_),
               .what = flight::Kind::kAllToAll,
               .bytes = piece_bytes * static_cast<std::uint64_t>(ranks_)},
              took, took);
  }
}

}  // namespace tandem
