// models/foreign/converter.hpp — tools/convert/ in a Python process of its own: torch reads and
// writes torch's files.
//
// The Python is $TANDEM_PYTHON, else the one of the tree's .venv, else python3 of the PATH. The
// modules lie beside the program (share/tandem/tools of an installation, tools/ of a tree), else in
// $TANDEM_TOOLS. Neither PYTHONPATH nor the current folder is searched.
// Invariant: every end of the process other than success becomes one Error of one line.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

/// One thread at a time.
class Converter {
 public:
  /// Starts `convert ARGUMENTS...`; the last argument is the path that errors name. Throws an Error
  /// (kUserInput) if there is no Python, or if the modules are not there.
  explicit Converter(std::vector<std::string> arguments);
  Converter(const Converter&) = delete;
  Converter& operator=(const Converter&) = delete;
  ~Converter();  // ends the process if finish() was not called

  /// Appends to its standard input, and blocks while the process does not read. Throws its error if
  /// it has ended.
  void write(std::span<const std::byte> bytes);

  /// The error for a process that succeeds without having done its work.
  [[nodiscard]] Error not_taken() const;

  /// Ends its standard input, waits for the process, and returns its output. Throws its error.
  std::string finish();

 private:
  [[nodiscard]] Error error_of(int status) const;

  std::string path_;
  std::string python_;
  OwnedDescriptor input_;
  OwnedDescriptor output_;
  OwnedDescriptor said_;
  pid_t process_ = -1;
};

}  // namespace tandem
