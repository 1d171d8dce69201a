// actors/kernels/update/update_pass.hpp — the passes over a unit's shard: an update in place, a
// speculative update, its redo and its rollback.
//
// An update before the verdict (are gradients finite, is the norm within the limit) must not
// overwrite its inputs. So moments, and a master that is not itself the weight, are written to a
// shadow of the same size, and a commit swaps the two. The model weight is written in place; if it
// is the master (fp32) or half of it (split masters), the old weight is first copied to the shadow.
// So a pass copies only state that it reads anyway, and no formula is inverted:
//   speculative   home -> shadow, the weight in place; committed by swapping the pointers, or
//                 followed by
//   redo          the same update with other constants, from the old state, in place, or by
//   rollback      the old weight, bit for bit: the backup, or cast from the master, which never
//                 changed
// Invariant: each pass writes only the elements of its range, with the bits of an update in place.
// C++17, for nvcc as well.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "actors/kernels/update/optimizer_step.hpp"

namespace tandem {

/// Memory for a speculative update; each array has the unit's number of elements. If all are null,
/// the unit has no shadow.
template <template <class> class Pointer>
struct UpdateShadowAt {
  Pointer<void> master = nullptr;  // the next master; the old one if the weight is the master
  Pointer<void> state[2] = {nullptr, nullptr};
  Pointer<std::uint8_t> scale[2] = {nullptr, nullptr};  // with 8-bit state
  Pointer<void> weight = nullptr;  // the old weight, if it is half of the master
};
using UpdateShadow = UpdateShadowAt<Plain>;

/// Elements of a shard that belong to one parameter group.
struct UpdateRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t group = 0;
};

/// The optimizer's memory of one unit's shard; all of it outlives the optimizer.
template <template <class> class Pointer>
struct UpdatedUnitAt {
  UpdateBuffersAt<Pointer> buffers;
  UpdateShadowAt<Pointer> shadow;
  std::vector<UpdateRange> ranges;  // ascending; elements outside of them are never written

  [[nodiscard]] bool has_shadow() const noexcept { return shadow.master != nullptr; }
  /// Returns whether the model weight is the master (fp32).
  [[nodiscard]] bool weight_is_master() const noexcept { return buffers.weight == nullptr; }
  /// Returns whether the old model weight is backed up, because it is a part of the state.
  [[nodiscard]] bool backs_up_weight() const noexcept {
    return weight_is_master() || buffers.weight_is_half();
  }
  /// Return the addresses of the model weight and of its backup; call them only if
  /// backs_up_weight().
  [[nodiscard]] Pointer<void> model_weight() const noexcept {
    return weight_is_master() ? buffers.master : buffers.weight;
  }
  [[nodiscard]] Pointer<void> backup() const noexcept {
    return weight_is_master() ? shadow.master : shadow.weight;
  }
  /// Returns the end of the last range.
  [[nodiscard]] std::size_t elements() const noexcept {
    return ranges.empty() ? 0 : ranges.back().end;
  }
};
using UpdatedUnit = UpdatedUnitAt<Plain>;

enum class UpdatePass : std::uint8_t { kInPlace, kSpeculative, kRedo, kRollback };

/// How a pass uses one array of a unit.
struct ArrayUse {
  std::size_t entry_bytes = 0;
  std::size_t entry_elements = 1;  // number of elements that share an entry
  bool read = false;
  bool written = false;

  /// Returns the bytes of the entries for the first `elements` elements.
  [[nodiscard]] std::size_t bytes_of(std::size_t elements) const noexcept {
    return (elements + entry_elements - 1) / entry_elements * entry_bytes;
  }
};

/// Bytes of an element of a moment.
[[nodiscard]] constexpr std::size_t moment_bytes(StateLayout layout) noexcept {
  return layout == StateLayout::kInt8 ? 1 : layout == StateLayout::kBf16 ? 2 : sizeof(float);
}

