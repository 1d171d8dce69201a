#include "engine/tensors/tensor_batch.hpp"

#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "engine/tensors/bound_units.hpp"

namespace tandem {

namespace {

BatchExtents extents_of(const Batch& batch) {
  const std::int64_t length = batch.inputs.is_floating_point() ? 1 : batch.inputs.size(1);
  return {.rows = batch.inputs.size(0),
          .length = length,
          .share = batch.part.count > 0
                       ? static_cast<double>(batch.part.count) / static_cast<double>(length)
                       : 1.0};
}

std::span<std::byte> memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

TensorBatch::TensorBatch(const TensorUnits& units, Batch batch, bool looks, HeadOutput output)
    : units_(units),
      batch_(std::move(batch)),
      extents_(extents_of(batch_)),
      output_(output),
      activations_(units.runner->start(looks)),
      kept_(activations_.inputs.size()) {}

void TensorBatch::forward(std::size_t s, const VisitMemory& memory) {
  const BoundUnits bound(units_.units, memory);
  units_.runner->forward(s, batch_, activations_);
}

void TensorBatch::read_loss(float* to) {
  const at::Tensor& loss = SegmentRunner::loss(activations_);
  if (units_.on_gpu) {
    at::from_blob(to, {}, at::TensorOptions().dtype(at::kFloat))
        .copy_(loss.detach(), /*non_blocking=*/true);
  } else {
    *to = loss.item<float>();
  }
}

void TensorBatch::backward(std::size_t s, const VisitMemory& memory, double loss_gradient) {
  BoundUnits bound(units_.units, memory);
  bound.bind_gradients();
  units_.runner->backward(s, batch_, activations_, loss_gradient);
  bound.complete_gradients(/*padding=*/units_.on_gpu);
}

void TensorBatch::infer(std::size_t s, const VisitMemory& memory) {
  const BoundUnits bound(units_.units, memory);
  result_ = units_.runner->infer(s, batch_, result_, output_);
}

// ---- boundaries ----

std::size_t TensorBatch::boundary_bytes(std::size_t b) const {
  return activations_.outputs[b - 1].nbytes();
}

std::span<std::byte> TensorBatch::keep_boundary(std::size_t b) {
  const at::Tensor& boundary = activations_.outputs[b - 1];
  if (!boundary.is_non_overlapping_and_dense()) {
    return {};
  }
  kept_[b] = {.tensor = boundary.detach(),
              .sizes = boundary.sizes().vec(),
              .strides = boundary.strides().vec(),
              .type = boundary.options().requires_grad(false)};
  return memory_of(kept_[b].tensor);
}

void TensorBatch::free_boundary(std::size_t b) {
  kept_[b].tensor.reset();
  activations_.inputs[b].reset();
}

std::span<std::byte> TensorBatch::make_boundary(std::size_t b, std::byte* room) {
  Kept& kept = kept_[b];
  kept.tensor = room == nullptr ? at::empty_strided(kept.sizes, kept.strides, kept.type)
                                : at::from_blob(room, kept.sizes, kept.strides, kept.type);
  return memory_of(kept.tensor);
}

void TensorBatch::take_boundary(std::size_t b) {
  activations_.inputs[b] = std::move(kept_[b].tensor);
  activations_.inputs[b].requires_grad_(true);
}

}  // namespace tandem
