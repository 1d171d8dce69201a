// `tandem report RUN...`: one HTML page of what runs left in their folders.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "runtime/util/one_line.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"
#include "trainer/report/run_report.hpp"

namespace tandem {

int run_report(int argc, char** argv) {
  CLI::App app("One HTML page of runs: curves, overlap, memory, config keys", "tandem report");
  std::vector<std::string> runs;
  std::string output;
  app.add_option("RUN", runs, "folders of runs (--output_dir), laid over each other")->required();
  app.add_option("--output", output,
                 "The page [RUN/report.html; of several runs report.html, here]");
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  if (output.empty()) {
    output = runs.size() == 1 ? std::filesystem::path(runs[0]) / "report.html" : "report.html";
  }
  write_report({runs.begin(), runs.end()}, output);
  fmt::print("{}\n", one_line(output));
  return 0;
}

}  // namespace tandem
