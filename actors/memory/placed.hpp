// actors/memory/placed.hpp — an address together with the memory that it is of: the host's, a
// device's, or a position in a file of state.
//
// Memory that may lie in several places crosses a boundary as a Placed. The code that allocates it
// sets the place, once; code that uses it asks for the address by the place that it can handle, and
// another place is a failed check instead of a fault or of wrong bytes. A plain pointer is host
// memory, so it becomes a Placed by itself; addresses of a device or of a file never do.
// Invariant: null lies nowhere, and counts as host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "runtime/util/check.hpp"

namespace tandem {

enum class Place : std::uint8_t {
  kHost,
  kDevice,  // of a simulated device, too, whose memory the host can access
  kFile,    // addresses without memory, which stand for positions (state_file.hpp)
};

template <class T>
class Placed {
 public:
  constexpr Placed() noexcept = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a plain pointer is host memory.
  constexpr Placed(T* on_host) noexcept : address_(on_host) {}
  constexpr Placed(Place place, T* address) noexcept
      : address_(address), place_(address != nullptr ? place : Place::kHost) {}
  template <class U>
    requires std::is_convertible_v<U*, T*>
  // NOLINTNEXTLINE(google-explicit-constructor): to const or void, as of pointers.
  constexpr Placed(Placed<U> other) noexcept : Placed(other.place_, other.address_) {}
  /// Gives the elements another type.
  template <class U>
    requires(!std::is_convertible_v<U*, T*>)
  explicit Placed(Placed<U> other) noexcept
      : Placed(other.place_, reinterpret_cast<T*>(other.address_)) {}

  [[nodiscard]] constexpr Place place() const noexcept { return place_; }

  // The address, for code that handles this place; null in every place.
  [[nodiscard]] T* host() const { return in(Place::kHost); }
  [[nodiscard]] T* device() const { return in(Place::kDevice); }
  [[nodiscard]] T* file() const { return in(Place::kFile); }
  /// The address in host or device memory, for code that accesses either: tensors, which know their
  /// device; NCCL, which reads pinned memory; and a simulated device's functions on the host.
  [[nodiscard]] T* memory() const {
    TANDEM_CHECK(place_ != Place::kFile, "what lies in a file has no memory");
    return address_;
  }
  /// The address as an identity, which is not accessed.
  [[nodiscard]] constexpr const void* identity() const noexcept { return address_; }

  /// The address `elements` further on; null stays null.
  [[nodiscard]] constexpr Placed operator+(std::size_t elements) const noexcept
    requires(!std::is_void_v<T>)
  {
    return {place_, address_ != nullptr ? address_ + elements : nullptr};
  }
  friend constexpr bool operator==(Placed a, Placed b) noexcept { return a.address_ == b.address_; }

 private:
  template <class U>
  friend class Placed;

  [[nodiscard]] T* in(Place place) const {
    TANDEM_CHECK(address_ == nullptr || place_ == place, "memory is accessed where it lies");
    return address_;
  }

  T* address_ = nullptr;
  Place place_ = Place::kHost;
};

}  // namespace tandem
