// engine/rank/weight_loader.hpp — brings weights and optimizer state into a rank's memory, at the
// start or from a checkpoint, and back out for saving, on whatever side they lie.
//
// A rank loads its own slices, in pieces, on all threads of a pool. A unit whose weights lie on a
// device, or whose state lies on NVMe, is made in host memory and copied. Padding and moments begin
// as zeros, shadows as copies of the arrays that they stand in for.
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
  /// The arguments outlive it; `accelerator` is null where the CPU computes.
  WeightLoader(const RankLayout& layout, const RankMemory& memory, Accelerator* accelerator,
               CpuPool& pool);

  /// The sums that identify the values of frozen units, by which a checkpoint can leave those out.
  [[nodiscard]] const FrozenBase& frozen_base() const noexcept { return base_; }

  /// Once, before the first step. Throws what the model's source throws.
  Task<> load();

  /// This rank's slice of a unit's master weights, which lie in `now`; no update of it may be
  /// running. Valid until the next call.
  Task<std::span<const float>> master_of(std::size_t unit, UpdateBuffers now);
  /// Sets this rank's slice of a unit's master weights, model weights and moments, which lie in
  /// `now`; no update of it may be running. `moments`: else they are left as they are.
  Task<> restore(std::size_t unit, UpdatedUnit now, const StateSource* source, bool moments);
  /// All of a unit's state that lies in `now`, as the host reads it: copied from a device, and else
  /// valid until an update of the unit begins.
  Task<HostState> state_of(std::size_t unit, UpdateBuffers now);

  /// This rank's slice of a unit's accumulated gradient of the step in flight, after its
  /// reductions. Valid until the next call.
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
  /// A unit's master, its weight and what else the master is made of, as the host reaches them.
  struct HostView {
    struct Array {
      std::byte* elsewhere;
      HostBuffer host;  // in its stead
    };
    std::size_t unit = 0;
    UpdateBuffers buffers = {};
    std::vector<Array> arrays = {};  // what lies on the device, or on NVMe
  };
  struct ShadowArray {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  /// The pieces that are loaded at a time.
  struct Work {
    std::vector<Piece> pieces;
    std::vector<Cast> casts;  // once the masters are loaded, padding included
  };

  void add_unit(Work& work, std::size_t unit) const;
  /// Loads `work` into the buffers that `buffers_of` gives for a unit.
  template <class BuffersOf>
  Task<> load_into(const Work* work, BuffersOf buffers_of);
  void load_piece(const Piece& piece, const UpdateBuffers& buffers);
  /// The sums over this rank's slice of a frozen unit, one for each parameter.
  [[nodiscard]] std::vector<std::uint64_t> sums_of(std::size_t unit,
                                                   std::span<const float> slice) const;
  Task<> load_elsewhere(std::size_t unit);
  [[nodiscard]] bool is_elsewhere(const void* array) const noexcept {
    return memory_.is_on_device(array) || memory_.is_on_nvme(array);
  }
  /// Whether a unit's weights or state must be made in other memory.
  [[nodiscard]] bool is_made_elsewhere(std::size_t unit) const;
  /// Between a view's stand-ins and where their arrays lie.
  enum class Way : std::uint8_t { kToHost, kBack };
  Task<> copy(const HostView* view, Way way);
  Task<> copy_file(const HostView* view, StateFile::Transfer transfer, Way way);
  [[nodiscard]] std::vector<ShadowArray> shadow_arrays(std::size_t unit, const UpdateBuffers& home,
                                                       const UpdateShadow& shadow) const;
  [[nodiscard]] std::size_t master_bytes(std::size_t unit) const;
  /// Fills the arrays of the unit's shadow that lie in host memory.
  static void copy_on_host(const RankMemory& memory, const std::vector<ShadowArray>& arrays);
  Task<> copy_on_device(std::vector<ShadowArray> arrays);
  /// `whole`: the moments, too.
  [[nodiscard]] HostView view_on_host(std::size_t unit, const UpdateBuffers& buffers,
                                      bool whole) const;
  /// This rank's slice of one array, padding as zeros.
  Task<std::vector<float>> slice_from(const StateSource* source, std::size_t unit,
                                      std::uint32_t array);

  const RankLayout& layout_;
  const RankMemory& memory_;
  FrozenBase base_;
  CpuPool& pool_;
  std::optional<DeviceCopies> copies_;  // where something of a unit's state lies on the device
  std::vector<float> slice_;            // of master_of() and gradient_of(), where a cast is due
};

}  // namespace tandem
