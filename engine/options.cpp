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
  }
  return "";
}

}  // namespace tandem
