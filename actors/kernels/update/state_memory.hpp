// actors/kernels/update/state_memory.hpp — sizes and addresses of master and moments per layout,
// and their conversion from and to fp32, for the code that allocates, plans, loads and saves them.
// state_layout.hpp says what the bits mean.
//
// Invariant: a read after a write returns the same values if the layout is exact; for moments it
// does so in any layout if the written values came from a read. So a run resumes bit by bit from a
// checkpoint in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "actors/kernels/state_layout.hpp"
#include "actors/kernels/update/optimizer_step.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

/// Returns why an optimizer's state cannot have this layout beside weights of this type, as a part
/// of a message to the user; empty if it can.
[[nodiscard]] std::string_view why_unsupported(OptimizerKind kind, StateLayout layout,
                                               DType weight) noexcept;
[[nodiscard]] inline bool supports(OptimizerKind kind, StateLayout layout, DType weight) noexcept {
  return why_unsupported(kind, layout, weight).empty();
}

/// Arrays of state begin at multiples of these: in memory, and in a file that is read without the
/// page cache.
inline constexpr std::size_t kStateAlignment = 64;
inline constexpr std::size_t kFileStateAlignment = 4096;

/// Bytes of each array for `elements` elements; 0: there is none. fp32 weights are their own
/// master: `master` is 0.
struct StateSizes {
  std::size_t master = 0;
  std::size_t state[2] = {0, 0};
  std::size_t scale[2] = {0, 0};

  /// Returns the bytes of all arrays if each begins at a multiple of `alignment`.
  [[nodiscard]] std::size_t total(std::size_t alignment = kStateAlignment) const noexcept;
};

[[nodiscard]] StateSizes state_sizes(StateLayout layout, const UpdateConfig& config, DType weight,
                                     std::size_t elements) noexcept;

/// state_sizes().total()
[[nodiscard]] std::size_t state_bytes(StateLayout layout, const UpdateConfig& config, DType weight,
                                      std::size_t elements) noexcept;

/// Sets the layout of `buffers`, and points master, state and scale into `memory`:
/// state_sizes(...).total(alignment) zeroed bytes with that alignment (moments begin as zeros). If
/// weights are fp32, the master belongs to the caller and is not changed. No memory is accessed.
template <template <class> class Pointer>
void place_state(UpdateBuffersAt<Pointer>& buffers, StateLayout layout, const UpdateConfig& config,
                 DType weight, std::size_t elements,
                 std::type_identity_t<Pointer<std::byte>> memory,
                 std::size_t alignment = kStateAlignment) noexcept {
  const StateSizes sizes = state_sizes(layout, config, weight, elements);
  const auto next = [&memory, alignment](std::size_t bytes) {
    const Pointer<void> array = bytes == 0 ? Pointer<std::byte>(nullptr) : memory;
    memory = memory + round_up(bytes, alignment);
    return array;
  };
  buffers.layout = layout;
  if (sizes.master != 0) {
    buffers.master = next(sizes.master);
  }
  for (std::size_t array = 0; array < 2; ++array) {
    buffers.state[array] = next(sizes.state[array]);
  }
  for (std::size_t array = 0; array < 2; ++array) {
    buffers.scale[array] = static_cast<Pointer<std::uint8_t>>(next(sizes.scale[array]));
  }
}

/// Returns these buffers as the source of an update that writes other buffers.
[[nodiscard]] UpdateSource source_of(const UpdateBuffers& buffers) noexcept;

// These functions handle the elements [begin, end) of a shard; values[0] belongs to element
// `begin`. Any thread; no update of these elements may run. A split master's ties are stored in
// state[0] or, if there are two arrays, in state[1]. write_state() keeps them, so master and state
// may be written in any order.

/// Sets the master, and the weight that is cast from it.
void write_master(const UpdateBuffers& buffers, const float* values, std::size_t begin,
                  std::size_t end);
void read_master(const UpdateBuffers& buffers, float* values, std::size_t begin, std::size_t end);

/// Sets a moment, rounded to nearest. With kInt8, `begin` is a multiple of kScaleGroup, and so is
/// `end`, unless it is the shard's end.
void write_state(const UpdateBuffers& buffers, std::size_t array, const float* values,
                 std::size_t begin, std::size_t end);
void read_state(const UpdateBuffers& buffers, std::size_t array, float* values, std::size_t begin,
                std::size_t end);

}  // namespace tandem
