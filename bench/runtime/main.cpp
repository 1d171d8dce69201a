// The runtime's benchmarks. `--compare` adds the peers; a closing table says how they stand to us.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/program.hpp"
#include "bench/runtime/peers.hpp"

namespace {

// Prints as usual, and keeps the quickest repetition of each case.
class Reporter : public tandem::bench::Reporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    tandem::bench::Reporter::ReportRuns(runs);
    for (const Run& run : runs) {
      const auto rate = run.counters.find("items_per_second");
      if (run.run_type == Run::RT_Iteration && rate != run.counters.end()) {
        const std::string& name = run.run_name.function_name;
        const std::size_t slash = name.rfind('/');
        const double ns = 1e9 / rate->second.value;
        std::map<std::string, double>& libraries = cases_[name.substr(0, slash)];
        const auto [at, is_new] = libraries.emplace(name.substr(slash + 1), ns);
        at->second = std::min(at->second, ns);
        if (std::find(order_.begin(), order_.end(), name.substr(0, slash)) == order_.end()) {
          order_.push_back(name.substr(0, slash));
        }
      }
    }
  }

  void print_table() {
    std::printf("\n%-42s %12s   %s\n", "ns per operation, quickest repetition", "Tandem",
                "peers (times ours)");
    for (const std::string& name : order_) {
      const auto ours = cases_[name].find("Tandem");
      if (ours == cases_[name].end()) {
        continue;
      }
      std::printf("%-42s %12.1f  ", name.c_str(), ours->second);
      for (const auto& [library, ns] : cases_[name]) {
        if (library != "Tandem") {
          std::printf(" %s %.1f (%.1fx) ", library.c_str(), ns, ns / ours->second);
        }
      }
      std::printf("\n");
    }
  }

 private:
  std::map<std::string, std::map<std::string, double>> cases_;
  std::vector<std::string> order_;
};

}  // namespace

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Suite suite(argc, argv, "messages, timers, tasks and awaits of the runtime");
  const bool compare = suite.is_set("--compare", "runs Asio and CAF, too");
  const bool console = std::none_of(argv, argv + argc, [](const char* arg) {
    const std::string_view flag(arg);
    return flag.starts_with("--benchmark_format=") && !flag.ends_with("=console");
  });
  suite.begin();
  register_runtime();
  register_latency();
  register_stops();
  if (compare) {
    register_asio();
    if (!register_caf()) {
      std::printf("[bench] CAF is absent: install libcaf-dev and build again to compare with it\n");
    }
  }
  ::Reporter reporter;
  const int code = suite.run(reporter);
  if (console) {
    reporter.print_table();
  }
  return code;
}
