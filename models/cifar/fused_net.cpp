#include "models/cifar/fused_net.hpp"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "models/kernels/cifar_net.hpp"
#include "models/kernels/parallel.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

using cifar_net::Row;

template <class Float, class Of>
cifar_net::Parameters<Float> pointers(std::span<Weight* const> weights, Of of) {
  const auto at = [&](std::size_t i) -> Float* {
    return of(*weights[i]).template data_ptr<float>();
  };
  return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9)};
}

cifar_net::Parameters<const float> values_of(std::span<Weight* const> weights) {
  return pointers<const float>(weights, [](Weight& w) -> at::Tensor& { return w.value; });
}

const float* image_at(const at::Tensor& images, std::int64_t i) {
  return images.data_ptr<float>() + i * cifar_net::kImage;
}

void check_images(const at::Tensor& images) {
  TANDEM_CHECK(images.dim() == 4 && images.is_contiguous() &&
                   images.numel() == images.size(0) * cifar_net::kImage,
               "images are [B, 3, 32, 32]");
}

class NetLoss final : public FusedOp {
 public:
  NetLoss(const at::Tensor& labels, std::span<Weight* const> weights, const at::Tensor& images)
      : images_(images), labels_(labels), weights_(weights.begin(), weights.end()) {}

  Tensors forward(const Tensors& /*inputs*/, bool keep) override {
    const std::int64_t count = images_.size(0);
    const float share = 1.0F / static_cast<float>(count);
    const auto* label = labels_.data_ptr<std::int64_t>();
    // Uninitialised: every picture writes its row before anybody reads it.
    rows_ = std::make_unique_for_overwrite<Row[]>(static_cast<std::size_t>(count));
    std::vector<double> losses(static_cast<std::size_t>(count));
    const auto values = values_of(weights_);
    cifar_net::pack(values, packed_);
    parallel_tasks(count, [&](std::int64_t i) {
      float logits[cifar_net::kClasses];
      losses[static_cast<std::size_t>(i)] = cifar_net::run_image(
          values, packed_, image_at(images_, i), logits, &rows_[i], label[i], share);
    });
    double sum = 0;
    for (const double loss : losses) {
      sum += loss;
    }
    if (!keep) {
      rows_.reset();
    }
    return {at::full({}, sum / static_cast<double>(count), images_.options())};
  }

  Tensors backward(const Tensors& gradients) override {
    const auto scale = gradients[0].item<float>();
    const bool add = weights_.front()->grad_written;
    const auto into = pointers<float>(weights_, [](Weight& w) -> at::Tensor& { return w.grad; });
    parallel_tasks(cifar_net::kGradientParts, [&](std::int64_t part) {
      cifar_net::weight_gradients(rows_.get(), images_.size(0), scale, add, into, part);
    });
    for (Weight* weight : weights_) {
      weight->grad_written = true;
    }
    rows_.reset();
    return {at::Tensor()};
  }

 private:
  at::Tensor images_, labels_;
  std::vector<Weight*> weights_;
  std::unique_ptr<Row[]> rows_;
  cifar_net::Packed packed_;
};

}  // namespace

at::Tensor fused_cifar_loss(const at::Tensor& images, const at::Tensor& labels,
                            std::span<Weight* const> weights) {
  check_images(images);
  TANDEM_CHECK(labels.dim() == 1 && labels.size(0) == images.size(0) && images.size(0) > 0 &&
                   labels.scalar_type() == at::kLong && labels.is_contiguous(),
               "labels are int64 [B]");
  const auto* label = labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.size(0); ++i) {
    if (label[i] < 0 || label[i] >= cifar_net::kClasses) {
      throw user_error("model", "label {} of picture {} is no class; labels go from 0 to {}",
                       label[i], i, cifar_net::kClasses - 1);
    }
  }
  // The weight among the inputs makes the loss part of the graph; gradients go into the slots directly.
  return run_fused(c10::make_intrusive<NetLoss>(labels, weights, images), {weights[0]->value})
      .front();
}

at::Tensor fused_cifar_logits(const at::Tensor& images, std::span<Weight* const> weights) {
  check_images(images);
  const at::NoGradGuard no_grad;
  const std::int64_t count = images.size(0);
  at::Tensor logits = at::empty({count, cifar_net::kClasses}, images.options());
  auto* out = logits.data_ptr<float>();
  const auto values = values_of(weights);
  const auto packed = std::make_unique_for_overwrite<cifar_net::Packed>();
  cifar_net::pack(values, *packed);
  parallel_tasks(count, [&](std::int64_t i) {
    cifar_net::run_image(values, *packed, image_at(images, i), out + i * cifar_net::kClasses);
  });
  return logits;
}

}  // namespace tandem
