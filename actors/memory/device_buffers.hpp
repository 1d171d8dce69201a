// actors/memory/device_buffers.hpp — owns device memory, and tells whether an address lies in it.
//
// Invariant: memory of allocate() lives until this object is destroyed.
// Thread rule: the loop's thread. holds() is called during steps, and takes logarithmic time.
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
  /// Allocates memory with undefined content. Throws DeviceOutOfMemory.
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
