// models/transformer/router_balance.hpp — the loss that keeps a model's routers from choosing the
// same experts for all tokens.
//
//   coefficient * experts * sum over e of f_e P_e
// f_e: how often a token chooses expert e, P_e: its mean probability; both over the tokens of all
// layers with experts (Switch Transformers, Fedus et al., 2021, as Transformers takes it over a
// model). Padding is left out: it lies behind a row's length (Batch::lengths) or, if lengths are
// not known, behind a document's last label. A layer's gradient needs the choices of all layers,
// which are known when forward ends. So blocks leave their sums here, and the head adds the loss.
// The head's backward leaves the loss's slopes here, which the blocks' backward reads.
// Recomputation leaves the same sums again. Nothing here looks at a tensor's values. Invariant: the
// segments of one micro-batch run on one thread, forward and then backward, before those of the
// next; each thread has sums of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/tensors/segment.hpp"
#include "models/layers/sequence/shared_rows.hpp"

namespace tandem {

class RouterBalance {
 public:
  RouterBalance(double coefficient, std::int64_t experts, std::int64_t per_token,
                std::int64_t layers);

  /// Returns x, and records the logits [tokens, experts] of `layer`'s router for the tokens of
  /// `batch`. If rows are `shared`, the logits are of this rank's part of the rows, and the sums of
  /// whole rows. In backward the logits get the gradient of the loss. Compute lane.
  [[nodiscard]] at::Tensor observe(std::int64_t layer, const at::Tensor& logits, const Batch& batch,
                                   const at::Tensor& x, const SharedRows& shared = {});
  /// Returns `loss` (scalar, fp32) plus this loss, after all layers of the micro-batch have been
  /// observed. Compute lane.
  [[nodiscard]] at::Tensor added_to(const at::Tensor& loss);

  /// The sums of one micro-batch; counts in double are exact.
  struct Sums {
    std::vector<at::Tensor> choices,
        probabilities;  // of each layer, [experts]; undefined: a dense one
    at::Tensor tokens;  // of one layer
    at::Tensor slopes;  // of the loss in a token's probabilities
  };
  struct Rule {
    double coefficient;
    std::int64_t experts, per_token, layers;
  };

 private:
  Sums& sums_of_this_thread();

  Rule rule_;
  std::mutex mutex_;
  std::map<std::thread::id, Sums> sums_;  // of each engine in the process
};

}  // namespace tandem
