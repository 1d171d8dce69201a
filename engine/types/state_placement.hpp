// engine/types/state_placement.hpp — where the optimizer's state of a unit lies, and who updates
// it.
//
//   placement master, moments   weight and, on one rank, gradient   update runs on
//   host      host              host                                the pool
//   device    device            device                              the device
//   streamed  host              device                              the device, state copied there
//   and back by slices
//
// fp32 weights are their own master, so streamed units of them stream the moments alone. Several
// ranks reduce gradients on the host: these are then copied to the device slice by slice. Nothing
// here changes a bit of any result.
#pragma once

#include <cstdint>
#include <string_view>

namespace tandem {

enum class StatePlacement : std::uint8_t { kHost, kDevice, kStreamed };

/// What the user wants of the placements (--placement). The last two leave the share
/// --offload_ratio on the host.
enum class Placement : std::uint8_t {
  kAuto,    // chosen by the solver, or all on the host where nobody asks it
  kCpu,     // all on the host
  kGpu,     // on the device
  kStream,  // streamed through the device
};

constexpr std::string_view name_of(StatePlacement placement) noexcept {
  return placement == StatePlacement::kHost     ? "host"
         : placement == StatePlacement::kDevice ? "device"
                                                : "streamed";
}

constexpr std::string_view name_of(Placement placement) noexcept {
  return placement == Placement::kAuto  ? "auto"
         : placement == Placement::kCpu ? "cpu"
         : placement == Placement::kGpu ? "gpu"
                                        : "stream";
}

/// As --placement says it; kAuto for anything else.
constexpr Placement placement_of(std::string_view name) noexcept {
  for (const Placement known : {Placement::kCpu, Placement::kGpu, Placement::kStream}) {
    if (name == name_of(known)) {
      return known;
    }
  }
  return Placement::kAuto;
}

}  // namespace tandem
