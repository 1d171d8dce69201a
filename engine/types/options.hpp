// engine/types/options.hpp — options of the engine beside the DeepSpeed config.
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

/// The work that may run at the same time. It changes only the schedule: losses and weights have
/// the same bits at every setting.
enum class Overlap : std::uint8_t {
  kOff,   // nothing: every gather, reduction and update is awaited where it is issued
  kComm,  // gathers run ahead of compute, reductions behind it; updates end with the step
  // also the optimizer: a unit's update runs under the next forward, which awaits only the units it
  // needs
  kOffload,
  kFull,  // and under the backward of its own step, ahead of the verdict (Speculate)
};

/// Where segments run, and where slots and whole blocks lie. The first two give the same bits of
/// losses and weights; a GPU rounds differently.
enum class DeviceKind : std::uint8_t {
  kCpu,
  // a simulated accelerator in real time: ATen's CPU kernels, which take the time of the described
  // device
  kSim,
  kCuda,  // a GPU
};

/// Whether updates begin ahead of the verdict on the gradients (norm, finite), at Overlap::kFull.
enum class Speculate : std::uint8_t {
  // With an accelerator, as long as few of the last verdicts would have undone them. If the CPU
  // computes, its cores are busy during backward, and speculative updates only add memory traffic.
  kAuto,
  kOn,
  kOff,
};

/// How a step's loss is averaged, which decides the weights of its micro-batches.
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
  // For kCuda; an Engine takes the host's GPU of the local rank where this is empty (with_gpu(),
  // engine/tensors/device_choice.hpp).
  std::function<std::shared_ptr<Gpu>(int local_rank)> open_gpu;
  Overlap overlap = Overlap::kFull;
  Speculate speculate = Speculate::kAuto;
  // Number of units that may be updated before the verdict, each with a shadow; 0: as many as fit
  // in the memory that the run leaves free, less a reserve.
  int inflight_buckets = 0;
  // The units that may be so updated, if the plan has chosen them; absent: those whose gradients
  // come first.
  std::optional<std::vector<std::size_t>> units_ahead;
  // For this share of the steps, drawn from their numbers, updates are redone although the verdict
  // is good: to measure the cost, and to show that it changes no bit.
  double forced_misses = 0;
  StateLayout state_layout = StateLayout::kFp32;  // of master weights and moments
  Placement placement = Placement::kAuto;         // of the optimizer's state
  // Share of the optimizer's bytes on the host; absent: the config's.
  std::optional<double> offload_ratio;
  // [unit]; empty: decided by plan_run(), by the two above.
  std::vector<StatePlacement> placements;
  // The file of state on NVMe; an empty path: the config's. The other members always come from the
  // config.
  NvmeOptions nvme;
  LossMean loss_mean = LossMean::kMicroBatches;
  bool activation_checkpointing = false;
  // Share of the boundaries kept by checkpointing that are offloaded between forward and backward
  // (boundary_share.hpp): to host memory with an accelerator, to NVMe if the CPU computes. Absent:
  // the config's share, else the smallest that fits (plan_run()), without a plan 0.
  std::optional<double> activation_offload;
  // Sums over tokens are made over this number of fixed tiles of each row and added as a balanced
  // tree, so that weights' bits do not depend on the number of ranks that share a row. A power of
  // two and a multiple of the sharers; 0: the fastest way.
  int sequence_blocks = 0;
  int gather_slots = 0;       // 0: chosen by the engine, printed in the resolved options
  int compute_threads = 0;    // 0: all usable cores
  int optimizer_threads = 0;  // 0: from cpuadam_cores_perc and the usable cores
  // Bind lane, optimizer, copy threads and loop to the CPUs of the core plan.
  bool pin_cores = false;
  // This many steps with a non-finite gradient in a row end the run (exit code 5).
  int max_skipped_steps = 20;
  // A task that waits longer than this, not for a message, is reported once on stderr, with what it
  // waits for; 0: half of the collectives' deadline.
  double report_waits_s = 0;
  FileIo::Backend io_backend = FileIo::Backend::kAuto;  // of checkpoints and of state on NVMe
  // Bytes of the save buffer, into which a save copies units whose update is due before they are
  // written; 0: such an update waits until its unit is written.
  std::size_t checkpoint_staging_bytes = 0;
};

/// Whether any step may begin updates ahead of its verdict.
[[nodiscard]] bool may_speculate(const EngineOptions& options);

}  // namespace tandem
