// pytorch_model.bin, zip or the older form: what is accepted can be read, element for element.
#include <algorithm>
#include <vector>

#include "models/foreign/imported_checkpoint.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  put(input, "pytorch_model.bin");
  const ImportedCheckpoint checkpoint = open_foreign_checkpoint(folder());
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    const std::int64_t count = std::min<std::int64_t>(tensor.numel(), 4096);
    std::vector<float> values(static_cast<std::size_t>(count));
    if (tensor.master) {
      tensor.master(0, count, values.data());
      tensor.master(tensor.numel() - count, tensor.numel(), values.data());
    }
  }
}

}  // namespace tandem::fuzz
