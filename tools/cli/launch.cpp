// tools/cli/launch.cpp — `tandem launch -n N [--log_dir D] -- PROGRAM ARGS...`
#include <algorithm>
#include <string_view>

#include <CLI/CLI.hpp>

#include "examples/support/program.hpp"
#include "runtime/util/error.hpp"
#include "tools/cli/commands.hpp"
#include "tools/launch/launcher.hpp"

namespace tandem {

int run_launch(int argc, char** argv) {
  LaunchOptions options;
  double grace_s = 30;
  CLI::App app(
      "tandem launch -n N [flags] -- PROGRAM ARGS...\n"
      "Starts N ranks of a program on this host, and ends them all when one fails.",
      "tandem launch");
  app.add_option("-n,--ranks", options.ranks, "how many ranks")->required();
  app.add_option("--log_dir", options.log_dir,
                 "also write each rank's lines to DIR/rank_N.log, and after a failure its last "
                 "operations to DIR/flight_rank_N.txt");
  app.add_flag("--bind_cores_to_rank", options.bind_cores_to_rank,
               "give each rank cores of its own");
  app.add_option("--grace_s", grace_s, "seconds between asking the ranks to end and killing them")
      ->capture_default_str();

  char** const end = argv + argc;
  char** const boundary =
      std::find_if(argv, end, [](const char* one) { return std::string_view(one) == "--"; });
  if (const auto done = parse_command_line(app, static_cast<int>(boundary - argv), argv)) {
    return *done;
  }
  options.command.assign(boundary == end ? end : boundary + 1, end);
  if (options.command.empty()) {
    throw user_error("flags", "launch has no program; give it behind --: launch -n 2 -- PROGRAM");
  }
  if (options.ranks < 1 || options.ranks > 1024) {
    throw user_error("flags", "-n is {}; it takes 1 to 1024 ranks", options.ranks);
  }
  if (!(grace_s >= 0) || grace_s > 1e6) {
    throw user_error("flags", "--grace_s is {}; it takes seconds from 0 on", grace_s);
  }
  options.grace =
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(grace_s));
  return launch(options);
}

}  // namespace tandem
