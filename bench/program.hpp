// bench/program.hpp — what the programs of the suites share: flags of their own, and the run.
#pragma once

#include <string_view>

#include <benchmark/benchmark.h>

namespace tandem::bench {

/// The value of the last argument that begins with `flag` ("--elements="), all of which are taken
/// out before Google Benchmark looks at the rest; null: there was none.
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

/// Runs what is registered, by Google Benchmark's flags; the program's exit code.
inline int run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace tandem::bench
