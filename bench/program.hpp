// bench/program.hpp — a program of a benchmark suite: its own flags beside Google Benchmark's, the
// report, and what the report says of the machine and the build.
//
//   int main(int argc, char** argv) {
//     bench::Suite suite(argc, argv, "CPU Adam: seconds per 1e9 parameters");
//     const auto elements = suite.number("--elements", 32'000'000, {.least = 1e6}, "of a unit");
//     suite.begin();  // --help ends here
//     register_all(elements);
//     return suite.run();
//   }
// A value that is wrong ends the program with one line and exit code 2.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/system/machine.hpp"

namespace tandem::bench {

/// The reporter that --benchmark_format asks for, without one line of its header: "Library was
/// built as DEBUG. Timings may be affected." Debian builds libbenchmark without NDEBUG, so the
/// library's own asserts are on. They stand where a measurement begins, pauses and ends; the loop
/// that is timed is inlined into our programs, which are built with NDEBUG.
/// `--benchmark_format=json` still says "library_build_type": "debug".
class Reporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override {
    std::stringstream header;
    reporter_->SetOutputStream(&GetOutputStream());
    reporter_->SetErrorStream(&header);
    const bool go_on = reporter_->ReportContext(context);
    reporter_->SetErrorStream(&GetErrorStream());
    for (std::string line; std::getline(header, line);) {
      if (line.find("Library was built as DEBUG") == std::string::npos) {
        GetErrorStream() << line << "\n";
      }
    }
    return go_on;
  }
  void ReportRuns(const std::vector<Run>& runs) override { reporter_->ReportRuns(runs); }
  void Finalize() override { reporter_->Finalize(); }

 private:
  std::unique_ptr<BenchmarkReporter> reporter_{benchmark::CreateDefaultDisplayReporter()};
};

/// The bounds of a number.
template <class T>
struct Range {
  T least = 0;
  T most = std::numeric_limits<T>::max();
};

class Suite {
 public:
  /// `about`: what the suite measures, for --help.
  Suite(int argc, char** argv, std::string about)
      : about_(std::move(about)), arguments_(argv, argv + argc) {}
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

  // ---- flags: the last "--name=value" or "--name value"; each takes its flag from the arguments
  /// Returns the flag's text, or `otherwise`.
  std::string text(std::string_view name, std::string otherwise, std::string_view meaning) {
    describe(name, "=TEXT", otherwise, meaning);
    return take(name).value_or(std::move(otherwise));
  }
  std::string choice(std::string_view name, std::string otherwise,
                     std::initializer_list<std::string_view> values, std::string_view meaning) {
    describe(name, fmt::format("={}", fmt::join(values, "|")), otherwise, meaning);
    const std::string given = take(name).value_or(std::move(otherwise));
    if (std::find(values.begin(), values.end(), given) == values.end()) {
      refuse(fmt::format("{} is \"{}\"; use one of {}", name, given, fmt::join(values, ", ")));
    }
    return given;
  }
  std::int64_t number(std::string_view name, std::int64_t otherwise, Range<std::int64_t> range,
                      std::string_view meaning) {
    return value_of(name, "=N", "whole number", otherwise, range, meaning);
  }
  double real(std::string_view name, double otherwise, Range<double> range,
              std::string_view meaning) {
    return value_of(name, "=X", "number", otherwise, range, meaning);
  }
  /// Whether the flag, which has no value, is there.
  bool is_set(std::string_view name, std::string_view meaning) {
    describe(name, "", "", meaning);
    const auto end = std::remove(arguments_.begin() + 1, arguments_.end(), name);
    const bool set = end != arguments_.end();
    arguments_.erase(end, arguments_.end());
    return set;
  }

  /// Adds a line to what the report says of the machine and the build.
  static void add_context(const std::string& name, const std::string& value) {
    benchmark::AddCustomContext(name, value);
  }

  /// Call it after the last flag: answers --help, and reads Google Benchmark's flags. `defaults`:
  /// of those, as if they came first.
  void begin(std::initializer_list<const char*> defaults = {}) {
    std::vector<const char*> all{arguments_[0].c_str()};
    all.insert(all.end(), defaults);
    for (std::size_t i = 1; i < arguments_.size(); ++i) {
      all.push_back(arguments_[i].c_str());
    }
    int count = static_cast<int>(all.size());
    all.push_back(nullptr);
    current() = this;
    benchmark::Initialize(&count, const_cast<char**>(all.data()), &print_help);
    if (count > 1) {
      refuse(fmt::format("unknown flag {}; --help lists the flags", all[1]));
    }
    add_context("commit", commit());
    add_context("cpu", machine::cpu_name());
    add_context("usable_cpus", std::to_string(machine::usable_cpus()));
  }

