#include "engine/layout/muon_matrices.hpp"

#include <string>

namespace tandem {

bool is_orthogonalized(const ParameterSpec& parameter) {
  const auto has = [&](const char* word) { return parameter.name.find(word) != std::string::npos; };
  return !parameter.frozen && parameter.shape.size() >= 2 && parameter.numel() > 0 &&
         !has("embed") && !has("lm_head");
}

MuonMatrices matrices_of(const ParameterSpec& parameter) {
  const auto elements = static_cast<std::size_t>(parameter.numel());
  const std::size_t at = parameter.shape.size() == 3 ? 1 : 0;
  const auto rows = static_cast<std::size_t>(parameter.shape[at]);
  const auto count = at == 1 ? static_cast<std::size_t>(parameter.shape[0]) : 1;
  return {.count = count, .shape = {.rows = rows, .columns = elements / count / rows}};
}

}  // namespace tandem
