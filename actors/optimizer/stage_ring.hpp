// actors/optimizer/stage_ring.hpp — a ring of transfer buffers (stages) for slices: one for each
// slice that may be under way, equal parts of one memory.
//
// Stage: any struct with a `std::byte* memory`.
// Thread rule: one thread, the loop's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

template <class Stage>
class StageRing {
  struct Slot {
    Stage stage;
    bool taken = false;
  };

 public:
  /// Owns a stage of the ring until it is destroyed.
  class Loan {
   public:
    explicit Loan(Slot& slot) noexcept : slot_(slot) { slot_.taken = true; }
    ~Loan() { slot_.taken = false; }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    [[nodiscard]] Stage& operator*() const noexcept { return slot_.stage; }

   private:
    Slot& slot_;
  };

  /// `memory` of count * stage_bytes outlives the ring; null: stages have no memory.
  StageRing(std::size_t count, std::byte* memory, std::size_t stage_bytes) : slots_(count) {
    for (std::size_t i = 0; i < count && memory != nullptr; ++i) {
      slots_[i].stage.memory = memory + i * stage_bytes;
    }
  }

  [[nodiscard]] Loan take() {
    const auto free = planted(Bug::kStageLentTwice)
                          ? slots_.begin()
                          : std::ranges::find(slots_, false, &Slot::taken);
    TANDEM_CHECK(free != slots_.end(), "there is a stage for each slice under way");
    return Loan(*free);
  }

 private:
  std::vector<Slot> slots_;
};

}  // namespace tandem
