// engine/rank/rank_memory.hpp — the memory of a rank: weights, optimizer state, gradients and slots
// of its units, allocated once, by the sizes of the plan.
//
//                  in the memory of the device where there is one    in host memory
//   slots          all                                               without a device
//   whole blocks   all                                               without a device
//   slice, state,  where the unit's placement says so; a streamed    otherwise
//   gradient       unit has its state in host memory
//
// Arrays on NVMe have addresses in a StateFile and take no memory. The place of each array is set
// here, where it is allocated (Placed), and nowhere else.
//
// The collectives' back end allocates memory that peers read in place, and memory that a device
// copies from and to.
// Invariant: nothing is allocated after the start of the run, and nothing moves.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "actors/memory/arena.hpp"
#include "actors/memory/placed.hpp"
#include "actors/memory/state_file.hpp"
#include "actors/optimizer/placed_state.hpp"
#include "engine/device/accelerator.hpp"
#include "engine/layout/resident_bytes.hpp"
#include "engine/rank/rank_layout.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/task.hpp"

namespace tandem {

/// The memory of one unit. In fp32 the shard is the master itself; in 16 bits it is separate
/// memory, which the optimizer writes.
struct UnitMemory {
  Placed<std::byte> block;  // of a unit that stays replicated; null: it is gathered into slots
  Placed<std::byte> shard;  // in compute type; inside the block if they lie on the same side
  // The optimizer's state at the start of the run; speculative updates swap its addresses with the
  // shadow's.
  PlacedBuffers buffers;
  PlacedShadow shadow;
  Placed<std::byte> accumulator;
};

class RankMemory {
 public:
  /// The arguments outlive this object; `accelerator` is null if the CPU computes. Without
  /// `has_memory`, host memory of this rank alone is addresses without content. Throws
  /// Error(kRefused), naming the purpose, if memory is too small.
  RankMemory(const RankLayout& layout, CollectiveBackend& backend, Accelerator* accelerator,
             bool has_memory = true);
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  /// Touches this rank's own host memory on the pool's threads, so that it lies near the threads
  /// that work on it, and the first steps have no page faults.
  Task<> touch(CpuPool* pool);

  /// Opens the file of state on NVMe; call it before anything is loaded. The run's options set the
  /// size of its pieces.
  Task<> open_state_file(StateFile::Options options);
  /// Null: nothing lies on NVMe.
  [[nodiscard]] StateFile* state_file() const noexcept { return state_file_.get(); }
  /// FileUpdates::kSlices transfer buffers of RankSizes::nvme_buffer_bytes each.
  [[nodiscard]] std::byte* nvme_buffers() const noexcept { return nvme_buffers_; }
  /// Memory for gathers and reductions of weights on NVMe, as RankSizes says; null: none.
  [[nodiscard]] std::byte* nvme_shard_buffer() const noexcept { return nvme_shard_buffer_; }
  [[nodiscard]] std::byte* nvme_accumulator_buffer() const noexcept {
    return nvme_accumulator_buffer_;
  }

  [[nodiscard]] const UnitMemory& unit(std::size_t unit) const { return units_[unit]; }
  /// Whether the unit can be updated ahead of the verdict.
  [[nodiscard]] bool has_shadow(std::size_t unit) const {
    return units_[unit].shadow.master != nullptr;
  }
  [[nodiscard]] Placed<std::byte> weight_slots(std::size_t pool) const {
    return weight_slots_[pool];
  }
  [[nodiscard]] Placed<std::byte> gradient_slots(std::size_t pool) const {
    return gradient_slots_[pool];
  }
  /// Two buffers in fp32, for a slice and for a whole block, that this run's collectives can read
  /// and write. Empty: collectives take any host memory.
  [[nodiscard]] std::span<float> slice_buffer() const noexcept { return slice_buffer_; }
  [[nodiscard]] std::span<float> whole_buffer() const noexcept { return whole_buffer_; }

  /// Memory for joint updates (RankSizes): a whole unit's directions, which peers read in place,
  /// and the work space for a matrix.
  [[nodiscard]] float* direction_block() const noexcept { return direction_block_; }
  [[nodiscard]] std::span<float> direction_scratch() const noexcept { return direction_scratch_; }

  /// Allocates device memory that lives as long as the accelerator. Throws Error(kRefused) naming
  /// the purpose.
  Placed<std::byte> allocate_on_device(std::size_t bytes, std::string_view purpose) {
    return accelerator_->allocate(bytes, purpose);
  }
  [[nodiscard]] ResidentBytes resident_bytes() const noexcept;

 private:
  /// Allocates zeroed memory of this rank alone and adds its bytes to `counted`.
  std::byte* allocate(std::size_t bytes, std::size_t& counted);
  /// Allocates zeroed memory that peers' collectives read in place.
  std::byte* allocate_shared(std::size_t bytes, std::size_t& counted);
  /// Allocates state in host memory; a streamed unit's state lies where a GPU's copies are fast.
  std::byte* allocate_streamed(std::size_t bytes, std::size_t& counted, StatePlacement placement);
  void allocate_save_buffers();
  void allocate_weights(std::size_t unit);
  void allocate_unit(std::size_t unit);
  Placed<std::byte> allocate_state(std::size_t unit);
  Placed<std::byte> allocate_accumulator(std::size_t unit);
  /// Returns the next free addresses of the state file, from the beginning of a block on.
  Placed<std::byte> allocate_in_file(std::size_t bytes);
  void allocate_shadow(std::size_t unit);
  void allocate_nvme();
  void allocate_directions();
  void allocate_slots();
  Placed<std::byte> slots_on_device(const SlotPools& pools, std::size_t pool, std::string_view name,
                                    std::size_t bytes);
  [[nodiscard]] std::string purpose(std::string_view what, std::size_t unit) const;

  const RankLayout& layout_;
  CollectiveBackend& backend_;
  Accelerator* accelerator_;
  bool has_memory_;
  std::vector<UnitMemory> units_;                  // [unit]
  std::vector<Placed<std::byte>> weight_slots_;    // [pool]
  std::vector<Placed<std::byte>> gradient_slots_;  // [gradient pool]
  std::span<float> slice_buffer_;
  std::span<float> whole_buffer_;
  float* direction_block_ = nullptr;
  std::span<float> direction_scratch_;
  std::vector<HostBuffer> owned_;
  std::unique_ptr<StateFile> state_file_;
  std::size_t in_state_file_ = 0;  // bytes handed out
  std::byte* nvme_buffers_ = nullptr;
  std::byte* nvme_shard_buffer_ = nullptr;
  std::byte* nvme_accumulator_buffer_ = nullptr;
  ResidentBytes resident_bytes_;
};

}  // namespace tandem
