// engine/memory/memory_plan.hpp — the bytes that a rank will allocate, by kind of memory and
// purpose, before anything is allocated.
//
// A pure function of a model's units and of the run's sizes. Rank's allocations are counted by the
// formulas that Rank uses (RankSizes); activations come from the segments' own figures, in the
// order in which TrainStep runs them. A description of a model (models/causal_lm.hpp) is enough: a
// plan needs only config.json. A unit's slices have the same size on all ranks, so one plan is
// valid for every rank. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/layout/rank_sizes.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"

namespace tandem {

/// Pinned: host memory that the accelerator copies from and to. Shared: host memory that other
/// ranks of the host read; its owner counts it. NVMe: files of optimizer state.
enum class MemoryKind : std::uint8_t { kDevice, kPinned, kHost, kShared, kDisk, kNvme };
inline constexpr std::size_t kMemoryKinds = 6;
std::string_view name_of(MemoryKind kind);

enum class MemoryPurpose : std::uint8_t {
  kWeights,        // in compute type: whole, or this rank's slice; beside an accelerator both
  kGatherSlots,    // gathered units
  kGradients,      // accumulators
  kGradientSlots,  // gradients of whole units, until they are reduced
  kMaster,         // fp32 weights, as far as the weights do not contain them
  kMoments,        // of the optimizer
  kShadows,        // out-of-place copies of units that are updated ahead of the verdict
  kActivations,
  kLoss,        // logits, their gradient, and the head's weight gradient
  kAllocator,   // freed blocks that malloc cannot use again
  kStaging,     // buffers of copies and saves; packed operands of matmuls
  kCheckpoint,  // units copied because their update comes before a save gets to them
  kProcess,     // libraries, data set, tokenizer, a trace's records; the accelerator's context
  kSaved        // files of the trained model
};
inline constexpr std::size_t kMemoryPurposes = 14;
std::string_view name_of(MemoryPurpose purpose);

struct PlanInput {
  // The plan also reads its options activation_checkpointing and activation_offload,
  // compute_threads (0 counts as 1) and checkpoint_staging_bytes; empty placements: all on the
  // host.
  RankShape shape;
  ZeroConfig zero;
  std::int64_t rows = 1;        // of a micro-batch
  std::int64_t length = 1;      // tokens of its longest row
  bool packed = false;          // rows hold several documents
  std::int64_t sharers = 1;     // ranks that share each row
  bool shadows_chosen = false;  // as many shadows as the memory that is left holds
  bool offload_chosen = false;  // as few boundaries are offloaded as make the run fit
  std::int64_t world_size = 1;
  std::int64_t ranks_per_host = 1;
  bool accelerator = false;
  // resident before the engine is made; 0: as programs usually have
  std::int64_t process_bytes = 0;

  /// Whether boundaries can be offloaded: to host memory with an accelerator, else to the folder on
  /// NVMe.
  [[nodiscard]] bool can_offload() const {
    return shape.engine.activation_checkpointing &&
           (has_device() || !shape.engine.nvme.path.empty());
  }
  /// Whether the run has an accelerator, real or simulated.
  [[nodiscard]] bool has_device() const {
    return accelerator || shape.engine.device != DeviceKind::kCpu;
  }

  /// Returns the input for a config and the engine's options; rows from the config's micro-batch.
  static PlanInput of(const Config& config, const EngineOptions& options,
                      std::int64_t ranks_per_host);
};

/// Bytes of one unit on a rank, for the placement of its state.
struct UnitCost {
  std::size_t shard = 0;  // of the weights; in host memory beside state that lies there
  std::size_t accumulator = 0;
  std::size_t master = 0;   // beside the weights
  std::size_t moments = 0;  // all arrays
  bool weights_on_nvme = false;
};

struct NvmeBytes {
  std::int64_t read = 0;
  std::int64_t written = 0;
};

struct MemoryPlan {
  std::array<std::array<std::int64_t, kMemoryKinds>, kMemoryPurposes> bytes{};  // [purpose][kind]
  std::vector<UnitCost> units;                                                  // [unit]
  std::int64_t parameters = 0;
  std::size_t gather_slots = 0;
  std::vector<std::size_t> shadows;  // units that can be updated ahead of the verdict
  /// Bytes in a simulated accelerator's memory, which is host memory and counted there; then those
  /// of them that are not kept for the whole run: boundaries between segments.
  std::int64_t simulated_bytes = 0;
  std::int64_t simulated_boundaries = 0;
  std::size_t leaving_boundaries = 0;  // number of offloaded boundaries
  std::int64_t leaving_bytes = 0;      // their bytes
  // Bytes that a rank reads from and writes to the file in a step. `nvme_updating`: by updates,
  // after the verdict and under the next forward, which also gathers weights. `nvme_computing`: by
  // gathers and reductions during backward and further micro-steps, and by boundaries, written in
  // forward and read in backward.
  NvmeBytes nvme_updating;
  NvmeBytes nvme_computing;
  std::int64_t ranks_per_host = 1;

  [[nodiscard]] std::int64_t of(MemoryPurpose purpose, MemoryKind kind) const {
    return bytes[static_cast<std::size_t>(purpose)][static_cast<std::size_t>(kind)];
  }
  /// Bytes of one rank.
  [[nodiscard]] std::int64_t total(MemoryKind kind) const;
  /// Bytes of all ranks of a host: their pinned, private and shared memory.
  [[nodiscard]] std::int64_t host_total() const;
  /// Bytes on NVMe of all ranks of a host.
  [[nodiscard]] std::int64_t nvme_total() const;
};

/// Throws user_error for impossible sizes (gather slots, a row longer than the model's positions).
[[nodiscard]] MemoryPlan plan_memory(const Model& model, const PlanInput& input);

/// Returns a table: a line per purpose, a column per kind that is used.
[[nodiscard]] std::string plan_table(const MemoryPlan& plan);
/// "1.5 GiB", "20.0 MiB".
[[nodiscard]] std::string size_text(std::int64_t bytes);

}  // namespace tandem
