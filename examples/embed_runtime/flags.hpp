// examples/embed_runtime/flags.hpp — the program's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

struct Flags {
  std::string file;
  std::uint64_t generate = 0;
  double deadline_s = 0;  // 0: none
  int threads = 1;
  bool skip_bad = false;
  std::string progress = "auto";
};

/// Nothing when the program has nothing more to do (--help, --version). Throws tandem::Error for a
/// wrong command line.
[[nodiscard]] std::optional<Flags> parse_flags(int argc, char** argv);
