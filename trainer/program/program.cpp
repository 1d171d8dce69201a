#include "trainer/program/program.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "engine/memory/memory_check.hpp"
#include "engine/types/version.hpp"
#include "runtime/system/limits.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/nearest.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/program/foreign_flags.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {
namespace {

/// torchrun shows the content of this file as the run's root cause.
void write_error_file(std::string_view message) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') {
    return;
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  JsonWriter json;
  json.begin_object().key("message").begin_object().field("message", message);
  json.key("extraInfo").begin_object().field("timestamp", std::to_string(seconds));
  json.end_object().end_object().end_object();
  std::ofstream(path) << json.text();
}

/// Where stderr is closed or full there is no place left to say that.
void print_line(std::string_view kind, std::string_view text) {
  std::fputs(fmt::format("{}: {}\n", kind, one_line(text)).c_str(), stderr);
  std::fflush(stderr);
}

int fail(std::string_view message, ExitCode code) {
  print_line("error", message);
  write_error_file(message);
  return static_cast<int>(code);
}

/// The first line of another library's exception: LibTorch's text goes on with a backtrace.
std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

int fail(const std::filesystem::filesystem_error& error) {
  const int number = error.code().value();
  const bool of_disk = number == ENOSPC || number == EDQUOT || number == EIO;
  return fail(
      fmt::format("[file] {}: {}; check the path", error.path1().string(), error.code().message()),
      of_disk ? ExitCode::kFailure : ExitCode::kUserInput);
}

/// A closed pipe and a file at its size limit are errors of the call that meets them (EPIPE, EFBIG)
/// and no reason to end the process.
void ignore_signals_of_writes() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// A file of ours must not become the standard output because that was closed.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) {
      (void)::open("/dev/null", O_RDWR);  // the least number that is free
    }
  }
}

/// The subcommand the command line got to.
const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      names.push_back("-" + name);
    }
  }
  return names;
}

/// Reports the first argument that no option takes; returns when there is none.
void reject_unknown(const CLI::App& app) {
  const CLI::App& at = innermost(app);
  const std::vector<std::string> extra = app.remaining(true);
  const auto flag =
      std::ranges::find_if(extra, [](const std::string& a) { return a.size() > 1 && a[0] == '-'; });
  if (flag != extra.end()) {
    const std::string name = flag->substr(0, flag->find('='));
    if (const std::string_view hint = foreign_flag_hint(name); !hint.empty()) {
      throw user_error("flags", "unknown flag {}; {}", name, hint);
    }
    const std::vector<std::string> names = flag_names(at);
    const std::vector<std::string_view> views(names.begin(), names.end());
    throw user_error(
        "flags", "unknown flag {}; {}", name,
        likely_name(name, views).empty() ? "--help lists the flags" : name_hint(name, views));
  }
  if (extra.empty()) {
    return;
  }
  std::vector<std::string> commands;
  for (const CLI::App* command : at.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
  }
  if (commands.empty()) {
    throw user_error("flags", "unexpected argument \"{}\"; --help lists the flags", extra.front());
  }
  const std::vector<std::string_view> views(commands.begin(), commands.end());
  throw user_error("flags", "unknown command \"{}\"; {}", extra.front(),
                   name_hint(extra.front(), views));
}

/// Names the kind of value that a flag takes.
std::string kind_of_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.starts_with("FLOAT")  ? "a number"
         : type.starts_with("UINT") ? "a whole number, 0 at least"
         : type.starts_with("INT")  ? "a whole number"
         : type.starts_with("BOOL") ? "true or false"
                                    : "a value";
}

/// Whether a message names this flag, not one that begins so.
bool names(std::string_view text, std::string_view flag) {
  const std::size_t at = text.find(flag);
  return at != std::string_view::npos &&
         (at + flag.size() == text.size() ||
          std::string_view(" :=,").find(text[at + flag.size()]) != std::string_view::npos);
}

