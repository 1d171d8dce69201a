// tests/support/process/paths.hpp — the tree whose tests these are, and the programs of its build.
// Their folders are compiled into paths.cpp alone, so that the objects of all other tests are equal
// in each clone.
#pragma once

#include <string>
#include <string_view>

namespace tandem::test {

/// Absolute, without a slash at the end.
[[nodiscard]] std::string source_dir();
[[nodiscard]] std::string bin_dir();
[[nodiscard]] inline std::string source_path(std::string_view name) {
  return source_dir().append("/").append(name);
}
[[nodiscard]] inline std::string program_path(std::string_view name) {
  return bin_dir().append("/").append(name);
}

}  // namespace tandem::test
