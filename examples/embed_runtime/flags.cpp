#include "flags.hpp"

#include <array>
#include <map>
#include <string_view>

#include <CLI/CLI.hpp>
#include <tandem/runtime/system/machine.hpp>
#include <tandem/runtime/util/error.hpp>
#include <tandem/runtime/util/nearest.hpp>

std::optional<Flags> parse_flags(int argc, char** argv) {
  Flags flags{.threads = tandem::machine::usable_cpus()};
  CLI::App app("Statistics of a request log, per route: an example of the actor runtime by itself.",
               "embed_runtime");
  app.set_version_flag("--version", "embed_runtime " TANDEM_VERSION);
  app.add_option("FILE", flags.file, "log with lines `time_ms,route,status,bytes,latency_us`")
      ->required();
  app.add_option("--generate", flags.generate, "first write FILE, with that many made-up lines");
  app.add_option("--deadline", flags.deadline_s, "stop after this time, e.g. 2s or 500ms")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{{"ms", 1e-3}, {"s", 1.0}}))
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", flags.threads, "of the parser's pool")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--skip_bad", flags.skip_bad, "count lines that cannot be read, and go on");
  app.add_option("--progress", flags.progress, "auto: on a terminal")
      ->check(CLI::IsMember({"auto", "lines", "off"}))
      ->capture_default_str();
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    app.exit(done);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw tandem::user_error("flags", "{}; --help lists the flags", error.what());
  }
  if (!app.remaining().empty()) {
    constexpr std::array<std::string_view, 7> kNames = {
        "--generate", "--deadline", "--threads", "--skip_bad", "--progress", "--help", "--version"};
    throw tandem::user_error("flags", "unknown argument {}; {}", app.remaining().front(),
                             tandem::name_hint(app.remaining().front(), kNames));
  }
  return flags;
}
