#include "models/transformer/router_balance.hpp"

#include <tuple>
#include <utility>

#include <ATen/Functions.h>

#include "models/layers/aten/layers.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kIgnored = -100;

/// 1 for a token, 0 for padding: [B, T], double. `positions`: of packed rows, else undefined.
/// `lengths`: of rows, where they are known.
at::Tensor tokens_of(const at::Tensor& labels, const at::Tensor& positions,
                     const at::Tensor& lengths) {
  if (lengths.defined()) {
    return at::arange(labels.size(1), labels.options())
        .unsqueeze(0)
        .lt(lengths.unsqueeze(1))
        .to(at::kDouble);
  }
  at::Tensor labels_from_here = labels.ne(kIgnored).flip({1}).cumsum(1).flip({1});
  if (positions.defined()) {  // those of the documents behind do not count
    const at::Tensor none = at::zeros({labels.size(0), 1}, labels_from_here.options());
    labels_from_here =
        labels_from_here -
        at::cat({labels_from_here, none}, 1).gather(1, aten::ends_in_rows(positions));
  }
  return labels_from_here.gt(0).to(at::kDouble);
}

class Observe final : public FusedOp {
 public:
  Observe(const RouterBalance::Rule& rule, RouterBalance::Sums& sums, std::int64_t layer,
          const Batch& batch, const SharedRows& shared)
      : rule_(rule),
        sums_(sums),
        layer_(static_cast<std::size_t>(layer)),
        labels_(batch.labels),
        positions_(batch.positions),
        lengths_(batch.lengths),
        shared_(shared) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor logits = inputs[0].detach();
    const at::Tensor all = tokens_of(labels_, positions_, lengths_);
    const at::Tensor tokens = column_of_own(all);
    const at::Tensor chosen = std::get<1>(at::topk(logits, rule_.per_token, 1));
    const at::Tensor choices =
        at::zeros(logits.sizes(), logits.options().dtype(at::kDouble)).scatter_(1, chosen, 1);
    const at::Tensor sums = shared_.sum_of_all(at::stack(
        {(choices * tokens).sum(0), (probabilities(logits).to(at::kDouble) * tokens).sum(0)}));
    sums_.choices[layer_] = sums[0];
    sums_.probabilities[layer_] = sums[1];
    sums_.tokens = all.sum();
    if (keep) {
      logits_ = logits;
    }
    return {inputs[1].detach()};
  }

  Tensors backward(const Tensors& gradients) override {
    TANDEM_CHECK(sums_.slopes.defined(), "the head's backward comes first");
    const at::Tensor p = probabilities(logits_);
    const at::Tensor dp =
        column_of_own(tokens_of(labels_, positions_, lengths_)).to(at::kFloat) * sums_.slopes;
    const at::Tensor dlogits = p * (dp - (p * dp).sum(1, /*keepdim=*/true));
    return {dlogits.to(logits_.scalar_type()), gradients[0]};
  }

 private:
  [[nodiscard]] at::Tensor column_of_own(const at::Tensor& all) const {
    return shared_.part_of(all).reshape({-1, 1});
  }
  static at::Tensor probabilities(const at::Tensor& logits) {
    return at::softmax(logits.to(at::kFloat), 1);
  }

  RouterBalance::Rule rule_;
  RouterBalance::Sums& sums_;
  std::size_t layer_;
  at::Tensor labels_, positions_, lengths_;
  SharedRows shared_;
  at::Tensor logits_;
};

class AddBalance final : public FusedOp {
 public:
  AddBalance(const RouterBalance::Rule& rule, RouterBalance::Sums& sums)
      : rule_(rule), sums_(sums) {}

  Tensors forward(const Tensors& inputs, bool /*keep*/) override {
    at::Tensor choices;
    at::Tensor probabilities;
    std::int64_t layers = 0;
    for (std::size_t layer = 0; layer < sums_.choices.size(); ++layer) {
      if (sums_.choices[layer].defined()) {
        const bool first = layers++ == 0;
        choices = first ? sums_.choices[layer] : choices + sums_.choices[layer];
        probabilities =
            first ? sums_.probabilities[layer] : probabilities + sums_.probabilities[layer];
      }
    }
    TANDEM_CHECK(layers > 0, "a layer with experts was observed");
    const at::Tensor rows = (sums_.tokens * layers).clamp_min(1);
    slopes_ = choices * (rule_.coefficient * static_cast<double>(rule_.experts)) / (rows * rows);
    return {(inputs[0] + (slopes_ * probabilities).sum()).to(at::kFloat)};
  }

  Tensors backward(const Tensors& gradients) override {
    sums_.slopes = (slopes_ * gradients[0]).to(at::kFloat);
    return {gradients[0]};
  }

 private:
  RouterBalance::Rule rule_;
  RouterBalance::Sums& sums_;
  at::Tensor slopes_;
};

}  // namespace

RouterBalance::RouterBalance(double coefficient, std::int64_t experts, std::int64_t per_token,
                             std::int64_t layers)
    : rule_{coefficient, experts, per_token, layers} {}

RouterBalance::Sums& RouterBalance::sums_of_this_thread() {
  const std::scoped_lock lock(mutex_);
  Sums& sums = sums_[std::this_thread::get_id()];
  sums.choices.resize(static_cast<std::size_t>(rule_.layers));
  sums.probabilities.resize(static_cast<std::size_t>(rule_.layers));
  return sums;
}

at::Tensor RouterBalance::observe(std::int64_t layer, const at::Tensor& logits, const Batch& batch,
                                  const at::Tensor& x, const SharedRows& shared) {
  return run_fused(c10::make_intrusive<Observe>(rule_, sums_of_this_thread(), layer, batch, shared),
                   {logits, x})
      .front();
}

at::Tensor RouterBalance::added_to(const at::Tensor& loss) {
  return run_fused(c10::make_intrusive<AddBalance>(rule_, sums_of_this_thread()), {loss}).front();
}

}  // namespace tandem
