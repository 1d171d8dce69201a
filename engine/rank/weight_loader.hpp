// engine/rank/weight_loader.hpp — loads weights and optimizer state into a rank's memory, at the
// start or from a checkpoint, and reads them for saving, wherever they lie (host, device, NVMe).
//
// A rank loads its own slices, in pieces, on all threads of a pool. A unit whose weights lie on a
// device, or whose state lies on NVMe, is made in host memory and copied. Padding and moments begin
// as zeros, shadows as copies of the arrays for which they stand in.
// Invariant: the bits that are loaded depend on the model and the types alone, not on the number of
// threads or ranks.
// Thread rule: the loop's thread; one operation at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "actors/checkpoint/checkpoint_writer.hpp"
#include "engine/rank/device_copies.hpp"
#include "engine/rank/frozen_base.hpp"
#include "engine/rank/rank_layout.hpp"
#include "engine/rank/rank_memory.hpp"
#include "engine/types/checkpoint.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/task.hpp"

namespace tandem {

class WeightLoader {
 public:
  /// The arguments outlive this object; `accelerator` is null if the CPU computes.
  WeightLoader(const RankLayout& layout, const RankMemory& memory, Accelerator* accelerator,
               CpuPool& pool);

  /// Returns the checksums of the frozen units' values, which allow a checkpoint to leave the
  /// values out.
  [[nodiscard]] const FrozenBase& frozen_base() const noexcept { return base_; }

  /// Loads all units from the model's source; call it once, before the first step. Throws what the
  /// source throws.
  Task<> load();

  /// Returns this rank's slice of a unit's master weights, in fp32; it is valid until the next
  /// call. `now`: where they lie; no update of the unit may be running.
  Task<std::span<const float>> master_of(std::size_t unit, PlacedBuffers now);
  /// Sets this rank's slice of a unit's master weights, model weights and, with `moments`, moments
  /// to the source's values; without it moments stay as they are. `now`: where they lie; no update
  /// of the unit may be running.
  Task<> restore(std::size_t unit, PlacedState now, const StateSource* source, bool moments);
  /// Returns all of a unit's state in `now` as host memory: copies of arrays on a device or NVMe;
  /// the other arrays in place, valid until an update of the unit begins.
  Task<HostState> state_of(std::size_t unit, PlacedBuffers now);

  /// Returns, in fp32, this rank's slice of the gradient that the step in flight has accumulated
  /// for a unit. Call it after the reductions; the result is valid until the next call.
  Task<std::span<const float>> gradient_of(std::size_t unit);

 private:
  /// The part of a parameter that one thread loads, in this rank's slice of its unit.
  struct Piece {
    const ParameterSpec* parameter;
    std::int64_t begin;  // in the parameter
    std::int64_t end;
    std::size_t unit;
    std::size_t at;  // in the unit's slice
  };
  /// Elements of a unit's slice whose weights are cast from masters.
  struct Cast {
    std::size_t unit;
    std::size_t begin;
    std::size_t end;
  };
  /// A unit's master, its weight and other arrays in host memory; arrays that lie elsewhere have
  /// stand-ins, or are null if they are not wanted.
  struct HostView {
    struct Array {
      Placed<std::byte> elsewhere;
      HostBuffer host;  // its stand-in
    };
    std::size_t unit = 0;
    UpdateBuffers buffers = {};
    std::vector<Array> arrays = {};  // those on the device or on NVMe
  };
  struct ShadowArray {
    Placed<std::byte> to;
    Placed<const std::byte> from;
    std::size_t bytes;
  };
  /// Work that is done together: first all pieces, then the casts.
  struct Work {
    std::vector<Piece> pieces;
    std::vector<Cast> casts;  // from the loaded masters, padding included
  };

  void add_unit(Work& work, std::size_t unit) const;
  /// Loads `work` into the buffers that `buffers_of` gives for a unit.
  template <class BuffersOf>
  Task<> load_into(const Work* work, BuffersOf buffers_of);
  void load_piece(const Piece& piece, const UpdateBuffers& buffers);
  /// Returns the checksums of this rank's slice of a frozen unit, one for each parameter.
  [[nodiscard]] std::vector<std::uint64_t> sums_of(std::size_t unit,
                                                   std::span<const float> slice) const;
  Task<> load_elsewhere(std::size_t unit);
  /// Whether a unit is made in host memory and copied to where it lies.
  [[nodiscard]] bool is_made_elsewhere(std::size_t unit) const;
  /// The direction of a copy between a view's stand-ins and their arrays.
  enum class Way : std::uint8_t { kToHost, kBack };
  Task<> copy(const HostView* view, Way way);
  Task<> copy_file(const HostView* view, StateFile::Transfer transfer, Way way);
  [[nodiscard]] std::vector<ShadowArray> shadow_arrays(std::size_t unit, const PlacedBuffers& home,
                                                       const PlacedShadow& shadow) const;
  [[nodiscard]] std::size_t master_bytes(std::size_t unit) const;
  /// Fills the arrays of the unit's shadow that lie in host memory.
  static void copy_on_host(const std::vector<ShadowArray>& arrays);
  Task<> copy_on_device(std::vector<ShadowArray> arrays);
  /// Returns a view whose stand-ins are not filled yet. `whole`: with the moments.
  [[nodiscard]] HostView view_on_host(std::size_t unit, const PlacedBuffers& buffers,
                                      bool whole) const;
  /// Returns this rank's slice of one state array, with zeros as padding.
  Task<std::vector<float>> slice_from(const StateSource* source, std::size_t unit,
                                      std::uint32_t array);

  const RankLayout& layout_;
  const RankMemory& memory_;
  FrozenBase base_;
  CpuPool& pool_;
  std::optional<DeviceCopies> copies_;  // absent if no unit is updated on the device
  std::vector<float> slice_;  // the result of master_of() and gradient_of(), if it is a copy
};

}  // namespace tandem
