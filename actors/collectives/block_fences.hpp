// actors/collectives/block_fences.hpp — since when a block of device memory may be read or
// overwritten: behind which event.
//
// The compute lane, which queued work on a block on its stream, says so and goes on; the copies
// and collectives that use the block next wait on the device. The host waits for neither.
// Invariant: one event for each block, the newest; a block is known by its first byte.
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
  /// The block's event, if there is one.
  [[nodiscard]] std::optional<DeviceEvent> of(const std::byte* block) const {
    const auto found = events_.find(block);
    return found != events_.end() ? std::optional(found->second) : std::nullopt;
  }
  /// Work that `stream` is given from now on runs behind the block's event, if there is one.
  void wait(DeviceStream stream, const std::byte* block) const {
    if (const std::optional<DeviceEvent> event = of(block)) {
      stream.wait(*event);
    }
  }

 private:
  std::unordered_map<const std::byte*, DeviceEvent> events_;
};

}  // namespace tandem
