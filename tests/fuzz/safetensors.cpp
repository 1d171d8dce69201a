// A .safetensors file: what open() accepts can be read, first element and last.
#include "actors/storage/safetensors.hpp"

#include <algorithm>
#include <array>

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const SafetensorsFile file = SafetensorsFile::open(put(input, "model.safetensors"));
  std::array<float, 64> values{};
  for (const TensorInfo& tensor : file.tensors()) {
    expect(tensor.begin_byte + tensor.size_bytes <= input.size(), "tensors lie in the file");
    expect(file.bytes(tensor).size() == tensor.size_bytes, "a tensor's bytes are its size");
    if (is_float(tensor.type) && tensor.numel() > 0) {
      file.read_f32(tensor, 0, std::min<std::int64_t>(64, tensor.numel()), values.data());
      file.read_f32(tensor, tensor.numel() - 1, tensor.numel(), values.data());
    }
  }
}

}  // namespace tandem::fuzz
