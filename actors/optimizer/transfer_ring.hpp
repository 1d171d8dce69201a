// actors/optimizer/transfer_ring.hpp — a ring of transfer buffers for slices: one for each slice
// that may be under way. The buffers are equal parts of one memory.
//
// TransferBuffer: any struct with a `std::byte* memory`.
// Thread rule: one thread, the loop's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

template <class TransferBuffer>
class TransferRing {
  struct Slot {
    TransferBuffer buffer;
    bool taken = false;
  };

 public:
  /// Owns a buffer of the ring until it is destroyed.
  class Loan {
   public:
    explicit Loan(Slot& slot) noexcept : slot_(slot) { slot_.taken = true; }
    ~Loan() { slot_.taken = false; }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    [[nodiscard]] TransferBuffer& operator*() const noexcept { return slot_.buffer; }

   private:
    Slot& slot_;
  };

  /// `memory` has count * buffer_bytes and outlives the ring. If it is null, the buffers have no
  /// memory.
  TransferRing(std::size_t count, std::byte* memory, std::size_t buffer_bytes) : slots_(count) {
    for (std::size_t i = 0; i < count && memory != nullptr; ++i) {
      slots_[i].buffer.memory = memory + i * buffer_bytes;
    }
  }

  [[nodiscard]] Loan take() {
    const auto free = planted(Bug::kStageLentTwice)
                          ? slots_.begin()
                          : std::ranges::find(slots_, false, &Slot::taken);
    TANDEM_CHECK(free != slots_.end(), "there is a buffer for each slice under way");
    return Loan(*free);
  }

 private:
  std::vector<Slot> slots_;
};

}  // namespace tandem
