// engine/types/model.hpp — what the engine knows of a model: units of parameters, and segments that
// use them in order.
//
// A *unit* is a list of parameters that lie in one flat block: it is gathered, reduced and updated
// as one. A *segment* is a plain function of weights and activations (embedding, one block, head).
// Segments run in order; the boundary between two of them is one activation tensor, detached, so
// the engine drives each segment's backward itself. A weight may be used by several segments (tied
// embeddings): its unit is then gathered for each of them.
// Invariant: the last segment returns the scalar loss; every other one returns an activation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "actors/kernels/dtype.hpp"

namespace tandem {

/// The memory that segments keep of texts, so that they can be continued without running them
/// again: one tensor for each segment, its own, undefined at the start. Engine::logits() moves
/// `position` on.
struct TextMemory {
  std::int64_t position = 0;  // tokens of each row that were there before
  std::vector<at::Tensor> segments;
};

/// The tokens of each row of a micro-batch that this rank computes, where ranks share rows: all
/// ranks of a sequence group have equally many, the group's first rank the first ones.
struct RowPart {
  std::int64_t begin = 0;
  std::int64_t count = 0;   // 0: rows are neither shared nor cut into blocks
  std::int64_t length = 0;  // tokens of a row, before it was made a multiple
};

/// One micro-batch on the compute device. Language models: inputs = token ids int64 [B, T], labels
/// int64 [B, T] with -100 where nothing is to be learnt (not shifted: position t's label is token
/// t; the loss head shifts).
struct Batch {
  at::Tensor inputs;
  at::Tensor labels;
  std::int64_t tokens = -1;  // without padding, for the metrics; -1: all of inputs
  /// This micro-batch's part of the step's loss (LossMean::kTokens): its labels over those of the
  /// step. Absent: the engine counts them.
  std::optional<double> loss_share = std::nullopt;
  /// Rows of several documents: int64 [B, T], each token's position in its own one, counted from 0;
  /// undefined: a row is one document. A document is alone: none of its tokens sees another one's,
  /// and the label of its first token is -100, for nothing before it could predict it.
  at::Tensor positions = {};
  /// Tokens of each row before its padding: int64 [B]; undefined: a row's padding begins behind its
  /// last label, a document's likewise. Only losses over all tokens read it (RouterBalance).
  at::Tensor lengths = {};
  /// counted_labels() of it; -1: the engine counts them where the labels are in host memory.
  std::int64_t label_count = -1;
  // Set by the engine: counts the micro-batches of all ranks and steps, so that what is drawn from
  // it does not depend on how many ranks share the work; -1: not in training.
  std::int64_t number = -1;
  // Set by the engine where ranks share rows (sequence_parallel_size): inputs, labels and positions
  // are the whole rows on each of them, a multiple of the ranks long, and activations [B,
  // part.count, ...] are those of this part.
  RowPart part = {};
  /// Only for logits: inputs continue the rows that are in it, and those of the last position are
  /// the answer.
  std::shared_ptr<TextMemory> memory = nullptr;
};

struct ParameterSpec {
  std::string name;  // as in the Hugging Face checkpoint
  std::vector<std::int64_t> shape;
  std::size_t group = 0;  // of InitializeArgs::parameter_groups
  bool frozen = false;    // keeps its value; without gradient and optimizer state

  [[nodiscard]] std::int64_t numel() const noexcept;
};

struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  /// The number of experts; the parameters come in as many runs alike. Every run begins at a
  /// boundary of the optimizer's blocks.
  std::int64_t experts = 1;
  /// Expert-parallel size: the number of slices that the experts are cut into. The first
  /// world / ep_size ranks hold the first slice, and so on; one rank of each slice forms an
  /// exchange group. A segment then sees the runs of its own slice, once for each rank of its
  /// group:
  ///   run j * (experts / ep_size) + e
  /// is the slice's expert e, with the gradient of what was exchanged with the group's rank j.
  /// Gradients of all ranks are added in rank order, as if every rank had all experts.
  std::int64_t ep_size = 1;
  /// Small beside the unit that it is used with (adapters): its weights stay gathered on every rank
  /// at every stage, so that the other units' slots do not double. Not with ep_size above 1.
  bool stays_gathered = false;

  [[nodiscard]] std::int64_t numel() const noexcept;
  /// Whether all of its parameters are frozen: then nothing of it is reduced or updated.
  [[nodiscard]] bool frozen() const noexcept;
};

/// A parameter as a segment sees it during one visit. Compute lane only.
///
/// `value` is a leaf that requires grad; its storage is valid only while the unit is bound (inside
/// Segment::forward and inside that segment's backward). Two ways to hand over its gradient, and
/// both may be mixed in one segment:
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

