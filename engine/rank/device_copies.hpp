// engine/rank/device_copies.hpp — copies between a device and any host memory: at the start and for
// saving, never in a step.
//
// A GPU's copies pass through the two halves of a pinned transfer buffer, the stage.
// Invariant: an operation has ended on the device when its task ends.
// Thread rule: the loop's thread; simultaneous operations use the stage one after another.
// Errors: DeviceError.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "actors/memory/placed.hpp"
#include "runtime/device/device.hpp"
#include "runtime/event.hpp"
#include "runtime/task.hpp"

namespace tandem {

class DeviceCopies {
 public:
  static constexpr std::size_t kStageBytes = std::size_t{64} << 20;  // at most, of both halves
  /// Returns the bytes of a stage for copies of at most `largest` bytes.
  [[nodiscard]] static std::size_t stage_bytes(std::size_t largest) noexcept;

  /// `stage` outlives this object; empty: the device can access all host memory.
  DeviceCopies(Device& device, std::span<std::byte> stage)
      : stream_(device.stream("copies of state")), stage_(stage) {}

  Task<> to_device(Placed<std::byte> to, std::span<const std::byte> from);
  Task<> to_host(std::span<std::byte> to, Placed<const std::byte> from);
  Task<> within_device(Placed<std::byte> to, Placed<const std::byte> from, std::size_t bytes);
  /// Fills the memory with zeros: the first are copied from the host, the rest within the device.
  Task<> clear(Placed<std::byte> memory, std::size_t bytes);

 private:
  [[nodiscard]] std::span<std::byte> half(std::size_t piece) const noexcept {
    return stage_.subspan(piece % 2 * (stage_.size() / 2), stage_.size() / 2);
  }

  /// The right to use the stage; one operation has it at a time.
  struct Turn {
    DeviceCopies* copies;
    explicit Turn(DeviceCopies* owner) noexcept : copies(owner) {}
    Turn(Turn&& other) noexcept : copies(std::exchange(other.copies, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (copies != nullptr) {
        copies->in_use_ = false;
        copies->free_.set();
      }
    }
  };
  Task<Turn> turn();

  DeviceStream stream_;
  std::span<std::byte> stage_;
  bool in_use_ = false;
  Event free_;
};

}  // namespace tandem
