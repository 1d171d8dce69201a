// actors/kernels/update/direction.hpp — the first half of updates that depend on a whole tensor
// (LAMB, Muon): updates the moments, and overwrites the gradient with a direction.
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
// The caller does the work between this and the second half (an AlongStep of optimizer_step.hpp):
// LAMB's trust ratio is clamp(|p| / |u|), 1 where either norm is 0; Muon orthogonalises u, matrix
// by matrix (orthogonalize.hpp). LAMB: You et al. 2020 in the form of DeepSpeed's FusedLamb, whose
// ratio has no bias correction (the learning rate is multiplied by it). Muon: Jordan 2024, in the
// form of DeepSpeed, whose momentum is an average.
// Invariant: the bits are the same for every SIMD target, chunking and number of ranks, as in
// optimizer_step.hpp. A tensor's squares are summed in double within each norm tile of the shard,
// and these sums are added exactly; shards begin at tiles.
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

/// monostate: the range's update needs no direction, and its gradient is not changed.
using DirectionStep = std::variant<std::monostate, LambDirection, MuonDirection>;

[[nodiscard]] DirectionStep direction_step(const UpdateConfig& config, double gradient_scale);

/// The part of a range in one chunk, with a pass's sums of squares.
struct DirectionPiece {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t range = 0;  // of the unit
  // Sums of squares. LAMB: of the weights before the update, and of the direction. Muon:
  // add_squares() sets `directions`.
  ExactSum weights;
  ExactSum directions;
};

/// The memory and the pieces of one unit's direction.
struct Direction {
  float* values = nullptr;  // the unit's gradient, which the direction overwrites
  std::vector<DirectionPiece> pieces;

  /// Cuts the unit's `ranges` at multiples of `chunk_elements`, which is a multiple of kNormTile.
  [[nodiscard]] static Direction of(std::span<const UpdateRange> ranges, float* values,
                                    std::size_t chunk_elements);
};

/// Runs the first half for the elements [begin, end); both are chunk boundaries or the shard's end.
/// `steps` is indexed by UpdateRange::group. Any thread; disjoint ranges may run at the same time.
void write_direction(const UpdatedUnit& unit, const DirectionStep* steps, Direction& direction,
                     std::size_t begin, std::size_t end);

/// Sets piece.directions to the sum of squares of the piece's direction. Any thread; different
/// pieces may run at the same time.
void add_squares(const Direction& direction, DirectionPiece& piece);

/// Returns LAMB's trust ratio of a tensor, given the sums of squares of the whole tensor.
[[nodiscard]] double trust_ratio(const UpdateConfig& config, const ExactSum& weights,
                                 const ExactSum& direction) noexcept;

}  // namespace tandem
