// `tandem config FILE.json`: the resolved configuration, and what becomes of every key in the file.
#include "engine/config/config.hpp"

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "examples/support/program.hpp"
#include "tools/cli/commands.hpp"

namespace tandem {

int run_config(int argc, char** argv) {
  CLI::App app("Checks a DeepSpeed JSON; prints the resolved values, then one line per key given",
               "tandem config");
  std::string file;
  std::int64_t world_size = 1;
  app.add_option("FILE", file, "the DeepSpeed JSON")->required();
  app.add_option("--world_size", world_size, "number of ranks to solve the batch sizes for")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const Config config = load_config(file, world_size);
  fmt::print("{}\n", resolved_json(config));
  for (const std::string& line : report_lines(config)) {
    fmt::print("{}\n", line);
  }
  return 0;
}

}  // namespace tandem
