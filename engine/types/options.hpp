// engine/types/options.hpp — how the engine runs, beside what the DeepSpeed config says.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/kernels/state_layout.hpp"
#include "engine/types/nvme_options.hpp"
#include "engine/types/sim_spec.hpp"
#include "engine/types/state_placement.hpp"
#include "runtime/io/file_io.hpp"

namespace tandem {

struct Gpu;

/// The work that may run at the same time. A scheduling choice only: losses and weights are the
/// same bits at every setting.
enum class Overlap : std::uint8_t {
  kOff,   // nothing: every gather, reduction and update is awaited where it is issued
  kComm,  // gathers run ahead of compute, reductions behind it; updates end with the step
  // also the optimizer: a unit's update runs under the next forward, which awaits only the unit it
  // needs
  kOffload,
  kFull,  // and under the backward of its own step, ahead of the verdict (Speculate)
};

/// Where segments run, and where slots and whole blocks lie. Losses and weights are the same bits
/// on the first two; a GPU rounds in its own way.
enum class DeviceKind : std::uint8_t {
  kCpu,
  // a simulated accelerator in real time: ATen's CPU kernels, and the time that the described
  // device would take
  kSim,
  kCuda,  // a GPU
};

/// Whether updates begin ahead of the verdict on the gradients (norm, finite), at Overlap::kFull.
enum class Speculate : std::uint8_t {
  // Beside an accelerator, while few of the last verdicts would have undone them. Where the CPU
  // computes, its cores are
  // busy during backward, and there is nothing to gain from updates that cost more memory traffic.
  kAuto,
  kOn,
  kOff,
};

/// The mean that a step's loss is, and so the weights of its micro-batches.
enum class LossMean : std::uint8_t {
  kMicroBatches,  // of the micro-batches' means, however many labels each has: DeepSpeed's
  kTokens,        // of the labels of all micro-batches and ranks
};

template <>
inline constexpr auto kEnumNames<LossMean> = std::array{
    EnumName{LossMean::kMicroBatches, "micro_batches"}, EnumName{LossMean::kTokens, "tokens"}};
template <>
inline constexpr auto kEnumNames<Overlap> =
    std::array{EnumName{Overlap::kOff, "off"}, EnumName{Overlap::kComm, "comm"},
               EnumName{Overlap::kOffload, "offload"}, EnumName{Overlap::kFull, "full"}};
template <>
inline constexpr auto kEnumNames<DeviceKind> =
    std::array{EnumName{DeviceKind::kCpu, "cpu"}, EnumName{DeviceKind::kSim, "sim"},
               EnumName{DeviceKind::kCuda, "cuda"}};
template <>
inline constexpr auto kEnumNames<Speculate> =
    std::array{EnumName{Speculate::kAuto, "auto"}, EnumName{Speculate::kOn, "on"},
               EnumName{Speculate::kOff, "off"}};

struct EngineOptions {
  /// Whether Engine plans memory and placement before it allocates (plan_run): a run that does not
  /// fit is then refused. Without a plan Placement::kAuto leaves all state on the host.
  bool plans_run = true;
  DeviceKind device = DeviceKind::kCpu;
  SimSpec sim;  // the device described, for kSim
  // For kCuda: open_gpu() (engine/tensors/device_choice.hpp), which an Engine takes where this is
  // empty.
  std::function<std::shared_ptr<Gpu>(int local_rank)> open_gpu;
  Overlap overlap = Overlap::kFull;
  Speculate speculate = Speculate::kAuto;
  // Units that may be updated ahead of the verdict, each with a second copy of its state; 0: all
  // that a quarter of the free memory holds.
  int inflight_buckets = 0;
  // The units, where the plan has decided it; absent: the first ones whose gradients come.
  std::optional<std::vector<std::size_t>> units_ahead;
  // This share of the steps, drawn from their numbers, is updated twice although the verdict is
  // good: for measuring what that costs, and showing that it changes no bit.
  double forced_misses = 0;
  StateLayout state_layout = StateLayout::kFp32;  // of master weights and moments
  Placement placement = Placement::kAuto;         // on an accelerator; the CPU has its state itself
  // Share of the optimizer's bytes on the host; absent: the config's.
  std::optional<double> offload_ratio;
  // [unit]; empty: decided by plan_run(), by the two above.
  std::vector<StatePlacement> placements;
  // Where state on NVMe lies; an empty path: the config's. The rest is the config's alone.
  NvmeOptions nvme;
  LossMean loss_mean = LossMean::kMicroBatches;
  bool activation_checkpointing = false;
  // Share of the boundaries that checkpointing keeps which lie elsewhere between forward and
  // backward (boundary_share.hpp): beside an accelerator in host memory, where the CPU computes on
  // NVMe. Absent: the config's, else as few as fit (plan_run()), without a plan none.
  std::optional<double> activation_offload;
  // Sums over tokens are made in this many fixed blocks of each row and added as a balanced tree,
  // so that weights' bits do not depend on how many ranks share a row; a power of two, which the
  // sharers divide. 0: as it is quickest.
  int sequence_blocks = 0;
  int gather_slots = 0;       // 0: chosen by the engine, printed in the resolved options
  int compute_threads = 0;    // 0: all usable cores
  int optimizer_threads = 0;  // 0: from cpuadam_cores_perc and the usable cores
  // Bind lane, optimizer, copies and loop to the CPUs that the core plan gives them.
  bool pin_cores = false;
  // This many steps with a non-finite gradient in a row end the run (exit code 5).
  int max_skipped_steps = 20;
  // A task that waits longer for anything but a message is reported on stderr, once, with what it
  // waits for; 0: half of the collectives' deadline.
  double report_waits_s = 0;
  FileIo::Backend io_backend = FileIo::Backend::kAuto;  // of checkpoints and of state on NVMe
  // Memory into which a save under way copies units whose update comes before their turn; 0: such
  // an update waits until its unit was written.
  std::size_t checkpoint_staging_bytes = 0;
};

/// Whether any step may begin updates ahead of its verdict.
[[nodiscard]] bool may_speculate(const EngineOptions& options);

}  // namespace tandem