/// How segments reach the other ranks of their exchange group (UnitSpec::ep_size), or of those that
/// share their rows (Batch::part), in that order. Compute lane.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  [[nodiscard]] virtual std::int64_t ranks() const noexcept = 0;
  /// The device whose memory it reaches beside the host's: the one that segments compute on.
  [[nodiscard]] virtual std::optional<at::Device> device() const { return std::nullopt; }
  /// Piece i of `from` goes to the group's rank i, and what that one has for this rank becomes
  /// piece i of `into`; both are ranks() pieces, apart, of host memory or, `on_device`, of
  /// device()'s. Blocks until then. All ranks of the group call it at the same place of their
  /// segments, with pieces of the same size. Throws Error(kPeer) when one of them is lost.
  virtual void all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes,
                          bool on_device = false) = 0;
};

/// The output that the last segment is asked for. kBothLosses, which is never trained with: of a
/// model whose loss has a part beside the labels' (RouterBalance) fp32 [2], the loss and the
/// labels' alone; of every other one the loss.
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
  /// HeadOutput::kLogits the logits fp32 [B, T, V], [B, 1, V] with a memory. Must not keep
  /// references to weights or context past its backward.
  virtual at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const = 0;
};

struct WeightRef {
  std::size_t unit = 0;       // index into Model::units
  std::size_t parameter = 0;  // index into that unit's parameters
};

/// The cost of a segment's forward on a device. The time of simulated devices and some figures
/// follow from it; no result does.
struct SegmentCost {
  bool looks_up = false;             // it reads rows of its weights and multiplies with none
  std::int64_t idle_weights = 0;     // elements that a token is not multiplied with (other experts)
  std::int64_t attention_width = 0;  // heads times their size; 0: no attention
  std::int64_t attention_window = 0;  // keys that a position sees; 0: all
  /// [weight] How often a token is multiplied with its elements: of a convolution the places, of a
  /// look-up 0; empty: each once.
  std::vector<std::int64_t> uses = {};
  // The part of its parameters' names that names the module that attends; that of the experts.
  std::string attention_module = {};
  std::string experts_module = {};
  /// Instead of an estimate: the seconds of a visit, recomputation included. Compute lane.
  std::function<double(bool is_backward)> seconds = {};
};

/// A micro-batch as far as memory goes.
struct BatchShape {
  std::int64_t rows = 1;    // of one rank
  std::int64_t length = 1;  // tokens of a row; 1 where there are none
  DType type = DType::kF32;
  int threads = 1;           // of the compute lane
  bool accelerator = false;  // computed there: kernels need no packed copies in host memory
  bool packed = false;       // rows hold several documents (Batch::positions)
  std::int64_t sharers = 1;  // ranks that share each row (Batch::part)
  // Blocks of a rank's part of a row: sums over tokens are made block by block (TokenBlocks); 0:
  // they are not cut.
  std::int64_t blocks = 0;

  /// Tokens of one rank.
  [[nodiscard]] std::int64_t tokens() const noexcept {
    return rows * ((length + sharers - 1) / sharers);
  }
};

/// Bytes of activations of one segment, for the memory plan.
struct ActivationBytes {
  std::int64_t output = 0;    // the boundary to the next segment
  std::int64_t kept = 0;      // from forward to backward, without input and output
  std::int64_t forward = 0;   // beyond those at the peak of forward
  std::int64_t backward = 0;  // the same in backward, the output's gradient included
  std::int64_t scratch = 0;   // of the kernels: grows to the largest of all segments, and stays
  std::int64_t spare = 0;     // what allocators hold beyond that: kept_of_tensor(), gaps
  bool loss = false;          // counted as the loss's, not as activations
};

struct SegmentSpec {
  std::string name;
  std::vector<WeightRef> weights;
  // null in a description (models/causal_lm.hpp): for plans alone
  std::shared_ptr<const Segment> run;
  std::function<ActivationBytes(const BatchShape&)> activations;  // empty: not known
  SegmentCost cost;
  /// Its operations are too small to be shared: the lane computes it alone, which also keeps the
  /// bits of operations whose sums depend on the number of threads.
  bool one_thread = false;
};

/// ATen's name of a type.
[[nodiscard]] at::ScalarType scalar_type_of(DType type);

/// The units a segment uses, each once, ascending.
[[nodiscard]] std::vector<std::size_t> units_of(const SegmentSpec& segment);

/// Fills out[0, end-begin) with the elements [begin, end) (row-major, fp32) of a parameter's
/// initial value. Called from pool threads, several at once for different parameters; each rank
/// asks only for what it owns.
using ParameterSource = std::function<void(const ParameterSpec& parameter, std::int64_t begin,
                                           std::int64_t end, float* out)>;

/// Heads of attention: ranks that share rows attend with some of them each.
struct HeadCounts {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
};

struct Model {
  std::vector<UnitSpec> units;
  std::vector<SegmentSpec> segments;
  ParameterSource source;
  /// Heads of a model whose segments can compute a part of each row (Batch::part).
  std::optional<HeadCounts> heads = std::nullopt;
};

}  // namespace tandem
