// launch_alone RANKS GRACE_MS LOG_DIR|- bind|free PROGRAM ARGS... — the launcher, for its tests.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "runtime/util/error.hpp"
#include "tools/launch/launcher.hpp"

int main(int argc, char** argv) {
  if (argc < 6) {
    return 2;
  }
  tandem::LaunchOptions options;
  options.ranks = std::atoi(argv[1]);
  options.grace = std::chrono::milliseconds(std::atoi(argv[2]));
  options.log_dir = std::string_view(argv[3]) == "-" ? "" : argv[3];
  options.bind_cores_to_rank = std::string_view(argv[4]) == "bind";
  options.command.assign(argv + 5, argv + argc);
  try {
    return tandem::launch(options);
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
