// actors/memory/device_buffers.hpp — device memory that is kept permanently, and whether an address
// is in it.
//
// Invariant: memory that allocate() gave lives until this is destroyed. Thread rule: the loop's
// thread; holds() is asked in steps, and finds its answer in logarithmic time.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "runtime/device/device.hpp"

namespace tandem {

class DeviceBuffers {
 public:
  /// Its content is undefined. Throws DeviceOutOfMemory.
  std::byte* allocate(Device& device, std::size_t bytes) {
    DeviceBuffer made = device.allocate(bytes);
    std::byte* const memory = made.data();
    buffers_.insert_or_assign(memory, std::move(made));
    return memory;
  }
  [[nodiscard]] bool holds(const void* memory) const noexcept {
    const auto* at = static_cast<const std::byte*>(memory);
    const auto behind = buffers_.upper_bound(at);
    if (behind == buffers_.begin()) {
      return false;
    }
    const DeviceBuffer& before = std::prev(behind)->second;
    return std::less<>()(at, before.data() + before.size_bytes());
  }

 private:
  std::map<const std::byte*, DeviceBuffer, std::less<>> buffers_;  // by their beginning
};

}  // namespace tandem
