// tests/support/io_support.hpp — scratch folders, expected errors and foreign programs, for tests
// of files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/python.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem::test {

namespace fs = std::filesystem;

/// A folder of its own, removed at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "tandem-io-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() { fs::remove_all(path_); }
  [[nodiscard]] const fs::path& path() const { return path_; }
  fs::path operator/(std::string_view name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline void put(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string get(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Runs `action`, which must throw an Error: one line with every one of `parts` in it, and this
/// exit code.
template <class Action>
void expect_error(Action&& action, std::initializer_list<std::string_view> parts,
                  ExitCode code = ExitCode::kUserInput) {
  const std::string text = error_text(action, code);
  EXPECT_THAT(text, ::testing::HasSubstr("; ")) << "no advice";
  for (const std::string_view part : parts) {
    EXPECT_THAT(text, ::testing::HasSubstr(std::string(part)));
  }
}

/// The folder of reference data that may lie beside the repository.
inline fs::path shared(std::string_view name) {
  return fs::path(test::source_dir()) / "../shared" / name;
}

/// Skips the test where the reference data is absent.
#define TANDEM_NEEDS_SHARED(name)                                                 \
  if (!std::filesystem::exists(::tandem::test::shared(name))) {                   \
    GTEST_SKIP() << "the reference data ../shared/" << (name) << " is not there"; \
  }

/// Unpacks an .xz file; false if xz is not installed.
inline bool unpack_xz(const fs::path& from, const fs::path& to) {
  const std::string command = "xz -dc '" + from.string() + "' > '" + to.string() + "' 2>/dev/null";
  return std::system(command.c_str()) == 0;
}

/// The Python of the project's environment; empty if this user cannot start it.
inline std::string python() { return python_runs() ? kPython : std::string{}; }

/// Runs a Python script with arguments; true if it ends with 0. Its output goes to `output`.
inline bool run_python(const fs::path& scratch, std::string_view script,
                       const std::string& arguments, std::string* output) {
  put(scratch / "script.py", script);
  const fs::path log = scratch / "script.log";
  const std::string command = python() + " '" + (scratch / "script.py").string() + "' " +
                              arguments + " > '" + log.string() + "' 2>&1";
  const int status = std::system(command.c_str());
  *output = get(log);
  return status == 0;
}

/// Skips the test where the environment or one of the modules is absent.
#define TANDEM_NEEDS_PYTHON(scratch, modules)                                              \
  {                                                                                        \
    std::string python_log;                                                                \
    if (::tandem::test::python().empty() ||                                                \
        !::tandem::test::run_python((scratch), "import " modules "\n", "", &python_log)) { \
      GTEST_SKIP() << "no .venv with " modules ": run ./tandem setup";                     \
    }                                                                                      \
  }

}  // namespace tandem::test
