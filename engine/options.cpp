#include "engine/options.hpp"

namespace tandem {

std::string_view name_of(Overlap overlap) {
  switch (overlap) {
    case Overlap::kOff:
      return "off";
    case Overlap::kComm:
      return "comm";
    case Overlap::kOffload:
      return "offload";
    case Overlap::kFull:
      return "full";
  }
  return "";
}

std::string_view name_of(Speculate speculate) {
  switch (speculate) {
    case Speculate::kAuto:
      return "auto";
    case Speculate::kOn:
      return "on";
    case Speculate::kOff:
      return "off";
  }
  return "";
}

std::string_view name_of(DeviceKind device) {
  switch (device) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kSim:
      return "sim";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "";
}

}  // namespace tandem
