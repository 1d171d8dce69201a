#include "engine/tensors/unit.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/core/StorageImpl.h>

#include "runtime/util/check.hpp"

namespace tandem {

namespace {
void point_at(const at::Tensor& flat, at::Device device, std::byte* data, std::size_t bytes) {
  c10::StorageImpl* storage = flat.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(data, device));
  storage->set_nbytes(data == nullptr ? 0 : bytes);
}
}  // namespace

// Nothing is allocated: on a GPU that would be memory of LibTorch's cache, kept permanently.
FlatBlock::FlatBlock(std::int64_t numel, DType type, at::Device device)
    : flat_(at::for_blob(nullptr, {numel})
                .options(at::TensorOptions().dtype(scalar_type_of(type)).device(device))
                .target_device(device)
                .make_tensor()),
      device_(device),
      bytes_(static_cast<std::size_t>(numel) * bytes_of(type)) {}

at::Tensor FlatBlock::view(std::int64_t begin, const std::vector<std::int64_t>& shape) const {
  std::int64_t numel = 1;
  for (const std::int64_t extent : shape) {
    numel *= extent;
  }
  return flat_.narrow(0, begin, numel).view(shape).detach();
}

void FlatBlock::bind(std::byte* data) {
  TANDEM_CHECK(data != nullptr, "bind() needs memory; unbind() is the way to take it away");
  // A GPU's matmul may be another one for operands that are aligned otherwise, with other bits.
  TANDEM_CHECK(!device_.is_cuda() || reinterpret_cast<std::uintptr_t>(data) % 256 == 0,
               "a unit's tensors are aligned alike in every slot");
  if (data != data_) {
    point_at(flat_, device_, data, bytes_);
    data_ = data;
  }
}

void FlatBlock::unbind() {
  point_at(flat_, device_, nullptr, bytes_);
  data_ = nullptr;
}

Unit::Unit(const UnitSpec& spec, const ParameterLayout& layout, DType type, at::Device device)
    : values_(static_cast<std::int64_t>(layout.gathered.padded_elements), type, device),
      gradients_(static_cast<std::int64_t>(layout.block.padded_elements), type, device) {
  const auto part_stride = static_cast<std::int64_t>(layout.gathered.padded_elements);
  weights_.resize(spec.parameters.size());
  std::int64_t end = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const ParameterSpec& parameter = spec.parameters[i];
    const std::int64_t begin = layout.offsets[i];
    // Runs of every slice are the own slice's, seen once more.
    weights_[i].value = values_.view(part_stride == 0 ? 0 : begin % part_stride, parameter.shape);
    weights_[i].value.requires_grad_(!parameter.frozen);
    weights_[i].wants_grad = !parameter.frozen;
    frozen_.push_back(parameter.frozen);
    weights_[i].grad = gradients_.view(begin, parameter.shape);
    if (begin > end) {
      gaps_.push_back(gradients_.view(end, {begin - end}));
    }
    end = begin + parameter.numel();
  }
  padding_ = gradients_.view(end, {static_cast<std::int64_t>(layout.block.padded_elements) - end});
  values_.unbind();
  gradients_.unbind();
}

void Unit::bind_gradients(std::byte* slot, bool fresh) {
  gradients_.bind(slot);
  if (fresh) {
    for (Weight& weight : weights_) {
      weight.grad_written = false;
    }
  }
}

void Unit::collect_autograd_gradients() {
  for (Weight& weight : weights_) {
    at::Tensor& accumulated = weight.value.mutable_grad();
    if (!accumulated.defined()) {
      continue;
    }
    if (weight.grad_written) {
      weight.grad.add_(accumulated);
    } else {
      weight.grad.copy_(accumulated);
    }
    weight.grad_written = true;
    accumulated.reset();
  }
}

void Unit::complete_gradients(bool padding) {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (!weights_[i].grad_written || frozen_[i]) {
      weights_[i].grad.zero_();
    }
  }
  for (const at::Tensor& gap : gaps_) {
    gap.zero_();
  }
  if (padding && padding_.numel() > 0) {
    padding_.zero_();
  }
  unbind_gradients();
}

void Unit::unbind_gradients() { gradients_.unbind(); }

}  // namespace tandem
