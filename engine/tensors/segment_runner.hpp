// engine/tensors/segment_runner.hpp — runs forward and backward of single segments; no other file
// calls autograd.
//
// The boundary between segments is one detached activation. A segment's graph reaches from that
// input to its output; the engine starts its backward, which frees the graph. With activation
// checkpointing only the input is kept, and the backward runs the forward again first. Compute lane
// only. No torch guard outlives a call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "engine/rank/micro_batch.hpp"
#include "engine/tensors/segment.hpp"
#include "engine/tensors/unit.hpp"
#include "engine/types/row_sharing.hpp"
#include "engine/types/token_tiles.hpp"

namespace tandem {

class SegmentRunner {
 public:
  /// `model`, `units` ([unit]) and `exchange` (null: there is none) outlive the runner.
  SegmentRunner(const Model& model, std::span<const std::unique_ptr<Unit>> units,
                bool activation_checkpointing, RankExchange* exchange = nullptr,
                RowSharing sharing = {});

  /// The tensors that one micro-batch keeps between its forward and its backward: [segment] ->
  /// input and, unless checkpointing, output with its graph.
  struct Activations {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    at::Tensor gradient;  // of the boundary that backward has reached
    bool looks = false;   // for what is not finite: reads each boundary, and waits for the device
    std::optional<BadActivation> bad;  // the first one, in the order of computing
  };

  [[nodiscard]] Activations start(bool looks = false) const;

  /// Throws user_error for a value of the batch that a segment would look up outside of a table.
  /// The batch lies in host memory. Any thread.
  void check_values(const Batch& batch) const;

  /// Runs segment `s` on the output of segment s-1. The segment's units are bound.
  void forward(std::size_t s, const Batch& batch, Activations& activations) const;
  /// The scalar loss after the last segment's forward.
  [[nodiscard]] static const at::Tensor& loss(const Activations& activations);
  /// Runs the backward of segment `s`; call it in falling order of segments. `loss_gradient`:
  /// d(objective)/d(loss), used by the last segment. Afterwards this segment's contribution to the
  /// weights' gradients is in their blocks.
  void backward(std::size_t s, const Batch& batch, Activations& activations,
                double loss_gradient) const;

  /// Forward of one segment without any graph, for evaluation and sampling.
  [[nodiscard]] at::Tensor infer(std::size_t s, const Batch& batch, const at::Tensor& input,
                                 HeadOutput head_output) const;

 private:
  [[nodiscard]] at::Tensor run(std::size_t s, const Batch& batch, const at::Tensor& input,
                               HeadOutput head_output) const;
  /// Returns the token tiles over which this rank sums.
  [[nodiscard]] TokenTiles blocks_of(const Batch& batch) const;

  const Model& model_;
  std::vector<std::vector<Weight*>> weights_;      // [segment]
  std::vector<std::vector<Unit*>> segment_units_;  // [segment], each once
  bool activation_checkpointing_;
  RankExchange* exchange_;
  RowSharing sharing_;
};

}  // namespace tandem
