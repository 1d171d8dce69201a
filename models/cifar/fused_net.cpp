#include "models/cifar/fused_net.hpp"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "models/cifar/kernels/cifar_net.hpp"
#include "models/cifar/net.hpp"
#include "models/kernels/parallel.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

using cifar_net::Row;

/// fp32 tensors that stand for the weights' values or gradients, and the pointers into them; null
/// behind the last.
template <class Float>
class Block {
 public:
  explicit Block(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] cifar_net::Parameters<Float> pointers() const {
    const auto at = [&](std::size_t i) -> Float* {
      return i < tensors_.size() ? tensors_[i].data_ptr<float>() : nullptr;
    };
    return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9)};
  }

 private:
  std::vector<at::Tensor> tensors_;
};

/// The values, widened where they are 16 bits wide.
Block<const float> values_of(std::span<Weight* const> weights) {
  std::vector<at::Tensor> tensors;
  for (const Weight* weight : weights) {
    tensors.push_back(weight->value.detach().to(at::kFloat));
  }
  return Block<const float>(std::move(tensors));
}

/// The images as a net of that type gets them.
at::Tensor rounded_to(at::ScalarType type, const at::Tensor& images) {
  return type == at::kFloat ? images : images.to(type).to(at::kFloat);
}

const float* image_at(const at::Tensor& images, std::int64_t i) {
  return images.data_ptr<float>() + i * cifar_net::kImage;
}

void check_images(const at::Tensor& images) {
  TANDEM_CHECK(images.dim() == 4 && images.is_contiguous() &&
                   images.numel() == images.size(0) * cifar_net::kImage,
               "images are [B, 3, 32, 32]");
}

/// The sums over images that are the weights' gradients, `parts` of them, times `scale`; written
/// or added, in their type.
void write_gradients(std::span<Weight* const> weights, const Row* rows, std::int64_t count,
                     std::int64_t parts, float scale) {
  const bool is_wide = weights.front()->grad.scalar_type() == at::kFloat;
  const bool add = weights.front()->grad_written;
  std::vector<at::Tensor> slots;
  for (const Weight* weight : weights) {
    slots.push_back(is_wide ? weight->grad : at::empty(weight->grad.sizes(), at::kFloat));
  }
  const Block<float> sums(std::move(slots));
  const auto into = sums.pointers();
  parallel_tasks(parts, [&](std::int64_t part) {
    cifar_net::weight_gradients(rows, count, scale, is_wide && add, into, part);
  });
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Weight& weight = *weights[i];
    if (!is_wide && add) {
      weight.grad.add_(sums.tensors()[i]);
    } else if (!is_wide) {
      weight.grad.copy_(sums.tensors()[i]);
    }
    weight.grad_written = true;
  }
}

class NetLoss final : public FusedOp {
 public:
  NetLoss(const at::Tensor& labels, std::span<Weight* const> weights, const at::Tensor& images)
      : images_(images), labels_(labels), weights_(weights.begin(), weights.end()) {}

  Tensors forward(const Tensors& /*inputs*/, bool keep) override {
    const std::int64_t count = images_.size(0);
    const float share = 1.0F / static_cast<float>(count);
    const auto* label = labels_.data_ptr<std::int64_t>();
    // Uninitialised: every image writes its row before it is read.
    rows_ = std::make_unique_for_overwrite<Row[]>(static_cast<std::size_t>(count));
    std::vector<double> losses(static_cast<std::size_t>(count));
    const Block<const float> block = values_of(weights_);
    const auto values = block.pointers();
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
    write_gradients(weights_, rows_.get(), images_.size(0), cifar_net::kGradientParts,
                    gradients[0].item<float>());
    rows_.reset();
    return {at::Tensor()};
  }

 private:
  at::Tensor images_, labels_;
  std::vector<Weight*> weights_;
  std::unique_ptr<Row[]> rows_;
  cifar_net::Packed packed_;
};

class Trunk final : public FusedOp {
 public:
  Trunk(std::span<Weight* const> weights, const at::Tensor& images)
      : images_(images), weights_(weights.begin(), weights.end()) {}

