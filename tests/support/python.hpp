// tests/support/python.hpp — the Python beside the project, whose libraries some tests compare
// with.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

#include "tests/support/process/paths.hpp"

namespace tandem::test {

inline const std::string kPython = test::source_path(".venv/bin/python");

/// Returns whether this user may start it: it may be absent, or lie in a folder of another user.
inline bool python_runs() { return ::access(kPython.c_str(), X_OK) == 0; }

/// Whether .venv has the module. Finds it without importing it, which takes seconds for the large
/// ones.
inline bool python_has(std::string_view module) {
  const std::string script = "import importlib.util as u, sys; sys.exit(u.find_spec(\"" +
                             std::string(module) + "\") is None)";
  return std::system(("'" + kPython + "' -c '" + script + "' 2>/dev/null").c_str()) == 0;
}

}  // namespace tandem::test
