#include "trainer/program/notes.hpp"

#include <array>
#include <cstdio>

#include <fmt/format.h>

#include "models/hub/hub_paths.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {

void print_notes(std::span<const std::string> notes) {
  for (const std::string& note : notes) {
    fmt::print(stderr, "note: {}\n", one_line(note));
  }
}

void print_resolved(const std::string& name, const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(name, ignored)) {
    print_notes(std::array{resolved_text(name, path)});
  }
}

}  // namespace tandem
