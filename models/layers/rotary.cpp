#include "models/layers/rotary.hpp"

#include <cmath>
#include <utility>

#include <ATen/ops/from_blob.h>

namespace tandem {

RotaryTable::RotaryTable(RotaryScaling scaling) : scaling_(std::move(scaling)) {
  tables_[0].frequencies = rotary_frequencies(scaling_);
  if (scaling_.kind == RotaryKind::kLongRope) {
    tables_[1].frequencies = rotary_frequencies(scaling_, true);
  }
}

RotaryTable::View RotaryTable::for_length(std::int64_t length) {
  Table& table = tables_[scaling_.is_long(length) ? 1 : 0];
  const std::size_t half = table.frequencies.size();
  const auto scale = static_cast<float>(scaling_.attention_factor);
  for (std::size_t p = table.cosine.size() / half; p < static_cast<std::size_t>(length); ++p) {
    for (const float frequency : table.frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(p) * frequency);
      table.cosine.push_back(static_cast<float>(std::cos(angle)) * scale);
      table.sine.push_back(static_cast<float>(std::sin(angle)) * scale);
    }
  }
  return {table.cosine.data(), table.sine.data()};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::tensors(std::int64_t length, at::Device device) {
  Table& table = tables_[scaling_.is_long(length) ? 1 : 0];
  if (!table.cosine_there.defined() || table.cosine_there.size(0) < length ||
      table.cosine_there.device() != device) {
    const View view = for_length(length);
    const auto there = [&](const float* values) {
      return at::from_blob(const_cast<float*>(values), {length, dim() / 2}, at::kFloat)
          .to(device, /*non_blocking=*/false, /*copy=*/true);
    };
    table.cosine_there = there(view.cosine);
    table.sine_there = there(view.sine);
  }
  return {table.cosine_there.narrow(0, 0, length), table.sine_there.narrow(0, 0, length)};
}

}  // namespace tandem
