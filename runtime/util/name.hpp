// runtime/util/name.hpp — names of tasks, actors and spans: plain pointers that live for ever.
//
// A literal costs nothing; a name made at run time is interned once (one lock and one look-up) and
// never freed, so use it only where there are few different names; they are counted. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem {

class Name {
 public:
  consteval Name(const char* literal) noexcept : text_(literal) {}  // NOLINT: converts on purpose
  Name(std::string_view text) : text_(intern(text)) {}              // NOLINT
  Name(const std::string& text) : text_(intern(text)) {}            // NOLINT

  [[nodiscard]] const char* c_str() const noexcept { return text_; }
  /// How many different names were made at run time so far, all of which are kept.
  [[nodiscard]] static std::size_t made_at_run_time();

 private:
  static const char* intern(std::string_view text);
  const char* text_;
};

}  // namespace tandem
