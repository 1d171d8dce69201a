// bench/own_flags.hpp — a benchmark's own flags, taken out before Google Benchmark looks at the rest.
#pragma once

#include <string_view>

namespace tandem::bench {

/// The value of the last argument that begins with `flag` ("--elements="), and no such argument is left; null: there was
/// none.
inline const char* take_flag(int& argc, char** argv, std::string_view flag) {
  const char* value = nullptr;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(flag)) {
      value = argv[i] + flag.size();
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return value;
}

}  // namespace tandem::bench
