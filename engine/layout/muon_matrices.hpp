// engine/layout/muon_matrices.hpp — which parameters Muon orthogonalises, and as which matrices;
// the others take AdamW.
//
// DeepSpeed's rule (its use_muon): two dimensions or more, and a name with neither "embed" nor
// "lm_head". A parameter is what the Hugging Face checkpoint has, so q, k and v are a matrix each
// where the checkpoint has three, and one where it has them joined. With three dimensions each
// slice along the first is a matrix (stacked experts); with four or more (filters) all dimensions
// after the first are the columns. Pure: any thread.
#pragma once

#include <cstddef>

#include "actors/optimizer/orthogonalize.hpp"
#include "engine/types/model.hpp"

namespace tandem {

[[nodiscard]] bool is_orthogonalized(const ParameterSpec& parameter);

/// `count` matrices of that shape, one after another.
struct MuonMatrices {
  std::size_t count = 0;
  MatrixShape shape;
};

/// Returns the matrices of a parameter that is orthogonalized.
[[nodiscard]] MuonMatrices matrices_of(const ParameterSpec& parameter);

/// Returns the parameter's group in UpdateRange and TrainStep::Update: Muon has two for each group
/// of the user.
[[nodiscard]] inline std::size_t muon_group(const ParameterSpec& parameter) {
  return 2 * parameter.group + (is_orthogonalized(parameter) ? 0 : 1);
}

}  // namespace tandem
