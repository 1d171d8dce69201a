// models/name_pattern.hpp — a regular expression that a user or a config gives for names of
// parameters or modules, matched by PCRE2 as Python's re does.
//
// Invariant: a match takes a bounded number of steps; a pattern that takes more is an Error.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

class NamePattern {
 public:
  struct Options {
    std::string_view where;  // in errors, as is `what`: "the pattern of what is frozen"
    std::string_view what;
    bool at_begin = false;  // re.match() instead of re.search()
  };

  /// Throws user_error if the pattern does not compile or is too long.
  NamePattern(const std::string& text, const Options& options);
  [[nodiscard]] bool is_in(std::string_view name) const;

 private:
  struct Parts;
  std::string where_;
  std::string what_;
  std::string text_;
  std::shared_ptr<const Parts> parts_;
};

}  // namespace tandem
