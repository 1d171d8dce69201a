#include "bench/overlap/layers.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "models/layers/fused_op.hpp"

namespace tandem::bench {
namespace {

/// Matmuls of bf16 on the weights' device, one after another. Lane thread.
class Matmuls {
 public:
  void run(int count, c10::Device device) {
    if (count > 0 && !a_.defined()) {
      const std::int64_t side = device.is_cuda() ? 2048 : 64;  // 30 us of an H100
      const auto options = at::TensorOptions(at::kBFloat16).device(device);
      a_ = at::zeros({side, side}, options);
      b_ = at::zeros({side, side}, options);
      product_ = at::empty({side, side}, options);
    }
    for (int i = 0; i < count; ++i) {
      at::mm_out(product_, a_, b_);
    }
  }

 private:
  at::Tensor a_, b_, product_;
};

/// The state that the layers of a model share.
struct Shared {
  std::shared_ptr<const LayerTimes> times;
  Matmuls matmuls;
};

/// Leaves its weights' gradient as it lies in the slot: whatever that is, it is moved and added as
/// any other.
class Nothing final : public FusedOp {
 public:
  Nothing(Weight& weight, Shared& shared) : weight_(weight), shared_(shared) {}
  Tensors forward(const Tensors& inputs, bool /*keep*/) override {
    const c10::Device device = weight_.value.device();
    shared_.matmuls.run(shared_.times->forward_matmuls, device);
    has_input_ = inputs.size() > 1;
    return {has_input_ ? at::add(inputs[1], 1) : at::zeros({8}, at::TensorOptions(device))};
  }
  Tensors backward(const Tensors& gradients) override {
    shared_.matmuls.run(shared_.times->backward_matmuls, weight_.value.device());
    weight_.grad_written = true;
    Tensors result(1);
    if (has_input_) {
      result.push_back(gradients[0]);
    }
    return result;
  }

 private:
  Weight& weight_;
  Shared& shared_;
  bool has_input_ = false;
};

class Layer final : public Segment {
 public:
  Layer(std::shared_ptr<Shared> shared, bool is_last)
      : shared_(std::move(shared)), is_last_(is_last) {}
  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    Weight& weight = *context.weights[0];
    Tensors inputs = {weight.value};
    if (input.defined()) {
      inputs.push_back(input);
    }
    const at::Tensor output = run_fused(c10::make_intrusive<Nothing>(weight, *shared_), inputs)[0];
    return is_last_ ? at::sum(output) : output;
  }

 private:
  std::shared_ptr<Shared> shared_;
  bool is_last_;
};

}  // namespace

Model timed_layers(std::int64_t layers, std::int64_t weights_of_layer,
                   const std::shared_ptr<const LayerTimes>& times) {
  const auto shared = std::make_shared<Shared>(times);
  Model model;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string name = "layer " + std::to_string(i);
    model.units.push_back({name, {{name + ".weight", {weights_of_layer}}}});
    SegmentSpec segment{.name = name,
                        .weights = {{static_cast<std::size_t>(i), 0}},
                        .run = std::make_shared<Layer>(shared, i + 1 == layers)};
    segment.cost.seconds = [times](bool is_backward) {
      return is_backward ? times->backward_s.load() : times->forward_s.load();
    };
    model.segments.push_back(std::move(segment));
  }
  model.source = [](const ParameterSpec&, std::int64_t begin, std::int64_t end, float* out) {
    std::fill_n(out, end - begin, 0.5F);
  };
  return model;
}

}  // namespace tandem::bench
