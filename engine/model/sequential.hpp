// engine/model/sequential.hpp — builds a Model from named segments of layers in a row.
//
//   Model model = Sequential(/*seed=*/1)
//                     .add("first", {linear(2, 64), activation(at::tanh)})
//                     .add("classifier", {linear(64, 2)})
//                     .build(cross_entropy());
//
// The engine gathers, runs, reduces and updates a segment as one, so a segment should have several
// layers, not a single operation. Its parameters are called SEGMENT.PARAMETER, or
// SEGMENT.LAYER.PARAMETER if the layer has a name. One tensor goes from each segment to the next.
// The first segment gets the batch's inputs, in the compute type if they are floats; the last one's
// output, in fp32, goes to the loss and is the result of Engine::logits().
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
  /// Throws Error if two parameters have the same name, a tied parameter refers to none, or a
  /// segment has no parameters.
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
