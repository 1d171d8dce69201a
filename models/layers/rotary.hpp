// models/layers/rotary.hpp — cosines and sines of rotary positions, fp32, for all positions up to
// the longest text so far.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/rotary_scaling.hpp"

namespace tandem {

/// Angles position * frequency, multiplied in fp32 as Transformers does. Compute lane only.
class RotaryTable {
 public:
  explicit RotaryTable(RotaryScaling scaling);

  [[nodiscard]] std::int64_t dim() const { return scaling_.dim; }
  /// [length][dim / 2] each; pointers stay valid until a longer table is asked for.
  struct View {
    const float* cosine;
    const float* sine;
  };
  /// `padding`: tokens among `length` that are not of the text; the text's own length chooses the
  /// table. Throws user_error as RotaryScaling::require_length() does.
  View for_length(std::int64_t length, std::int64_t padding = 0);
  /// The same as two tensors [length, dim / 2] on a device, where they stay. Copying them waits for
  /// the device, once.
  std::pair<at::Tensor, at::Tensor> tensors(std::int64_t length, at::Device device,
                                            std::int64_t padding = 0);
  /// Returns the rows of tokens at `positions` (int64 [B, T], below T) as two tensors [B, T, dim /
  /// 2]. The largest position chooses the table, on the device.
  std::pair<at::Tensor, at::Tensor> tensors_at(const at::Tensor& positions);

 private:
  struct Table {
    std::vector<float> frequencies, cosine, sine;
    at::Tensor cosine_there, sine_there;
  };

  void extend(Table& table, std::int64_t length) const;
  std::pair<at::Tensor, at::Tensor> there(Table& table, std::int64_t length, at::Device device);

  RotaryScaling scaling_;
  std::array<Table, 2> tables_;  // the second for long texts
};

}  // namespace tandem
