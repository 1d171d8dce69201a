// engine/layout/rank_sizes.hpp — how many bytes a rank holds of each kind, from a model's units and
// the sizes of a run.
//
// One source of truth: Rank allocates by these figures, and the memory plan adds them up before
// anything is allocated. Nothing here allocates, and a model without segments to run (a
// description) will do. Pure: any thread.
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

/// Elements of a streamed unit that are on the device at a time, for each slice under way: enough
/// that a copy takes much longer than it takes to begin one.
inline constexpr std::size_t kStreamedSliceElements = 256 * std::size_t{1024};

/// Room for second copies of state, which updates ahead of the verdict write to (--overlap full).
struct ShadowBudget {
  std::size_t units = 0;                // at most
  std::size_t bytes = 0;                // at most, of one rank, on the host
  std::size_t device_bytes = SIZE_MAX;  // at most, on its device

  /// As the options say; chosen: all that a rank's share of the free memory holds.
  static ShadowBudget of(const EngineOptions& options, std::int64_t world_size);
  /// The bytes of one of `ranks` ranks, together a quarter of `host_bytes`.
  static std::size_t share_of(std::uint64_t host_bytes, std::int64_t ranks);
};

/// The shape of a run, as far as sizes depend on it.
struct RankShape {
  EngineOptions engine;      // of these: gather_slots, state_layout, placements
  DType type = DType::kF32;  // of weights, activations and gradients of a micro-step
  int micro_steps = 1;       // per optimizer step
  UpdateConfig update;       // what state the optimizer has
  ShadowBudget shadows;
  std::size_t device_bytes = 0;  // of an accelerator's memory; 0: not known

  /// As a config and the engine's options say.
  static RankShape of(const Config& config, const EngineOptions& options);
};

/// Bytes of one unit on one rank. In fp32 the weights are the master, and that has no bytes of its
/// own.
struct UnitSizes {
  std::size_t weights = 0;  // the whole block where it stays replicated, else this rank's slice
  // this rank's slice, which has memory of its own beside a block on a device
  std::size_t shard = 0;
  StateSizes state;             // master and moments; frozen: the master of 16-bit weights alone
  std::size_t accumulator = 0;  // 0: frozen
  std::size_t shadow = 0;       // what an update ahead of the verdict needs; 0: frozen
  StatePlacement placement = StatePlacement::kHost;  // what is frozen stays there
  bool gradient_on_device = false;                   // the accumulator lies there
  bool weights_on_nvme = false;      // weights, accumulator and state lie in the file
  std::size_t shadow_on_device = 0;  // of `shadow`, what lies beside arrays of the device

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
  /// Units with a second copy of master and state, in the order in which gradients come: the sooner
  /// a gradient is reduced, the more of the backward the unit's update can use. Gradients of the
  /// last visit come with the verdict, so their units gain nothing.
  std::vector<std::size_t> shadows;
  /// Where nothing is ever added (one micro-step on one rank) a 16-bit gradient is kept as it is:
  /// the same values, hence the same bits later on, at half the memory and traffic.
  DType accumulator_type = DType::kF32;
  /// Whether peers read the accumulators: an all-reduce makes whole ones from the parts of all
  /// ranks.
  bool accumulators_shared = false;
  // Host memory of joint updates: where Muon has a whole unit's directions together, and what it
  // works with beside the largest matrix.
  std::size_t direction_block_bytes = 0;
  std::size_t direction_scratch_bytes = 0;
  // Device memory for the arrays of one slice that are copied from the host, 0 without such
  // arrays: of streamed units, and of the other units that are updated on the device.
  std::size_t stream_stage_bytes = 0;
  std::size_t resident_stage_bytes = 0;
  std::size_t device_base_bytes = 0;  // slots and whole blocks on an accelerator
  // State on NVMe: the file, the host memory of a slice under way, and that of the largest unit,
  // which is copied there to be loaded and saved.
  std::size_t nvme_file_bytes = 0;
  std::size_t nvme_stage_bytes = 0;
  std::size_t nvme_copy_bytes = 0;
  // Host memory through which a shard on NVMe is gathered, and a gradient reduced; 0: straight
  // from and to the slots.
  std::size_t nvme_shard_bytes = 0;
  std::size_t nvme_accumulator_bytes = 0;

  /// Bytes of an accelerator's memory that a unit holds because of its placement, beside slots,
  /// whole blocks and shadows.
  [[nodiscard]] std::size_t device_bytes_of(std::size_t unit) const;
  /// All that a rank holds in an accelerator's memory: slots, whole blocks, state, shadows, stages.
  [[nodiscard]] std::size_t device_bytes() const;

  /// Throws user_error when the slots asked for cannot work.
  static RankSizes of(const Model& model, const RankShape& shape, const Sharding& sharding,
                      const SlotClasses& classes);

 private:
  /// Whether a unit's weights lie on NVMe, [unit].
  static std::vector<bool> weights_on_nvme(const Model& model, const RankShape& shape,
                                           const Sharding& sharding);
  void count_on_nvme(const UnitSizes& unit, std::size_t elements, const RankShape& shape);
  /// Counts what gathers and reductions of units with weights on NVMe need. `straight`: one rank's,
  /// in host memory.
  void count_nvme_passage(bool straight, bool is_kept);
};

}  // namespace tandem
