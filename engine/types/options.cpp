#include "engine/types/options.hpp"

#include "runtime/util/error.hpp"

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

StateLayout state_layout_of(std::string_view name) {
  for (const StateLayout layout :
       {StateLayout::kFp32, StateLayout::kSplit, StateLayout::kBf16, StateLayout::kInt8}) {
    if (name == name_of(layout)) {
      return layout;
    }
  }
  throw user_error("flags", "--optimizer_state is {}; use fp32, split, bf16 or int8", name);
}

bool may_speculate(const EngineOptions& options) {
  return options.overlap == Overlap::kFull &&
         (options.speculate == Speculate::kOn ||
          (options.speculate == Speculate::kAuto && options.device != DeviceKind::kCpu));
}

}  // namespace tandem
