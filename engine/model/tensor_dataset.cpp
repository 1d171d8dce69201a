#include "engine/model/tensor_dataset.hpp"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// Contiguous, on the host, int64 or fp32.
at::Tensor kept(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.is_floating_point() ? at::kFloat : at::kLong;
  return tensor.detach().to(at::TensorOptions().device(at::kCPU).dtype(type)).contiguous();
}

std::string text_of(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

/// Rows of bytes, copied without ATen: workers call this, and ATen is the compute lane's.
template <class T>
void take_rows(const at::Tensor& from, std::span<const std::int64_t> rows, std::vector<T>& to) {
  const std::int64_t width = from.numel() / from.size(0);
  const T* const first = from.data_ptr<T>();
  to.reserve(rows.size() * static_cast<std::size_t>(width));
  for (const std::int64_t row : rows) {
    to.insert(to.end(), first + row * width, first + (row + 1) * width);
  }
}

std::vector<std::int64_t> shape_of_rows(const at::Tensor& tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape.front() = rows;
  return shape;
}

}  // namespace

TensorDataset::TensorDataset(const at::Tensor& inputs, const at::Tensor& labels) {
  const bool rows_agree = inputs.defined() && labels.defined() && inputs.dim() > 0 &&
                          labels.dim() > 0 && inputs.numel() > 0 && labels.numel() > 0 &&
                          inputs.size(0) == labels.size(0);
  if (!rows_agree ||
      (!inputs.is_floating_point() &&
       (inputs.dim() != 2 || labels.is_floating_point() || labels.sizes() != inputs.sizes()))) {
    throw user_error("data",
                     "a data set's inputs are {} and its labels {}; rows of floats need as "
                     "many rows of labels, ids [rows, tokens] labels of the same shape",
                     inputs.defined() ? text_of(inputs) : "missing",
                     labels.defined() ? text_of(labels) : "missing");
  }
  inputs_ = kept(inputs);
  labels_ = kept(labels);
}

std::int64_t TensorDataset::longest() const {
  return inputs_.is_floating_point() ? 1 : inputs_.size(1);
}

HostBatch TensorDataset::collate(std::span<const std::int64_t> indices) const {
  HostBatch batch;
  batch.rows = static_cast<std::int64_t>(indices.size());
  batch.length = longest();
  batch.tokens = batch.rows * batch.length;
  if (inputs_.is_floating_point()) {
    take_rows(inputs_, indices, batch.features);
    batch.feature_shape = shape_of_rows(inputs_, batch.rows);
    batch.label_shape = shape_of_rows(labels_, batch.rows);
  } else {
    take_rows(inputs_, indices, batch.inputs);
  }
  if (labels_.is_floating_point()) {
    take_rows(labels_, indices, batch.targets);
  } else {
    take_rows(labels_, indices, batch.labels);
  }
  return batch;
}

}  // namespace tandem
