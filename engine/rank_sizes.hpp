// engine/rank_sizes.hpp — how many bytes of what a rank holds, out of a model's units and the sizes of a run.
//
// One source of truth: Rank allocates by these figures, and the memory plan adds them up before anything is allocated.
// Nothing here allocates, and a model without segments to run (a description) will do. Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/dtype.hpp"
#include "actors/kernels/state_memory.hpp"
#include "engine/model.hpp"
#include "engine/options.hpp"
#include "engine/residency.hpp"
#include "engine/slot_classes.hpp"

namespace tandem {

/// Room for second copies of state, which updates ahead of the verdict write to (--overlap full).
struct TwinRoom {
  std::size_t units = 0;  // at most
  std::size_t bytes = 0;  // at most, of one rank

  /// As the options say; chosen: all that a quarter of the free memory holds.
  static TwinRoom of(const EngineOptions& options, std::int64_t world_size);
};

/// Of a run, as far as sizes depend on it.
struct RankShape {
  DType type = DType::kF32;  // of weights and gradients
  int micro_steps = 1;
  int gather_slots = 0;  // 0: chosen
  UpdateConfig update;   // what state the optimizer has
  StateLayout layout = StateLayout::kFp32;
  TwinRoom twins;
};

/// Bytes of one unit on one rank. In fp32 the weights are the master, and that has no bytes of its own.
struct UnitSizes {
  std::size_t weights = 0;      // the whole block where it stays whole, else this rank's slice
  StateSizes state;             // master and moments; frozen: the master of 16-bit weights alone
  std::size_t accumulator = 0;  // 0: frozen
  std::size_t twin = 0;         // what an update ahead of the verdict needs; 0: frozen

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
  std::vector<PoolSizes> weight_pools;    // [pool] of SlotClasses::weights
  std::vector<PoolSizes> gradient_pools;  // [pool] of SlotClasses::gradients
  std::size_t gather_slots = 0;           // of the shared pool
  /// Units with a second copy of master and state, in the order in which gradients come: the sooner one is there, the more
  /// of the backward its update can use. Those of the last visit come with the verdict, and gain nothing.
  std::vector<std::size_t> twins;
  /// Where nothing is ever added (one micro-step on one rank) a 16-bit gradient is kept as it is: the same values, hence
  /// the same bits later on, at half the memory and traffic.
  DType accumulator_type = DType::kF32;
  /// Peers read whole accumulators only, of which an all-reduce makes each from everybody's parts.
  bool accumulators_shared = false;

  /// Throws user_error when the slots asked for cannot work.
  static RankSizes of(const Model& model, const RankShape& shape, const Residency& residency,
                      const SlotClasses& classes);
};

}  // namespace tandem
