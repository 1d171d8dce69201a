// launch_alone launch FLAGS... -- PROGRAM ARGS... — the launcher, for its tests.
#include <algorithm>
#include <cstdio>
#include <string_view>

#include <CLI/CLI.hpp>

#include "runtime/util/error.hpp"
#include "tools/launch/launch_flags.hpp"

int main(int argc, char** argv) {
  tandem::LaunchFlags flags;
  CLI::App app("the launcher alone", "launch_alone");
  flags.add_to(app);
  char** const end = argv + argc;
  char** const boundary =
      std::find_if(argv, end, [](const char* one) { return std::string_view(one) == "--"; });
  try {
    app.parse(static_cast<int>(boundary - argv) - 1, argv + 1);
    return tandem::run_launch(flags, {boundary == end ? end : boundary + 1, end});
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const tandem::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.code());
  }
}
