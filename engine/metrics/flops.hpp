// engine/metrics/flops.hpp — the floating-point operations of a training step, by two conventions,
// and those of a segment on a device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/types/model.hpp"

namespace tandem {

struct FlopShape {
  std::int64_t parameters = 0;  // P
  std::int64_t layers = 0;      // L
  std::int64_t hidden = 0;      // h
  bool activation_checkpointing = false;
};

/// The fine-tuning example's figure: (2 c P s + 4 c L h s^2) / 1e12 x sequences / time, with c = 4
/// when activations are recomputed, else 3 (deepspeedai/DeepSpeedExamples, finetune_zero3.py).
/// TFLOP/s; recomputation counts as work.
[[nodiscard]] double example_tflops(const FlopShape& shape, std::int64_t sequences,
                                    std::int64_t sequence_length, double step_time_s) noexcept;

struct SegmentShape {
  std::int64_t weights = 0;           // elements that a token is multiplied with
  std::int64_t attention_width = 0;   // heads times their size; 0: no attention
  std::int64_t attention_window = 0;  // keys that a position sees; 0: all
};

/// The keys of a token that count in attention's operations.
enum class CountedKeys : std::uint8_t {
  kAll,   // of its row, or of the window: the convention of example_tflops()
  kSeen,  // those that a causal mask leaves: what a device computes
};

/// Returns the operations of one segment's forward over `sequences` of `length` tokens: 2 per
/// weight and token, and for attention 4 x width x keys per token (scores and their sums).
[[nodiscard]] double forward_flops(const SegmentShape& shape, std::int64_t sequences,
                                   std::int64_t length,
                                   CountedKeys keys = CountedKeys::kAll) noexcept;
/// Returns those of its backward: twice the forward, and the forward once more if activations are
/// recomputed.
[[nodiscard]] double backward_flops(const SegmentShape& shape, std::int64_t sequences,
                                    std::int64_t length, bool recomputes,
                                    CountedKeys keys = CountedKeys::kAll) noexcept;

/// Returns the elements of a segment's weights that a token is multiplied with, counted by their
/// uses, idle ones included.
[[nodiscard]] std::int64_t multiplied_elements(const Model& model, std::size_t segment,
                                               std::size_t weight);
/// Returns the shape from the segment's weights and costs (engine/types/model.hpp).
[[nodiscard]] SegmentShape segment_shape(const Model& model, std::size_t segment);

/// Returns the operations for one token in training: forward and backward of all segments, without
/// recomputation. Looking up an embedding counts nothing, a tied embedding counts as the head's
/// matrix; only the experts that the token uses count.
[[nodiscard]] double model_flops_per_token(const Model& model, std::int64_t length);

}  // namespace tandem