/// Calls visit(array, ArrayUse, same arrays of `others`...) for each array that a unit may have,
/// including null ones; an array is a reference to its address. Runners that copy arrays to other
/// memory use it.
template <class Unit, class Visit, class... Units>
void visit_arrays(Unit& unit, UpdatePass pass, Visit visit, Units&... others) {
  auto& home = unit.buffers;
  auto& shadow = unit.shadow;
  const bool speculative = pass == UpdatePass::kSpeculative;
  const bool rollback = pass == UpdatePass::kRollback;
  const bool redo = pass == UpdatePass::kRedo;
  // whether the pass writes at home the arrays that a speculative pass writes to the shadow
  const bool writes_home = !speculative && !rollback;
  const bool is_master = unit.weight_is_master();
  const bool is_half = home.weight_is_half();
  const std::size_t master = is_half ? 2 : sizeof(float);
  const std::size_t weight = bytes_of(home.weight_type);
  if (is_master) {  // written in place, the old one kept
    visit(home.master, ArrayUse{master, 1, !rollback && !redo, true}, others.buffers.master...);
    visit(shadow.master, ArrayUse{master, 1, redo || rollback, speculative},
          others.shadow.master...);
  } else {
    visit(home.master, ArrayUse{master, 1, !(rollback && is_half), writes_home},
          others.buffers.master...);
    visit(shadow.master, ArrayUse{master, 1, false, speculative}, others.shadow.master...);
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t moment = moment_bytes(home.layout);
    visit(home.state[i], ArrayUse{moment, 1, !rollback, writes_home}, others.buffers.state[i]...);
    visit(shadow.state[i], ArrayUse{moment, 1, false, speculative}, others.shadow.state[i]...);
    visit(home.scale[i], ArrayUse{1, kScaleGroup, !rollback, writes_home},
          others.buffers.scale[i]...);
    visit(shadow.scale[i], ArrayUse{1, kScaleGroup, false, speculative}, others.shadow.scale[i]...);
  }
  visit(home.gradient, ArrayUse{bytes_of(home.gradient_type), 1, !rollback, false},
        others.buffers.gradient...);
  visit(home.weight, ArrayUse{weight, 1, is_half && !rollback && !redo, true},
        others.buffers.weight...);
  visit(shadow.weight, ArrayUse{weight, 1, is_half && (redo || rollback), is_half && speculative},
        others.shadow.weight...);
}

/// The buffers that an updating pass reads and writes. kRollback updates nothing and does not use
/// them.
struct PassBuffers {
  UpdateBuffers buffers;
  void* backup = nullptr;  // gets the model weight before it is overwritten; null: it is not kept

  PassBuffers(UpdatePass pass, const UpdatedUnit& unit) : buffers(unit.buffers) {
    if (pass == UpdatePass::kSpeculative) {
      for (std::size_t i = 0; i < 2; ++i) {
        buffers.from.state[i] = unit.buffers.state[i];
        buffers.state[i] = unit.shadow.state[i];
        buffers.from.scale[i] = unit.buffers.scale[i];
        buffers.scale[i] = unit.shadow.scale[i];
      }
      if (!unit.weight_is_master()) {
        buffers.from.master = unit.buffers.master;
        buffers.master = unit.shadow.master;
      }
      backup = unit.backs_up_weight() ? unit.backup() : nullptr;
    } else if (pass == UpdatePass::kRedo && unit.backs_up_weight()) {
      (unit.weight_is_master() ? buffers.from.master : buffers.from.weight) = unit.backup();
    }
  }
};

/// Calls visit(range, first, last) for the part of each range in [begin, end).
template <class Visit>
void visit_ranges(const std::vector<UpdateRange>& ranges, std::size_t begin, std::size_t end,
                  Visit visit) {
  for (const UpdateRange& range : ranges) {
    const std::size_t first = std::max(range.begin, begin);
    const std::size_t last = std::min(range.end, end);
    if (first < last) {
      visit(range, first, last);
    }
  }
}

/// Runs one pass over the elements [begin, end). kRedo and kRollback are allowed only after a
/// speculative pass. `steps` is indexed by group; kRollback reads none. Any thread; disjoint ranges
/// may run at the same time.
void run_update_pass(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                     std::size_t begin, std::size_t end);

/// Commits a speculative pass over all elements: makes its results the unit's state, by swapping
/// addresses.
template <template <class> class Pointer>
void commit_speculative(UpdatedUnitAt<Pointer>& unit) noexcept {
  for (std::size_t i = 0; i < 2; ++i) {
    std::swap(unit.buffers.state[i], unit.shadow.state[i]);
    std::swap(unit.buffers.scale[i], unit.shadow.scale[i]);
  }
  if (!unit.weight_is_master()) {
    std::swap(unit.buffers.master, unit.shadow.master);
  }
}

}  // namespace tandem
