// tests/support/python.hpp — the Python beside the project, whose libraries some tests compare
// with.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

namespace tandem::test {

inline constexpr const char* kPython = TANDEM_SOURCE_DIR "/.venv/bin/python";

/// Whether .venv has the module. Finds it without importing it, which takes seconds for the large
/// ones.
inline bool python_has(std::string_view module) {
  const std::string script = "import importlib.util as u, sys; sys.exit(u.find_spec(\"" +
                             std::string(module) + "\") is None)";
  return std::system(("'" + std::string(kPython) + "' -c '" + script + "' 2>/dev/null").c_str()) ==
         0;
}

}  // namespace tandem::test
