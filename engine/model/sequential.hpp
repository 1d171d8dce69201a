// engine/model/sequential.hpp — a Model from named segments of layers, one behind the other.
//
//   Model model = Sequential(/*seed=*/1)
//                     .add("first", {linear(2, 64), activation(at::tanh)})
//                     .add("classifier", {linear(64, 2)})
//                     .build(cross_entropy());
//
// A segment is what the engine gathers, runs, reduces and updates as one: a block of a network,
// not a single operation. Its parameters are called SEGMENT.PARAMETER, or SEGMENT.LAYER.PARAMETER
// where the layer has a name. One tensor goes from segment to segment. The first one gets the
// batch's inputs, in the compute type where they are floats; the last one's output goes to the
// loss, in fp32, and is what Engine::logits() gives.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/layers.hpp"
#include "engine/types/model.hpp"

namespace tandem {

class Sequential {
 public:
  /// `seed` of the initial values.
  explicit Sequential(std::uint64_t seed = 0) : seed_(seed) {}

  Sequential& add(std::string segment, std::vector<Layer> layers);
  /// Throws Error: two parameters have one name, a tied one has no other, a segment has none.
  [[nodiscard]] Model build(LossFunction loss) const;

 private:
  struct Part {
    std::string name;
    std::vector<Layer> layers;
  };
  std::uint64_t seed_;
  std::vector<Part> parts_;
};

}  // namespace tandem