/// Throws for the first flag that stands there too often, without a value, or with one of another
/// kind; returns where the parser found something else.
void reject_values(const CLI::App& app, const CLI::ParseError& error) {
  const bool counts = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  const bool converts = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  for (const CLI::Option* option : innermost(app).get_options()) {
    const std::string name = option->get_name();
    if (!name.starts_with("--") || !names(error.what(), name)) {
      continue;
    }
    const CLI::results_t& values = option->results();
    if (counts && values.size() > 1 && option->get_items_expected_max() == 1) {
      throw user_error("flags", "{} is given {} times, as {}; give it once", name, values.size(),
                       fmt::join(values, " and "));
    }
    if (counts && option->get_items_expected_min() > 0) {
      throw user_error("flags", "{} has no value behind it; it takes {}", name,
                       kind_of_value(*option));
    }
    if (const std::string_view hint =
            converts && !values.empty() ? foreign_value_hint(name, values.back()) : "";
        !hint.empty()) {
      throw user_error("flags", "{} is \"{}\"; {}", name, values.back(), hint);
    }
    if (converts && !values.empty()) {
      throw user_error("flags", "{} is \"{}\"; it takes {}", name, values.back(),
                       kind_of_value(*option));
    }
  }
}

/// One line, whatever CLI11 says.
std::string joined_lines(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

constexpr std::size_t kHelpColumns = 80;

/// At most `width` characters in a line where words allow it.
std::string wrapped(std::string_view text, std::size_t width) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const bool fits = column + word.size() < width;
    lines += lines.empty() ? "" : fits ? " " : "\n";
    column = fits ? column + 1 + word.size() : word.size();
    lines += word;
  }
  return lines;
}

/// --help fits a terminal of usual width.
class NarrowFormatter : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option), kHelpColumns - column_width_);
  }
};

}  // namespace

void print_warning(std::string_view text) { print_line("warning", text); }

int guarded_main(const std::function<int()>& body) {
  open_standard_streams();
  ignore_signals_of_writes();
  try {
    limits::require_files();
    return body();
  } catch (const DoesNotFit& error) {
    std::fputs(error.table().c_str(), stderr);
    return fail(error.what(), error.code());
  } catch (const Error& error) {
    return fail(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return fail("[memory] out of host memory; use smaller batches or a smaller model",
                ExitCode::kFailure);
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(error);
  } catch (const std::exception& error) {
    return fail(first_line(error.what()), ExitCode::kFailure);
  } catch (...) {
    return fail("unknown exception", ExitCode::kFailure);
  }
}

void require_one_of(std::string_view flag, const std::string& value,
                    std::initializer_list<std::string_view> allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) {
    return;
  }
  std::string list;
  for (const std::string_view name : allowed) {
    list += list.empty() ? "" : ", ";
    list += name;
  }
  throw user_error("flags", "{} is \"{}\"; use one of {}", flag, value, list);
}

void require_above_zero(std::string_view flag, double value, double at_most) {
  if (!(value > 0 && value <= at_most)) {
    throw user_error("flags", "{} is {}; it must be above 0 and at most {}", flag, value, at_most);
  }
}

void require_not_negative(std::string_view flag, double value, double at_most) {
  if (!(value >= 0 && value <= at_most)) {
    throw user_error("flags", "{} is {}; it must be from 0 to {}", flag, value, at_most);
  }
}

void add_seed(CLI::App& app, std::uint64_t& seed, const std::string& text) {
  const CLI::Validator whole(
      [](std::string& given) {
        std::uint64_t number = 0;
        const char* const end = given.data() + given.size();
        const auto read = std::from_chars(given.data(), end, number);
        return read.ec == std::errc() && read.ptr == end
                   ? std::string()
                   : fmt::format("{} is no seed; give a whole number from 0 to {}",
                                 one_line(given.substr(0, 40)), UINT64_MAX);
      },
      "");
  app.add_option("--seed", seed, text)->check(whole)->capture_default_str();
}

std::int64_t steps_of_epochs(double epochs, std::int64_t steps_per_epoch) {
  const double steps = std::ceil(epochs * static_cast<double>(steps_per_epoch));
  return static_cast<std::int64_t>(std::min(steps, kMostOfFlag));
}

std::int64_t bytes_of_gib(std::string_view flag, double gib) {
  require_not_negative(flag, gib, kMostGib);
  return static_cast<std::int64_t>(gib * (1 << 30));
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  if (app.get_option_no_throw("--version") == nullptr) {
    app.set_version_flag("--version", app.get_name() + " " + version());
  }
  app.formatter(std::make_shared<NarrowFormatter>());
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    reject_unknown(app);
    reject_values(app, error);
    throw user_error("flags", "{}; --help lists the flags", joined_lines(error.what()));
  }
  return std::nullopt;
}

}  // namespace tandem
