// tests/support/process/warm_python.hpp — one Python with torch for all programs that a test suite
// starts.
//
// While a WarmPython lives, $TANDEM_PYTHON names tests/support/process/warm_python.py, through
// which each start is a fork of a Python that has torch. Where .venv has no torch, nothing changes.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include <sys/stat.h>

#include "tests/support/io_support.hpp"

namespace tandem::test {

class WarmPython {
 public:
  WarmPython() {
    const std::string script = source_path("tests/support/process/warm_python.py");
    const std::string socket = (folder_ / "socket").string();
    const std::string ready = (folder_ / "ready").string();
    if (python().empty() || ::mkfifo(ready.c_str(), 0600) != 0) {
      return;
    }
    ::setenv("TANDEM_WARM_PYTHON", socket.c_str(), 1);
    const std::string command =
        "exec '" + python() + "' -I '" + script + "' --serve > '" + ready + "' 2>/dev/null";
    server_ = ::popen(command.c_str(), "we");
    std::string line;
    std::getline(std::ifstream(ready), line);  // empty where there is no torch
    if (line == "ready") {
      ::setenv("TANDEM_PYTHON", script.c_str(), 1);
    }
  }
  WarmPython(const WarmPython&) = delete;
  WarmPython& operator=(const WarmPython&) = delete;
  ~WarmPython() {
    ::unsetenv("TANDEM_PYTHON");
    ::unsetenv("TANDEM_WARM_PYTHON");
    if (server_ != nullptr) {
      ::pclose(server_);  // its standard input ends, and so does it
    }
  }

 private:
  TempDir folder_;
  FILE* server_ = nullptr;
};

/// A suite whose tests share one.
template <class Fixture>
class WithWarmPython : public Fixture {
 protected:
  static void SetUpTestSuite() { warm_ = std::make_unique<WarmPython>(); }
  static void TearDownTestSuite() { warm_.reset(); }

 private:
  inline static std::unique_ptr<WarmPython> warm_;
};

}  // namespace tandem::test
