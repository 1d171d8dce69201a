#include "examples/support/program.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>

#include <CLI/CLI.hpp>

#include "engine/memory/memory_check.hpp"
#include "engine/types/version.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/nearest.hpp"

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

int fail(std::string_view message, ExitCode code) {
  std::fprintf(stderr, "error: %.*s\n", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  write_error_file(message);
  return static_cast<int>(code);
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
    const std::vector<std::string> names = flag_names(at);
    const std::vector<std::string_view> views(names.begin(), names.end());
    throw user_error("flags", "unknown flag {}; {}", name, name_hint(name, views));
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

/// One line, whatever CLI11 says.
std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

}  // namespace

int guarded_main(const std::function<int()>& body) {
  try {
    return body();
  } catch (const DoesNotFit& error) {
    fmt::print(stderr, "{}", error.table());
    return fail(error.what(), error.code());
  } catch (const Error& error) {
    return fail(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    return fail("[memory] out of host memory; use smaller batches or a smaller model",
                ExitCode::kFailure);
  } catch (const std::exception& error) {
    return fail(error.what(), ExitCode::kFailure);
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

void require_above_zero(std::string_view flag, double value) {
  if (!(value > 0)) {
    throw user_error("flags", "{} is {}; it must be above 0", flag, value);
  }
}

void require_not_negative(std::string_view flag, double value) {
  if (!(value >= 0)) {
    throw user_error("flags", "{} is {}; it must be 0 or more", flag, value);
  }
}

std::optional<int> parse_command_line(CLI::App& app, int argc, const char* const* argv) {
  if (app.get_option_no_throw("--version") == nullptr) {
    app.set_version_flag("--version", app.get_name() + " " + version());
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    reject_unknown(app);
    throw user_error("flags", "{}; --help lists the flags", one_line(error.what()));
  }
  return std::nullopt;
}

}  // namespace tandem
