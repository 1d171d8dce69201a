// engine/types/model.hpp — the engine's description of a model: units of parameters, and segments
// that use them in order.
//
// A *unit* is a list of parameters that lie in one flat block: it is gathered, reduced and updated
// as one. A *segment* is a plain function of weights and activations (embedding, one layer, head).
// Segments run in order; the boundary between two of them is one activation tensor, detached, so
// the engine drives each segment's backward itself. A weight may be used by several segments (tied
// embeddings): its unit is then gathered for each of them. A Segment (engine/tensors/segment.hpp)
// computes a segment with tensors; plans and the schedule use only the shapes here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/kernels/dtype.hpp"

namespace tandem {

class Segment;

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
  /// The number of experts; the parameters have one run of elements for each, all alike. Every run
  /// begins at a multiple of the optimizer's norm tiles and scale groups.
  std::int64_t experts = 1;
  /// Expert-parallel size: the number of slices that the experts are cut into. The first
  /// world / ep_size ranks hold the first slice, and so on; one rank of each slice forms an
  /// exchange group. A segment then sees the runs of its own slice, once for each rank of its
  /// group:
  ///   run j * (experts / ep_size) + e
  /// is the slice's expert e, with the gradient of what was exchanged with the group's rank j.
  /// Gradients of all ranks are added in rank order, as if every rank had all experts.
  std::int64_t ep_size = 1;
  /// For units that are small beside the unit with which they are used (adapters): the weights stay
  /// gathered on every rank at every stage, so that the other units need no second slot. Not
  /// possible with ep_size above 1.
  bool stays_gathered = false;

  [[nodiscard]] std::int64_t numel() const noexcept;
  /// Whether all parameters are frozen: then the unit is neither reduced nor updated.
  [[nodiscard]] bool frozen() const noexcept;
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
  /// [weight] How often a token is multiplied with its elements: for a convolution the number of
  /// positions, for a look-up 0; empty: once.
  std::vector<std::int64_t> uses = {};
  // The component of its parameters' names that names the attention module; the same for the
  // experts' module.
  std::string attention_module = {};
  std::string experts_module = {};
  /// Replaces the estimate: returns the seconds of a visit, recomputation included. Compute lane.
  std::function<double(bool is_backward)> seconds = {};
};

/// The properties of a micro-batch on which memory depends.
struct BatchShape {
  std::int64_t rows = 1;    // of one rank
  std::int64_t length = 1;  // tokens of a row; 1 where there are none
  DType type = DType::kF32;
  int threads = 1;           // of the compute lane
  bool accelerator = false;  // computed there: kernels need no packed copies in host memory
  bool packed = false;       // rows hold several documents (Batch::positions)
  std::int64_t sharers = 1;  // ranks that share each row (Batch::part)
  // Token tiles in a rank's part of a row: sums over tokens are made tile by tile (TokenTiles); 0:
  // one sum.
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
  // null in a description (models/causal_lm.hpp), which only plans use
  std::shared_ptr<const Segment> run;
  std::function<ActivationBytes(const BatchShape&)> activations;  // empty: not known
  SegmentCost cost;
  /// Its operations are too small for several threads: the lane computes them on its own thread
  /// alone, which also keeps the bits of sums that depend on the number of threads.
  bool one_thread = false;
};

/// The units a segment uses, each once, ascending.
[[nodiscard]] std::vector<std::size_t> units_of(const SegmentSpec& segment);

/// Fills out[0, end-begin) with the elements [begin, end) (row-major, fp32) of a parameter's
/// initial value. Called from pool threads, several at once for different parameters; each rank
/// asks only for elements that it owns.
using ParameterSource = std::function<void(const ParameterSpec& parameter, std::int64_t begin,
                                           std::int64_t end, float* out)>;

/// Numbers of attention heads: ranks that share rows compute some of the heads each.
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
