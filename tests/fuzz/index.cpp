// model.safetensors.index.json beside two shards with the tensors a, b and c.
#include <vector>

#include "actors/storage/safetensors_header.hpp"
#include "models/io/checkpoint.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {
namespace {

void put_shard(std::string_view name, const std::vector<TensorPlan>& tensors) {
  std::string bytes = safetensors_header(tensors);
  for (const TensorPlan& tensor : tensors) {
    bytes.append(tensor.size_bytes(), '\x3D');
  }
  put(bytes, name);
}

}  // namespace

void read(std::string_view input) {
  static const bool made = [] {
    put_shard("s1.safetensors", {{"a", TensorType::kF32, {2, 2}}, {"b", TensorType::kBF16, {3}}});
    put_shard("s2.safetensors", {{"c", TensorType::kF16, {1}}});
    return true;
  }();
  (void)made;
  put(input, "model.safetensors.index.json");
  const Checkpoint checkpoint = Checkpoint::open(folder());
  for (const std::string& name : checkpoint.names()) {
    expect(name == "a" || name == "b" || name == "c", "a tensor of the index is in a shard");
    float value = 0;
    checkpoint.read_f32(name, 0, 1, &value);
    expect(value != 0, "its elements are the shard's");
  }
}

}  // namespace tandem::fuzz
