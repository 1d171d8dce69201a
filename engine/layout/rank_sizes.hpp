// engine/layout/rank_sizes.hpp — the bytes of each kind that a rank allocates, computed from a
// model's units and the sizes of a run.
//
// Rank allocates by these figures, and the memory plan adds up the same figures before anything is
// allocated. Nothing here allocates, and a description of a model, without segments, is enough.
// Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "engine/layout/sharding.hpp"
#include "engine/layout/slot_classes.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"
#include "engine/types/state_placement.hpp"

namespace tandem {

struct Config;

/// Elements of each slice of a streamed unit. The host awaits each slice, which takes it about 0.1
/// ms; the copies of 12 MB of fp32 state take a link of 55 GB/s twice that, so the link is busy
/// with three slices under way.
inline constexpr std::size_t kStreamedSliceElements = 1024 * std::size_t{1024};

/// Limits on shadows, the second copies of state that speculative updates write (--overlap full).
struct ShadowBudget {
  std::size_t units = 0;                // at most
  std::size_t bytes = 0;                // at most, of one rank, on the host
  std::size_t device_bytes = SIZE_MAX;  // at most, on its device

  /// Returns the budget of the options; if they leave it open, a rank's share of the free memory.
  static ShadowBudget of(const EngineOptions& options, std::int64_t world_size);
  /// Returns the bytes that all shadows may have in a memory of which a run without them leaves
  /// `left_bytes`: what is left less a tenth of the memory, which stays in reserve; and all that is
  /// left where this is little, up to a quarter of the memory.
  static std::int64_t room_of(std::int64_t memory_bytes, std::int64_t left_bytes);
};

/// The shape of a run, as far as sizes depend on it.
struct RankShape {
  EngineOptions engine;      // of these: gather_slots, state_layout, placements
  DType type = DType::kF32;  // of weights, activations and gradients of a micro-step
  int micro_steps = 1;       // per optimizer step
  UpdateConfig update;       // what state the optimizer has
  ShadowBudget shadows;
  std::size_t device_bytes = 0;  // of an accelerator's memory; 0: not known

  /// Returns the shape for a config and the engine's options.
  static RankShape of(const Config& config, const EngineOptions& options);
};

/// Bytes of one unit on one rank. In fp32 the weights are the master, so the master takes no bytes.
struct UnitSizes {
  std::size_t weights = 0;  // the whole block where it stays replicated, else this rank's slice
  // this rank's slice, which has memory of its own beside a block on a device
  std::size_t shard = 0;
  StateSizes state;             // master and moments; frozen: the master of 16-bit weights alone
  std::size_t accumulator = 0;  // 0: frozen
  std::size_t shadow = 0;       // what an update ahead of the verdict needs; 0: frozen
  StatePlacement placement = StatePlacement::kHost;  // frozen units: kHost
  bool gradient_on_device = false;                   // the accumulator lies there
  bool weights_on_nvme = false;      // weights, accumulator and state lie in the file
  std::size_t shadow_on_device = 0;  // the part of `shadow` in device memory

  [[nodiscard]] std::size_t moments() const noexcept {
    return state.state[0] + state.state[1] + state.scale[0] + state.scale[1];
  }
};

struct PoolSizes {
  std::size_t slots = 0;
  std::size_t slot_bytes = 0;

  [[nodiscard]] std::size_t bytes() const noexcept { return slots * slot_bytes; }
};

struct RankSizes {
  std::vector<UnitSizes> units;           // [unit]
  std::vector<bool> weights_replicated;   // [unit] they stay gathered
  std::vector<PoolSizes> weight_pools;    // [pool] of SlotClasses::weights
  std::vector<PoolSizes> gradient_pools;  // [pool] of SlotClasses::gradients
  std::size_t gather_slots = 0;           // of the shared pool
  /// Units with a shadow, in the order in which their gradients come: the sooner a gradient is
  /// reduced, the more of the backward can hide the update. Gradients of the last visit come with
  /// the verdict, so their units have no shadow.
  std::vector<std::size_t> shadows;
  /// With one micro-step on one rank nothing is added to a gradient, so a 16-bit one keeps its
  /// type: the same bits for half the memory and traffic.
  DType accumulator_type = DType::kF32;
  /// Whether peers read the accumulators: an all-reduce makes whole ones from the parts of all
  /// ranks.
  bool accumulators_shared = false;
  // Host memory of joint updates: a whole unit's directions, and Muon's work space for the largest
  // matrix.
  std::size_t direction_block_bytes = 0;
  std::size_t direction_scratch_bytes = 0;
  // Device memory for the arrays of one slice that are copied from the host, for streamed units and
  // for other units that are updated on the device; 0 if there are none.
  std::size_t stream_buffer_bytes = 0;
  std::size_t resident_buffer_bytes = 0;
  std::size_t device_base_bytes = 0;  // slots and whole blocks on an accelerator
  // State on NVMe: bytes of the file, of host memory for a slice under way, and of host memory for
  // the largest unit, which is copied there to be loaded and saved.
  std::size_t nvme_file_bytes = 0;
  std::size_t nvme_buffer_bytes = 0;
  std::size_t nvme_copy_bytes = 0;
  // Bytes of the transfer buffer through which a shard on NVMe is gathered, and a gradient reduced;
  // 0 if the file is read into the slots and written from them.
  std::size_t nvme_shard_bytes = 0;
  std::size_t nvme_accumulator_bytes = 0;

  /// Returns the bytes of device memory that a unit takes because of its placement, without slots,
  /// whole blocks and shadows.
  [[nodiscard]] std::size_t device_bytes_of(std::size_t unit) const;
  /// Returns all bytes of a rank in device memory: slots, whole blocks, state, shadows, transfer
  /// buffers.
  [[nodiscard]] std::size_t device_bytes() const;

  /// Throws user_error if the number of slots asked for is too small.
  static RankSizes of(const Model& model, const RankShape& shape, const Sharding& sharding,
                      const SlotClasses& classes);

 private:
  /// Returns, by unit, whether its weights lie on NVMe.
  static std::vector<bool> weights_on_nvme(const Model& model, const RankShape& shape,
                                           const Sharding& sharding);
  void count_on_nvme(const UnitSizes& unit, std::size_t elements, const RankShape& shape);
  /// Counts the transfer buffers of gathers and reductions of units with weights on NVMe.
  /// `straight`: a single rank in host memory, which needs none for gathers.
  void count_nvme_buffers(bool straight, bool is_kept);
};

}  // namespace tandem
