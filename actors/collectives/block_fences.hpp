// actors/collectives/block_fences.hpp — for each block of device memory, the event after which it
// may be read or overwritten.
//
// The compute lane queues work on a block on its stream and records an event; the copies and
// collectives that use the block next wait for it on the device. No host thread waits.
// Invariant: each block has one event, the newest. The address of its first byte identifies a
// block.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <utility>

#include "runtime/device/device.hpp"

namespace tandem {

class BlockFences {
 public:
  void set(const std::byte* block, DeviceEvent event) {
    events_.insert_or_assign(block, std::move(event));
  }
  /// Returns the block's event; nullopt if it has none.
  [[nodiscard]] std::optional<DeviceEvent> of(const std::byte* block) const {
    const auto found = events_.find(block);
    return found != events_.end() ? std::optional(found->second) : std::nullopt;
  }
  /// Makes later work on `stream` wait for the block's event, if there is one.
  void wait(DeviceStream stream, const std::byte* block) const {
    if (const std::optional<DeviceEvent> event = of(block)) {
      stream.wait(*event);
    }
  }

 private:
  std::unordered_map<const std::byte*, DeviceEvent> events_;
};

}  // namespace tandem
