#include "engine/layout/decay_groups.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "runtime/util/split.hpp"

namespace tandem {

bool is_norm_or_bias(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array kAnywhere = {"bias", "layernorm", "rmsnorm"};
  if (std::ranges::any_of(
          kAnywhere, [&](const char* word) { return lower.find(word) != std::string::npos; })) {
    return true;
  }
  return std::ranges::any_of(split(lower, '.'), [](std::string_view part) {
    return part == "norm" || part.ends_with("_norm") || part.starts_with("ln_");
  });
}

}  // namespace tandem
