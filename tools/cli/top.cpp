// `tandem top RUN`: a run that goes on, in the terminal. How far it is and what it says of a step
// come from its folder; who waits for what from its status socket, where it has one.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/memory/memory_plan.hpp"
#include "runtime/system/bounded_lines.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "runtime/util/split.hpp"
#include "runtime/util/utf8.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/status_client.hpp"
#include "trainer/metrics/console.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using simdjson::dom::element;

constexpr std::size_t kCurveColumns = 60;  // at most
constexpr std::size_t kUsualColumns = 100;
constexpr std::string_view kIndent = "          ";
constexpr std::size_t kMostLine = std::size_t{1} << 20;

/// The records of metrics.jsonl, read on from where it was left.
class Steps {
 public:
  explicit Steps(fs::path path) : path_(std::move(path)) {}

  void read_on() {
    OwnedDescriptor file = open_ordinary_file(path_.string());
    struct stat about{};
    if (file.get() < 0 || ::fstat(file.get(), &about) != 0) {
      return;
    }
    if (about.st_size < at_) {  // a run that began anew
      *this = Steps(path_);
    }
    std::vector<char> buffer(kMostLine);
    for (ssize_t got = 0; (got = ::pread(file.get(), buffer.data(), buffer.size(), at_)) > 0;) {
      std::string_view text(buffer.data(), static_cast<std::size_t>(got));
      const std::size_t whole = text.rfind('\n') + 1;  // npos + 1 is 0
      if (whole == 0 && text.size() < buffer.size()) {
        return;  // a line under way
      }
      // A line that fills the buffer is none of a run's: it is left out, piece by piece.
      at_ += static_cast<std::int64_t>(whole == 0 ? text.size() : whole);
      for (const std::string_view line : split(text.substr(0, whole), '\n')) {
        take(line);
      }
    }
  }

  std::vector<double> losses;
  std::int64_t step = 0;
  double tokens_per_s = 0;
  double lr = 0;
  double eval_loss = NAN;
  std::int64_t host_bytes = 0;
  std::int64_t device_bytes = 0;
  std::deque<double> recent_s;  // times of the last steps

 private:
  void take(std::string_view line) {
    constexpr std::size_t kRecent = 50;
    element of_line;
    if (line.empty() ||
        parser_->parse(simdjson::padded_string(line)).get(of_line) != simdjson::SUCCESS ||
        !of_line.is_object()) {
      return;
    }
    double number = 0;
    if (of_line["eval_loss"].get(number) == simdjson::SUCCESS) {
      eval_loss = number;
      return;
    }
    if (of_line["loss"].get(number) != simdjson::SUCCESS) {
      number = NAN;
    }
    losses.push_back(number);
    (void)of_line["step"].get(step);
    (void)of_line["tokens_per_s"].get(tokens_per_s);
    (void)of_line["lr"].get(lr);
    (void)of_line["peak_host_bytes"].get(host_bytes);
    (void)of_line["peak_device_bytes"].get(device_bytes);
    if (of_line["step_time_s"].get(number) == simdjson::SUCCESS) {
      recent_s.push_back(number);
      if (recent_s.size() > kRecent) {
        recent_s.pop_front();
      }
    }
  }

  fs::path path_;
  std::int64_t at_ = 0;
  std::shared_ptr<simdjson::dom::parser> parser_ = std::make_shared<simdjson::dom::parser>();
};

/// Means of equal shares of the steps, one character each, from the least to the most, and these;
/// at most `width` columns.
std::string curve(const std::vector<double>& losses, std::size_t width) {
  constexpr std::size_t kOfRange = 22;  // "  12.3456 to 23.4567"
  constexpr std::size_t kLeast = 8;
  constexpr std::array kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> means;
  const std::size_t room = std::max(kLeast, width - std::min(width, kOfRange));
  const std::size_t columns = std::min({kCurveColumns, losses.size(), room});
  for (std::size_t c = 0; c < columns; ++c) {
    double sum = 0;
    std::size_t count = 0;
    for (std::size_t i = c * losses.size() / columns; i < (c + 1) * losses.size() / columns; ++i) {
      if (std::isfinite(losses[i])) {
        sum += losses[i];
        ++count;
      }
    }
    means.push_back(count > 0 ? sum / static_cast<double>(count) : NAN);
  }
  double least = INFINITY;
  double most = -INFINITY;
  for (const double mean : means) {
    if (std::isfinite(mean)) {
      least = std::min(least, mean);
      most = std::max(most, mean);
    }
  }
  std::string text;
  for (const double mean : means) {
    const double share = most > least ? (mean - least) / (most - least) : 0;
    text += !std::isfinite(mean)
                ? "!"
                : kBars[static_cast<std::size_t>(share * static_cast<double>(kBars.size() - 1))];
  }
  return fmt::format("{}  {:.4f} to {:.4f}", text, least, most);
}

