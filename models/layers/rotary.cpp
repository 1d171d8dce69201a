#include "models/layers/rotary.hpp"

#include <cmath>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/where.h>

namespace tandem {

RotaryTable::RotaryTable(RotaryScaling scaling) : scaling_(std::move(scaling)) {
  tables_[0].frequencies = rotary_frequencies(scaling_);
  if (scaling_.kind == RotaryKind::kLongRope) {
    tables_[1].frequencies = rotary_frequencies(scaling_, true);
  }
}

void RotaryTable::extend(Table& table, std::int64_t length) const {
  const std::size_t half = table.frequencies.size();
  const auto scale = static_cast<float>(scaling_.attention_factor);
  for (std::size_t p = table.cosine.size() / half; p < static_cast<std::size_t>(length); ++p) {
    for (const float frequency : table.frequencies) {
      const auto angle = static_cast<double>(static_cast<float>(p) * frequency);
      table.cosine.push_back(static_cast<float>(std::cos(angle)) * scale);
      table.sine.push_back(static_cast<float>(std::sin(angle)) * scale);
    }
  }
}

RotaryTable::View RotaryTable::for_length(std::int64_t length, std::int64_t padding) {
  scaling_.require_length(length - padding);
  Table& table = tables_[scaling_.is_long(length - padding) ? 1 : 0];
  extend(table, length);
  return {table.cosine.data(), table.sine.data()};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::there(Table& table, std::int64_t length,
                                                     at::Device device) {
  if (!table.cosine_there.defined() || table.cosine_there.size(0) < length ||
      table.cosine_there.device() != device) {
    extend(table, length);
    const auto copied = [&](std::vector<float>& values) {
      return at::from_blob(values.data(), {length, dim() / 2}, at::kFloat)
          .to(device, /*non_blocking=*/false, /*copy=*/true);
    };
    table.cosine_there = copied(table.cosine);
    table.sine_there = copied(table.sine);
  }
  return {table.cosine_there.narrow(0, 0, length), table.sine_there.narrow(0, 0, length)};
}

std::pair<at::Tensor, at::Tensor> RotaryTable::tensors(std::int64_t length, at::Device device,
                                                       std::int64_t padding) {
  scaling_.require_length(length - padding);
  return there(tables_[scaling_.is_long(length - padding) ? 1 : 0], length, device);
}

std::pair<at::Tensor, at::Tensor> RotaryTable::tensors_at(const at::Tensor& positions) {
  const std::int64_t length = positions.size(1);
  if (scaling_.kind == RotaryKind::kDynamic && length > scaling_.original_positions) {
    scaling_.require_length(positions.max().item<std::int64_t>() + 1);
  }
  auto [cosine, sine] = there(tables_[0], length, positions.device());
  if (scaling_.is_long(length)) {  // then a document may be, or none
    const auto [long_cosine, long_sine] = there(tables_[1], length, positions.device());
    const at::Tensor is_long = positions.max().ge(scaling_.original_positions);
    cosine = at::where(is_long, long_cosine, cosine);
    sine = at::where(is_long, long_sine, sine);
  }
  const auto at_positions = [&](const at::Tensor& table) {
    return table.index_select(0, positions.reshape({-1}))
        .view({positions.size(0), length, dim() / 2});
  };
  return {at_positions(cosine), at_positions(sine)};
}

}  // namespace tandem