  Tensors forward(const Tensors& /*inputs*/, bool /*keep*/) override {
    const Block<const float> block = values_of(weights_);
    const auto values = block.pointers();
    cifar_net::pack(values, packed_);
    const at::Tensor out = at::empty({images_.size(0), cifar_net::kHidden2}, images_.options());
    auto* const hidden = out.data_ptr<float>();
    parallel_tasks(images_.size(0), [&](std::int64_t i) {
      cifar_net::run_trunk(values, packed_, image_at(images_, i), hidden + i * cifar_net::kHidden2);
    });
    return {out.to(weights_.front()->value.scalar_type())};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor d_out = gradients[0].to(at::kFloat).contiguous();
    const auto* const d_hidden = d_out.data_ptr<float>();
    const std::int64_t count = images_.size(0);
    const auto rows = std::make_unique_for_overwrite<Row[]>(static_cast<std::size_t>(count));
    const Block<const float> block = values_of(weights_);
    const auto values = block.pointers();
    parallel_tasks(count, [&](std::int64_t i) {
      cifar_net::run_trunk_backward(values, packed_, image_at(images_, i),
                                    d_hidden + i * cifar_net::kHidden2, rows[i]);
    });
    write_gradients(weights_, rows.get(), count, cifar_net::kTrunkGradientParts, 1.0F);
    return {at::Tensor()};
  }

 private:
  at::Tensor images_;
  std::vector<Weight*> weights_;
  cifar_net::Packed packed_;
};

}  // namespace

bool fused_cifar_takes(const at::Tensor& weight) {
  const at::ScalarType type = weight.scalar_type();
  return weight.is_cpu() && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

at::Tensor fused_cifar_loss(const at::Tensor& images, const at::Tensor& labels,
                            std::span<Weight* const> weights) {
  check_images(images);
  TANDEM_CHECK(labels.dim() == 1 && labels.size(0) == images.size(0) && images.size(0) > 0 &&
                   labels.scalar_type() == at::kLong && labels.is_contiguous(),
               "labels are int64 [B]");
  const auto* label = labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.size(0); ++i) {
    if (label[i] < 0 || label[i] >= cifar_net::kClasses) {
      throw user_error("model", "label {} of image {} is no class; labels go from 0 to {}",
                       label[i], i, cifar_net::kClasses - 1);
    }
  }
  // The weight among the inputs makes the loss part of the graph; gradients go into the slots
  // directly.
  const at::Tensor& first = weights.front()->value;
  return run_fused(
             c10::make_intrusive<NetLoss>(labels, weights, rounded_to(first.scalar_type(), images)),
             {first})
      .front();
}

at::Tensor fused_cifar_trunk(const at::Tensor& images, std::span<Weight* const> weights) {
  check_images(images);
  TANDEM_CHECK(weights.size() == kCifarTrunkParameters, "the trunk's parameters");
  const at::Tensor& first = weights.front()->value;
  return run_fused(c10::make_intrusive<Trunk>(weights, rounded_to(first.scalar_type(), images)),
                   {first})
      .front();
}

at::Tensor fused_cifar_logits(const at::Tensor& images, std::span<Weight* const> weights) {
  check_images(images);
  const at::NoGradGuard no_grad;
  const std::int64_t count = images.size(0);
  at::Tensor logits = at::empty({count, cifar_net::kClasses}, images.options());
  auto* out = logits.data_ptr<float>();
  const at::Tensor rounded = rounded_to(weights.front()->value.scalar_type(), images);
  const Block<const float> block = values_of(weights);
  const auto values = block.pointers();
  const auto packed = std::make_unique_for_overwrite<cifar_net::Packed>();
  cifar_net::pack(values, *packed);
  parallel_tasks(count, [&](std::int64_t i) {
    cifar_net::run_image(values, *packed, image_at(rounded, i), out + i * cifar_net::kClasses);
  });
  return logits;
}

}  // namespace tandem
