// bench/program.hpp — what the programs of the suites share: flags of their own, the report, the
// run.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

namespace tandem::bench {

/// The value of the last argument that begins with `flag` ("--elements="; `--elements N` is the
/// same), all of which are taken out before Google Benchmark looks at the rest; null: there was
/// none.
inline const char* take_flag(int& argc, char** argv, std::string_view flag) {
  const char* value = nullptr;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(flag)) {
      value = argv[i] + flag.size();
    } else if (argv[i] == flag.substr(0, flag.size() - 1) && i + 1 < argc) {
      value = argv[++i];
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return value;
}

/// The reporter that --benchmark_format asks for, without one line of its header: "Library was
/// built as DEBUG. Timings may be affected." Debian builds libbenchmark without NDEBUG, so the
/// library's own asserts are on. They stand where a measurement begins, pauses and ends; the loop
/// that is timed is inlined into our programs, which are built with NDEBUG.
/// `--benchmark_format=json` still says "library_build_type": "debug".
class Reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override {
    std::stringstream header;
    reporter_->SetOutputStream(&GetOutputStream());
    reporter_->SetErrorStream(&header);
    const bool go_on = reporter_->ReportContext(context);
    reporter_->SetErrorStream(&GetErrorStream());
    for (std::string line; std::getline(header, line);) {
      if (line.find("Library was built as DEBUG") == std::string::npos) {
        GetErrorStream() << line << "\n";
      }
    }
    return go_on;
  }
  void ReportRuns(const std::vector<Run>& runs) override { reporter_->ReportRuns(runs); }
  void Finalize() override { reporter_->Finalize(); }

 private:
  std::unique_ptr<BenchmarkReporter> reporter_{benchmark::CreateDefaultDisplayReporter()};
};

/// Runs what is registered, by Google Benchmark's flags; the program's exit code.
inline int run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  Reporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::Shutdown();
  return 0;
}

}  // namespace tandem::bench
