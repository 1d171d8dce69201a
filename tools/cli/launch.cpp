// tools/cli/launch.cpp — `tandem launch -n N | --hostfile F | --hosts a:2,b:2 -- PROGRAM ARGS...`
#include <algorithm>
#include <string_view>

#include <CLI/CLI.hpp>

#include "tools/cli/commands.hpp"
#include "tools/launch/launch_flags.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

int run_launch(int argc, char** argv) {
  LaunchFlags flags;
  CLI::App app(
      "tandem launch -n N | --hostfile F | --hosts a:2,b:2 [flags] -- PROGRAM ARGS...\n"
      "Starts ranks of a program on this host, or by ssh on several, and ends them all when one "
      "fails.",
      "tandem launch");
  flags.add_to(app);
  char** const end = argv + argc;
  char** const boundary =
      std::find_if(argv, end, [](const char* one) { return std::string_view(one) == "--"; });
  if (const auto done = parse_command_line(app, static_cast<int>(boundary - argv), argv)) {
    return *done;
  }
  return run_launch(flags, {boundary == end ? end : boundary + 1, end});
}

}  // namespace tandem
