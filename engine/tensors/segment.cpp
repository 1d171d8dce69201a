#include "engine/tensors/segment.hpp"

namespace tandem {

at::ScalarType scalar_type_of(DType type) {
  switch (type) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
  }
  return at::kFloat;
}

}  // namespace tandem
