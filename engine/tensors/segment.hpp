// engine/tensors/segment.hpp — a segment's forward, and its arguments: the batch, and the weights
// of the visit.
//
// Invariant: the last segment returns the scalar loss; every other one returns an activation.
// Compute lane, except that any thread may make a Batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "actors/kernels/dtype.hpp"
#include "actors/memory/placed.hpp"
#include "engine/types/model.hpp"

namespace tandem {

/// State of texts that segments keep, so that texts can be continued without running them again:
/// one tensor for each segment, undefined at the start. Engine::logits() advances `position`.
struct TextMemory {
  std::int64_t position = 0;  // tokens of each row that were there before
  std::vector<at::Tensor> segments;
};

/// The tokens of each row that this rank computes, if ranks share rows: all ranks of a sequence
/// group have equally many, the group's first rank the first ones.
struct RowPart {
  std::int64_t begin = 0;
  std::int64_t count = 0;   // 0: rows are neither shared nor cut into blocks
  std::int64_t length = 0;  // tokens of a row before its padding
};

/// One micro-batch on the compute device. Language models: inputs = token ids int64 [B, T], labels
/// int64 [B, T] with -100 where nothing is to be learnt (not shifted: position t's label is token
/// t; the loss head shifts).
struct Batch {
  at::Tensor inputs;
  at::Tensor labels;
  std::int64_t tokens = -1;  // without padding, for the metrics; -1: all of inputs
  /// This micro-batch's weight in the step's loss (LossMean::kTokens): its labels divided by those
  /// of the step. Absent: the engine counts them.
  std::optional<double> loss_share = std::nullopt;
  /// For rows of several documents: int64 [B, T], each token's position in its document, from 0;
  /// undefined: a row is one document. No token sees another document's tokens, and the label of a
  /// document's first token is -100, because no token before it could predict it.
  at::Tensor positions = {};
  /// Tokens of each row before its padding: int64 [B]; undefined: the padding of a row or document
  /// begins after its last label. Only losses over all tokens read it (RouterBalance).
  at::Tensor lengths = {};
  /// counted_labels() of the batch; -1: the engine counts them if the labels are in host memory.
  std::int64_t label_count = -1;
  // Set by the engine: the micro-batch's number among those of all ranks and steps, so that random
  // numbers drawn from it do not depend on the number of ranks; -1: not in training.
  std::int64_t number = -1;
  // Set by the engine if ranks share rows (sequence_parallel_size): each rank has whole rows of
  // inputs, labels and positions, whose length is a multiple of the ranks; activations [B,
  // part.count, ...] are those of this part.
  RowPart part = {};
  /// Only for logits: inputs continue the rows in `memory`, and the result is the logits of the
  /// last position.
  std::shared_ptr<TextMemory> memory = nullptr;
};

/// A parameter as a segment sees it during one visit. Compute lane only.
///
/// `value` is a leaf that requires grad; its storage is valid only while the unit is bound (inside
/// Segment::forward and inside that segment's backward). A segment hands over its gradient in one
/// of two ways, which can be mixed in one segment:
///  - ATen ops: autograd accumulates into value.grad(), and the engine moves that into the gradient
///    block afterwards;
///  - a custom autograd function writes straight into `grad` (same shape and dtype as value) and
///    returns an undefined tensor for it: it overwrites while !grad_written, adds once that is set
///    (tied weights), and sets it.
struct Weight {
  at::Tensor value;
  at::Tensor grad;  // bound only during backward, and never in a frozen unit
  bool grad_written = false;
  bool wants_grad = true;  // false: frozen; write nothing, `grad` may have no memory
};

/// Connects segments with the other ranks of their exchange group (UnitSpec::ep_size), or of the
/// ranks that share their rows (Batch::part), in the group's order. Compute lane.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  [[nodiscard]] virtual std::int64_t ranks() const noexcept = 0;
  /// Returns the device whose memory it can exchange directly, beside host memory: that of the
  /// segments.
  [[nodiscard]] virtual std::optional<at::Device> device() const { return std::nullopt; }
  /// Sends piece i of `from` to the group's rank i, and receives piece i of `into` from it; blocks
  /// until that is done. Both have ranks() pieces and do not overlap, in host memory or in
  /// device()'s memory. Collective: all ranks of the group call it at the same point of their
  /// segments, with pieces of the same size. Throws Error(kPeer) if one of them is lost.
  virtual void all_to_all(Placed<const std::byte> from, Placed<std::byte> into,
                          std::size_t piece_bytes) = 0;
};

/// The output of the last segment. kBothLosses, only for evaluation: if the model's loss has a term
/// beside the labels' (RouterBalance), fp32 [2] with the loss and the labels' loss alone; for other
/// models the loss.
enum class HeadOutput : std::uint8_t { kLoss, kLogits, kBothLosses };

struct SegmentContext {
  const Batch& batch;
  std::span<Weight* const> weights;  // in the order of SegmentSpec::weights
  HeadOutput head_output = HeadOutput::kLoss;
  // null: neither a unit nor rows are spread over ranks
  RankExchange* exchange = nullptr;
  std::int64_t begin = 0;        // positions before the batch's, of Batch::memory
  at::Tensor* memory = nullptr;  // the segment's part of it; null: there is none
};

class Segment {
 public:
  virtual ~Segment() = default;
  /// Forward of the segment under the caller's grad mode. The first segment gets an undefined
  /// `input` and reads context.batch.inputs; the last one returns the mean loss over the labels
  /// that are not -100 (scalar, fp32; of whole rows also where ranks share them), or with
  /// HeadOutput::kLogits the logits fp32 [B, T, V], [B, 1, V] with a memory. It must not keep
  /// references to weights or context after its backward.
  virtual at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const = 0;
  /// Throws user_error for a value of the batch, in host memory, that forward() would look up
  /// outside of a table. Called before the batch goes to a GPU, whose kernels would fault: then the
  /// process cannot use it any more. On the CPU forward() has to find such a value itself.
  virtual void check_values(const Batch& batch) const { (void)batch; }
};

/// ATen's name of a type.
[[nodiscard]] at::ScalarType scalar_type_of(DType type);

}  // namespace tandem
