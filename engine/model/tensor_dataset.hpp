// engine/model/tensor_dataset.hpp — a data set of two tensors: record i is row i of both.
//
// Ids (Long [N, T], labels of the same shape), or features (Float [N, ...]) with labels that are
// classes (Long [N]) or numbers (Float [N] or [N, ...]).
#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "engine/data/dataset.hpp"

namespace tandem {

class TensorDataset : public Dataset {
 public:
  /// Keeps copies on the host. Throws Error if the numbers of rows differ or the types are not
  /// those above.
  TensorDataset(const at::Tensor& inputs, const at::Tensor& labels);

  [[nodiscard]] std::int64_t size() const override { return inputs_.size(0); }
  [[nodiscard]] std::int64_t longest() const override;
  [[nodiscard]] HostBatch collate(std::span<const std::int64_t> indices) const override;

 private:
  at::Tensor inputs_;
  at::Tensor labels_;
};

}  // namespace tandem
