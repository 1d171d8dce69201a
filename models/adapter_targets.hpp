// models/adapter_targets.hpp — the modules that an adapter_config.json allows adapters on, by
// PEFT's rules. PEFT passes over tensors of other modules without a word.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/storage/json.hpp"
#include "models/name_pattern.hpp"

namespace tandem {

class AdapterTargets {
 public:
  AdapterTargets() = default;
  explicit AdapterTargets(const JsonValue& root);

  /// Whether target_modules says which modules have adapters. Where it is null PEFT has a list of
  /// its own for each model.
  [[nodiscard]] bool are_given() const noexcept { return all_linear_ || targets_.is_given(); }
  /// Whether target_modules is "all-linear", which means no embedding and no head.
  [[nodiscard]] bool all_linear() const noexcept { return all_linear_; }
  /// Returns the name of the config's field that leaves the module out; empty if none does.
  [[nodiscard]] std::string_view left_out_by(std::string_view module) const;

 private:
  /// The value of a field: a pattern for whole names, or a list of ends of names; neither if the
  /// field leaves no module out.
  struct Names {
    std::optional<NamePattern> pattern;
    std::vector<std::string> ends;
    [[nodiscard]] bool is_given() const { return pattern || !ends.empty(); }
    [[nodiscard]] bool has(std::string_view module) const;
  };

  static Names names_at(const JsonValue& root, std::string_view key);
  [[nodiscard]] std::optional<std::int64_t> layer_of(std::string_view module) const;

  bool all_linear_ = false;
  Names targets_;
  Names excluded_;
  std::vector<std::int64_t> layers_;
  std::vector<std::string> layer_lists_;  // names of the lists that layers are counted in
};

}  // namespace tandem
