#include "engine/rank/device_copies.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/util/round_up.hpp"

namespace tandem {

std::size_t DeviceCopies::stage_bytes(std::size_t largest) noexcept {
  constexpr std::size_t kLeast = std::size_t{64} << 10;
  return std::clamp(round_up(2 * largest, kLeast), kLeast, kStageBytes);
}

Task<DeviceCopies::Turn> DeviceCopies::turn() {
  while (in_use_) {
    free_.reset();
    co_await free_;
  }
  in_use_ = true;
  co_return Turn(this);
}

Task<> DeviceCopies::to_device(Placed<std::byte> to, std::span<const std::byte> from) {
  const Turn turn = co_await this->turn();
  if (stage_.empty()) {
    stream_.to_device(to.device(), from);
    co_await stream_.record().wait();
    co_return;
  }
  std::array<std::optional<DeviceEvent>, 2> left;  // behind it a half may be filled again
  const std::size_t length = stage_.size() / 2;
  for (std::size_t piece = 0, at = 0; at < from.size(); ++piece, at += length) {
    if (left[piece % 2]) {
      co_await left[piece % 2]->wait();
    }
    const std::span<const std::byte> part = from.subspan(at, std::min(length, from.size() - at));
    std::memcpy(half(piece).data(), part.data(), part.size());
    stream_.to_device(to.device() + at, half(piece).first(part.size()));
    left[piece % 2] = stream_.record();
  }
  co_await stream_.record().wait();
}

Task<> DeviceCopies::to_host(std::span<std::byte> to, Placed<const std::byte> from) {
  const Turn turn = co_await this->turn();
  if (stage_.empty()) {
    stream_.to_host(to, from.device());
    co_await stream_.record().wait();
    co_return;
  }
  const std::size_t length = stage_.size() / 2;
  const auto part = [&](std::size_t piece) {
    const std::size_t at = std::min(piece * length, to.size());
    return to.subspan(at, std::min(length, to.size() - at));
  };
  const auto fetch = [&](std::size_t piece) {
    stream_.to_host(half(piece).first(part(piece).size()), from.device() + piece * length);
    return stream_.record();
  };
  std::array<std::optional<DeviceEvent>, 2> there;
  there[0] = fetch(0);
  for (std::size_t piece = 0; !part(piece).empty(); ++piece) {
    if (!part(piece + 1).empty()) {
      there[(piece + 1) % 2] = fetch(piece + 1);
    }
    co_await there[piece % 2]->wait();
    std::memcpy(part(piece).data(), half(piece).data(), part(piece).size());
  }
}

Task<> DeviceCopies::within_device(Placed<std::byte> to, Placed<const std::byte> from,
                                   std::size_t bytes) {
  stream_.within_device(to.device(), from.device(), bytes);
  co_await stream_.record().wait();
}

Task<> DeviceCopies::clear(Placed<std::byte> memory, std::size_t bytes) {
  std::size_t cleared = std::min(bytes, std::size_t{1} << 20);
  const std::vector<std::byte> zeros(cleared);
  co_await to_device(memory, zeros);
  while (cleared < bytes) {  // twice as many each time
    const std::size_t more = std::min(cleared, bytes - cleared);
    stream_.within_device(memory.device() + cleared, memory.device(), more);
    cleared += more;
  }
  co_await stream_.record().wait();
}

}  // namespace tandem
