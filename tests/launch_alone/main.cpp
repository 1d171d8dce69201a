// launch_alone launch FLAGS... -- PROGRAM ARGS... — the launcher, for its tests.
// launch_alone blame RANK — a rank that ends because of another one, and writes that down.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <CLI/CLI.hpp>

#include "runtime/flight.hpp"
#include "runtime/util/error.hpp"
#include "tools/launch/launch_flags.hpp"

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "blame") {
    tandem::flight::blame(std::strtoull(argv[2], nullptr, 10));
    return static_cast<int>(tandem::ExitCode::kPeer);
  }
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
