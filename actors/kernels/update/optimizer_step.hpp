// actors/kernels/update/optimizer_step.hpp — one fused pass of an optimizer over a range of
// elements: Adam, AdamW, SGD, Lion, Adagrad, and the second half of LAMB and Muon.
//
// gradient (fp32 | bf16 | fp16) -> times gradient_scale -> state and fp32 master, in place or from
// one buffer to another -> model weight (fp32 | bf16 | fp16). There is one pass, because the update
// is bound by memory: separate unscale, clip and cast passes would cost half as much again. The
// pass is the same for all optimizers (update-inl.hpp), which differ only in their rules per
// element (optimizers/optimizers.hpp).
//
// Invariant: the bits are the same for every SIMD target, thread count, chunking and alignment:
// each element takes the same IEEE operations at every position, each rounded once, none fused.
// There is no fused multiply-add, because emulated targets lack it, it would not be faster (memory
// and the divider are the limits), and it would gain less accuracy than fp32 state loses. Denormals
// are kept, and NaN stays NaN. This file, its includes, and the files up to update_pass.hpp that
// include it are C++17, for nvcc as well.
#pragma once

#include <cstddef>
#include <cstdint>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/optimizers/optimizers.hpp"
#include "actors/kernels/state_layout.hpp"

namespace tandem {

/// Returns the number of state arrays beside the master, which start as zeros: as many as the
/// optimizer has names for, but none for SGD without momentum. Muon's matrices use only the first
/// array.
[[nodiscard]] std::size_t state_arrays(const UpdateConfig& config) noexcept;

struct UpdateStep {
  StepConstants rule;
  std::uint64_t rounding_bits = 0;  // made of seed and step

  /// `step` counts applied steps from 1. `gradient_scale` is the product of unscaling and clipping;
  /// for a direction it is a factor of the learning rate (LAMB's trust ratio, Muon's clip
  /// coefficient).
  static UpdateStep make(const UpdateConfig& config, std::int64_t step, double gradient_scale);

  /// Returns kLamb for Muon, too.
  [[nodiscard]] OptimizerKind kind() const noexcept {
    return static_cast<OptimizerKind>(rule.index());
  }

  bool operator==(const UpdateStep& o) const {
    return rule == o.rule && rounding_bits == o.rounding_bits;
  }
};

/// The address of memory that the code which gets it can access: all that kernels know of memory.
/// Who passes units on, wherever they lie, gives these structs another kind of address
/// (PlacedBuffers, actors/optimizer/placed_state.hpp).
template <class T>
using Plain = T*;

/// The arrays that an update out of place reads, instead of those that it writes. If an array is
/// null, its counterpart in UpdateBuffers is updated in place. None overlaps an array of
/// UpdateBuffers.
struct UpdateSource {
  const void* master = nullptr;
  const void* state[2] = {nullptr, nullptr};
  const std::uint8_t* scale[2] = {nullptr, nullptr};  // exponents of the state
  const void* weight = nullptr;                       // if it is the master's upper half
};

/// Arrays of one unit's shard, each from the shard's first element on; the kernel touches only the
/// elements of the range it is given. None may overlap.
template <template <class> class Pointer>
struct UpdateBuffersAt {
  // float. If the layout is not fp32 and there is a (bf16) weight: std::uint16_t, the weight's
  // remainder.
  Pointer<void> master = nullptr;
  // The first state_arrays() entries are used. They are float (fp32, split), bf16, or 8-bit codes
  // with one exponent per scale group in `scale`.
  Pointer<void> state[2] = {nullptr, nullptr};
  Pointer<std::uint8_t> scale[2] = {nullptr, nullptr};
  Pointer<const void> gradient = nullptr;
  DType gradient_type = DType::kF32;
  // The model weight: the new master, rounded to nearest even; null: none.
  Pointer<void> weight = nullptr;
  DType weight_type = DType::kF32;  // a 16-bit gradient comes with a weight of its type
  StateLayout layout = StateLayout::kFp32;
  // The first element's position in the model, on which stochastic rounding depends.
  std::uint64_t position = 0;
  UpdateSource from;  // never written, so an update out of place can be dropped or redone

  /// Whether the weight is the upper half of each master.
  [[nodiscard]] bool weight_is_half() const noexcept {
    return layout != StateLayout::kFp32 && weight != nullptr;
  }
  /// Returns the masters; null if they are split.
  [[nodiscard]] Pointer<float> whole_master() const noexcept {
    return weight_is_half() ? Pointer<float>(nullptr) : static_cast<Pointer<float>>(master);
  }
};
using UpdateBuffers = UpdateBuffersAt<Plain>;

/// Updates the elements [begin, end). Any thread; disjoint ranges may run at the same time, also
/// adjacent ones. Another thread may read the written weights after the usual synchronisation
/// (non-temporal stores are fenced here). With kInt8, `begin` is a multiple of kScaleGroup, and so
/// is `end`, unless it is the shard's end (the rest of its scale group is padding).
void apply_update(const UpdateStep& step, const UpdateBuffers& buffers, std::size_t begin,
                  std::size_t end);

}  // namespace tandem
