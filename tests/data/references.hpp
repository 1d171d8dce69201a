// tests/data/references.hpp — the references of this tree (tests/data), which every clone has,
// and those of ../shared, which are larger and may be absent.
//
// A suite that the tree has a small reference for runs on that always, and on the large one where
// it is there. A test that only ../shared can feed skips without it (TANDEM_NEEDS_SHARED).
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <simdjson.h>

#include "tests/support/io_support.hpp"

namespace tandem::test {

inline fs::path own_reference(std::string_view name) {
  return fs::path(test::source_dir()) / "tests/data" / name;
}

/// Returns `own` of tests/data, and those of `others` in ../shared that are there.
inline std::vector<fs::path> references(std::initializer_list<std::string_view> own,
                                        std::initializer_list<std::string_view> others) {
  std::vector<fs::path> found;
  for (const std::string_view name : own) {
    found.push_back(own_reference(name));
  }
  for (const std::string_view name : others) {
    if (fs::exists(shared(name))) {
      found.push_back(shared(name));
    }
  }
  return found;
}

inline bool is_own(const fs::path& reference) {
  return reference.string().starts_with(own_reference("").string());
}

/// Returns the folder of the model that a reference was computed with.
inline fs::path checkpoint_of(const fs::path& reference, const simdjson::dom::element& expected) {
  std::string_view named;
  const bool is_named = expected["checkpoint"].get(named) == simdjson::SUCCESS;
  return reference / (is_named ? named : "checkpoint");
}

}  // namespace tandem::test
