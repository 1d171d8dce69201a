// engine/types/state_placement.hpp — where the optimizer's state of a unit lies, and which
// processor updates it.
//
//   placement  master, moments  weight; gradient of one rank  update runs on
//   host       host             host                          the pool
//   device     device           device                        the device
//   streamed   host             device                        the device, state copied by slices
//   nvme       a file           host                          the pool, state read and written by
//                                                             slices
//
// fp32 weights are their own master, so for a streamed fp32 unit only the moments are copied to the
// device and back. Several ranks reduce gradients on the host, from where they are copied to the
// device slice by slice.
// Invariant: no placement changes a bit of any result.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class StatePlacement : std::uint8_t { kHost, kDevice, kStreamed, kNvme };

/// Whether updates with this placement touch the memory of an accelerator.
[[nodiscard]] constexpr bool updates_on_device(StatePlacement placement) noexcept {
  return placement == StatePlacement::kDevice || placement == StatePlacement::kStreamed;
}

/// The user's choice. With the last three the share EngineOptions::offload_ratio stays on the host.
enum class Placement : std::uint8_t {
  kAuto,    // chosen by plan_run() (engine/plan/run_plan.hpp)
  kCpu,     // all on the host
  kGpu,     // on the device
  kStream,  // streamed through the device
  kNvme,    // in a file
};

template <>
inline constexpr auto kEnumNames<StatePlacement> = std::array{
    EnumName{StatePlacement::kHost, "host"}, EnumName{StatePlacement::kDevice, "device"},
    EnumName{StatePlacement::kStreamed, "streamed"}, EnumName{StatePlacement::kNvme, "nvme"}};
template <>
inline constexpr auto kEnumNames<Placement> =
    std::array{EnumName{Placement::kAuto, "auto"}, EnumName{Placement::kCpu, "cpu"},
               EnumName{Placement::kGpu, "gpu"}, EnumName{Placement::kStream, "stream"},
               EnumName{Placement::kNvme, "nvme"}};

}  // namespace tandem
