#include "engine/types/options.hpp"

namespace tandem {

bool may_speculate(const EngineOptions& options) {
  return options.overlap == Overlap::kFull &&
         (options.speculate == Speculate::kOn ||
          (options.speculate == Speculate::kAuto && options.device != DeviceKind::kCpu));
}

}  // namespace tandem
