// actors/kernels/update/direction.hpp — the first half of an update that needs more than its
// element (LAMB, Muon): moments move on, and a direction is written where the gradient was.
//
// gradient (fp32) -> times gradient_scale -> moments in place -> direction u, element by element:
//
//   LAMB   m' = beta1 * m + (1 - beta1) * g
//          v' = beta2 * v + ((1 - beta2) * g) * g
//          u  = m' / (sqrt(v') + eps) + weight_decay * p           [or m' / sqrt(v' + eps) + ...]
//          beside the exact sums of squares of p and u, tensor by tensor
//   Muon   m' = momentum * m + (1 - momentum) * g
//          u  = nesterov ? (1 - momentum) * g + momentum * m' : m'
//
// The work between this and the second half (an AlongStep of optimizer_step.hpp) is the caller's:
// LAMB's trust ratio is clamp(|p| / |u|), 1 where either norm is 0; Muon orthogonalises u, matrix
// by matrix (orthogonalize.hpp).
// LAMB: You et al. 2020 in the form of DeepSpeed's FusedLamb, whose ratio knows no bias correction
// (that multiplies the learning rate). Muon: Jordan 2024, in the form of DeepSpeed, whose momentum
// is an average.
// Invariant: same bits for every SIMD target, chunking and number of ranks, as optimizer_step.hpp.
// A tensor's squares are summed in double over what lies between two multiples of kNormBlock of the
// shard, and these sums exactly; shards begin at such multiples.
#pragma once

#include <cstddef>
#include <span>
#include <variant>
#include <vector>

#include "actors/kernels/exact_sum.hpp"
#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/kernels/update/update_pass.hpp"

namespace tandem {

// The constants of one step, computed in double and rounded once.

struct LambDirection {
  float gradient_scale = 1.0F;
  float beta1 = 0.0F;
  float one_minus_beta1 = 0.0F;
  float beta2 = 0.0F;
  float one_minus_beta2 = 0.0F;
  float eps = 0.0F;
  float decay = 0.0F;
  bool eps_inside_sqrt = false;
};

struct MuonDirection {
  float gradient_scale = 1.0F;
  float momentum = 0.0F;
  float one_minus_momentum = 0.0F;
  bool nesterov = true;
};

/// Nothing: the range's update needs no direction, and its gradient stays as it is.
using DirectionStep = std::variant<std::monostate, LambDirection, MuonDirection>;

[[nodiscard]] DirectionStep direction_step(const UpdateConfig& config, double gradient_scale);

/// The part of a range that lies in one chunk; what a pass finds there.
struct DirectionPiece {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t range = 0;  // of the unit
  // LAMB: of the weights before the update and of the direction. Muon: add_squares() fills in the
  // second.
  ExactSum weights;
  ExactSum directions;
};

/// The direction of one unit's shard.
struct Direction {
  float* values = nullptr;  // the unit's gradient, which it overwrites
  std::vector<DirectionPiece> pieces;

  /// `ranges` of the unit, cut at the multiples of `chunk_elements`, itself one of kNormBlock.
  [[nodiscard]] static Direction of(std::span<const UpdateRange> ranges, float* values,
                                    std::size_t chunk_elements);
};

/// The pass over the elements [begin, end), both chunk boundaries or the shard's end. `steps`:
/// [UpdateRange::group]. Any thread; disjoint ranges may run at the same time.
void write_direction(const UpdatedUnit& unit, const DirectionStep* steps, Direction& direction,
                     std::size_t begin, std::size_t end);

/// piece.directions = the sum of squares of the direction's values there. Any thread, pieces apart.
void add_squares(const Direction& direction, DirectionPiece& piece);

/// LAMB's ratio of a tensor, from the sums of squares of all of it.
[[nodiscard]] double trust_ratio(const UpdateConfig& config, const ExactSum& weights,
                                 const ExactSum& direction) noexcept;

}  // namespace tandem