  /// Runs what is registered; returns the program's exit code.
  [[nodiscard]] int run() const {
    Reporter reporter;
    return run(reporter);
  }
  [[nodiscard]] int run(benchmark::BenchmarkReporter& reporter) const {
    const std::size_t ran = benchmark::RunSpecifiedBenchmarks(&reporter);
    benchmark::Shutdown();
    if (ran == 0) {
      say("no benchmark has a name that --benchmark_filter matches; "
          "--benchmark_list_tests=true lists them");
    }
    return ran == 0 ? 2 : 0;
  }

 private:
  static Suite*& current() {
    static Suite* one = nullptr;
    return one;
  }

  [[nodiscard]] std::string name() const {
    return arguments_[0].substr(arguments_[0].rfind('/') + 1);
  }
  void say(const std::string& text) const {
    std::fputs(fmt::format("[bench] {}: {}\n", name(), text).c_str(), stderr);
  }
  [[noreturn]] void refuse(const std::string& text) const {
    say(text);
    std::exit(2);
  }

  void describe(std::string_view flag, std::string_view values, std::string_view otherwise,
                std::string_view meaning) {
    help_ += fmt::format("  {}{}\n      {}{}\n", flag, values, meaning,
                         otherwise.empty() ? "" : fmt::format("; default: {}", otherwise));
  }

  std::optional<std::string> take(std::string_view name) {
    std::optional<std::string> value;
    std::vector<std::string> kept;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      const std::string& argument = arguments_[i];
      if (argument.starts_with(name) && argument.size() > name.size() &&
          argument[name.size()] == '=') {
        value = argument.substr(name.size() + 1);
      } else if (argument == name) {
        if (i + 1 == arguments_.size()) {
          refuse(fmt::format("{} has no value", name));
        }
        value = arguments_[++i];
      } else {
        kept.push_back(argument);
      }
    }
    arguments_ = std::move(kept);
    return value;
  }

  template <class T>
  T value_of(std::string_view name, std::string_view values, std::string_view kind, T otherwise,
             Range<T> range, std::string_view meaning) {
    describe(name, values, fmt::format("{}", otherwise), meaning);
    const std::optional<std::string> given = take(name);
    if (!given) {
      return otherwise;
    }
    T value{};
    const char* const end = given->data() + given->size();
    const auto [stop, error] = std::from_chars(given->data(), end, value);
    if (error != std::errc() || stop != end || !(value >= range.least && value <= range.most)) {
      refuse(fmt::format("{} is \"{}\"; use a {} {}", name, *given, kind,
                         range.most == std::numeric_limits<T>::max()
                             ? fmt::format("of at least {}", range.least)
                             : fmt::format("from {} to {}", range.least, range.most)));
    }
    return value;
  }

  static void print_help() {
    const Suite& suite = *current();
    fmt::print("{}: {}\n\n", suite.name(), suite.about_);
    if (!suite.help_.empty()) {
      fmt::print("Flags of this suite:\n{}\nFlags of Google Benchmark:\n", suite.help_);
    }
    std::fflush(stdout);
    benchmark::PrintDefaultHelp();
  }

  /// The commit of the tree in whose build folder the program lies; "-dirty" with changes since.
  [[nodiscard]] static std::string commit() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error || program.string().find('\'') != std::string::npos) {
      return "unknown";
    }
    const std::string command =
        fmt::format("git -C '{}' describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null",
                    program.parent_path().string());
    std::string text(64, '\0');
    FILE* const pipe = ::popen(command.c_str(), "r");
    text.resize(pipe != nullptr ? std::fread(text.data(), 1, text.size(), pipe) : 0);
    if (pipe != nullptr) {
      ::pclose(pipe);
    }
    text.erase(text.find_last_not_of('\n') + 1);
    return text.empty() ? "unknown" : text;
  }

  std::string about_;
  std::vector<std::string> arguments_;
  std::string help_;
};

}  // namespace tandem::bench
