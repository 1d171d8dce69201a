// The index of a foreign checkpoint, as tools/convert/ prints it, over a file `data` of 4,096
// bytes: what is accepted can be read, element for element.
#include "models/foreign/foreign_index.hpp"

#include <algorithm>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  static const bool made = [] {
    put(std::string(4096, '\x3d'), "data");
    return true;
  }();
  (void)made;
  const ImportedCheckpoint checkpoint = read_foreign_index(input, folder());
  for (const ImportedTensor& tensor : checkpoint.tensors) {
    const std::int64_t count = std::min<std::int64_t>(tensor.numel(), 4096);
    std::vector<float> values(static_cast<std::size_t>(count));
    std::vector<std::byte> stored(static_cast<std::size_t>(count) * bytes_of(tensor.type));
    if (tensor.stored) {
      tensor.stored(0, count, stored);
    }
    for (const auto* read : {&tensor.master, &tensor.moments[0], &tensor.moments[1]}) {
      if (*read) {
        (*read)(0, count, values.data());
        (*read)(tensor.numel() - count, tensor.numel(), values.data());
      }
    }
  }
  for (const auto& [alias, name] : checkpoint.tied) {
    expect(checkpoint.find(name) != nullptr, "a tied name's tensor is there");
  }
}

}  // namespace tandem::fuzz