/// The run's lines before its first step.
std::string notes_of(const std::string& run) {
  const OwnedDescriptor file = open_ordinary_file(run + "/notes.txt");
  std::string text(file.get() < 0 ? 0 : kMostLine, 0);
  const ssize_t got = file.get() < 0 ? 0 : ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

/// "900 steps = 1 epoch of ..." in what the run said before its first step; 0: it did not.
std::int64_t steps_of(const std::string& notes) {
  const std::size_t at = notes.find(" steps = ");
  if (at == std::string::npos) {
    return 0;
  }
  const std::size_t begin = notes.find_last_not_of("0123456789", at - 1) + 1;
  return std::atoll(notes.c_str() + begin);
}

std::string frame(const std::string& run, const Steps& steps, const std::string& socket) {
  const std::string notes = notes_of(run);
  std::int64_t total = steps_of(notes);
  double eta_s = -1;
  const std::optional<std::string> live = get_status(socket, "/step");
  simdjson::dom::parser parser;
  element of_step;
  if (live && parser.parse(*live).get(of_step) == simdjson::SUCCESS && of_step.is_object()) {
    (void)of_step["steps"].get(total);
    (void)of_step["eta_s"].get(eta_s);
  } else if (total >= steps.step && !steps.recent_s.empty()) {
    double sum = 0;
    for (const double one : steps.recent_s) {
      sum += one;
    }
    eta_s =
        sum / static_cast<double>(steps.recent_s.size()) * static_cast<double>(total - steps.step);
  }
  std::string text = fmt::format("{}\n", one_line(run));
  text +=
      fmt::format("step      {}{}{}\n", steps.step, total > 0 ? fmt::format(" of {}", total) : "",
                  eta_s >= 0 ? ", " + duration_text(eta_s) + " left" : "");
  if (!steps.losses.empty()) {
    text += fmt::format("loss      {:.4f}{}\n", steps.losses.back(),
                        std::isfinite(steps.eval_loss)
                            ? fmt::format(", of the last evaluation {:.4f}", steps.eval_loss)
                            : "");
    const std::size_t width = shown_columns(stdout).value_or(kUsualColumns);
    text += fmt::format("{}{}\n", kIndent,
                        curve(steps.losses, width - std::min(width, kIndent.size())));
    text += fmt::format("rate      {:.3e}, {:.0f} tokens/s\n", steps.lr, steps.tokens_per_s);
    text +=
        fmt::format("memory    {} host{}\n", size_text(steps.host_bytes),
                    steps.device_bytes > 0 ? ", " + size_text(steps.device_bytes) + " device" : "");
  }
  const std::optional<std::string> actors = get_status(socket, "/actors");
  const std::optional<std::string> waiting = actors ? waits_text(*actors) : std::nullopt;
  text += waiting  ? *waiting
          : actors ? fmt::format("waits     unknown: what serves {} is no run\n", one_line(socket))
                   : fmt::format("waits     unknown: nothing serves {} (--status_socket auto)\n",
                                 one_line(socket));
  return text;
}

/// The lines of `text`, of at most `columns` characters each: a longer one takes two rows of a
/// terminal.
std::string cut_lines(std::string_view text, std::size_t columns) {
  std::string cut;
  std::size_t column = 0;
  for (const char c : text) {
    column = c == '\n' ? 0 : column + (continues_character(c) ? 0 : 1);
    if (column <= columns) {
      cut += c;
    }
  }
  return cut;
}

}  // namespace

int run_top(int argc, char** argv) {
  CLI::App app("A run that goes on: step, loss, who waits for what, memory", "tandem top");
  std::string run;
  std::string socket;
  double interval_s = 1;
  bool once = false;
  app.add_option("RUN", run, "The run's folder (--output_dir)")->required();
  app.add_option("--status_socket", socket, "Where it serves its status [RUN/status.sock]");
  app.add_option("--interval", interval_s, "Seconds between two looks")->capture_default_str();
  app.add_flag("--once", once, "Look once; the default where the output is no terminal");
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const fs::path metrics = fs::path(run) / "metrics.jsonl";
  if (!fs::exists(metrics)) {
    throw user_error("top", "no {}: is {} the --output_dir of a run?", metrics.string(), run);
  }
  if (!(interval_s >= 0.1 && interval_s <= 3600)) {
    throw user_error("top", "--interval {}: it is 0.1 to 3600 seconds", interval_s);
  }
  socket = socket.empty() ? run + "/status.sock" : socket;
  once = once || ::isatty(STDOUT_FILENO) != 1;
  Steps steps(metrics);
  while (true) {
    steps.read_on();
    const bool ended = fs::exists(fs::path(run) / "summary.json");
    constexpr std::string_view kHomeAndClear = "\x1b[H\x1b[J";
    std::string shown = frame(run, steps, socket);
    if (const auto columns = shown_columns(stdout)) {
      shown = cut_lines(shown, *columns);
    }
    fmt::print("{}{}{}", once ? "" : kHomeAndClear, shown, ended ? "ended\n" : "");
    std::fflush(stdout);
    if (once || ended) {
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_s));
  }
}

}  // namespace tandem
