#include "trainer/metrics/console.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"

namespace tandem {
namespace {

constexpr std::chrono::milliseconds kBetweenBars(50);

bool is_terminal(std::FILE* file) {
  const char* term = std::getenv("TERM");
  return ::isatty(::fileno(file)) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

int columns_of(std::FILE* file) {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(::fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

/// The columns that a launcher tells to a program whose lines it relays; 0: it tells none.
std::size_t columns_of_launcher(std::FILE* file) {
  struct stat about{};
  const char* const given = std::getenv("TANDEM_COLUMNS");
  if (given == nullptr || ::fstat(::fileno(file), &about) != 0 || !S_ISFIFO(about.st_mode)) {
    return 0;
  }
  std::size_t columns = 0;
  const std::string_view text(given);
  (void)std::from_chars(text.data(), text.data() + text.size(), columns);
  return columns;
}

/// The columns of a step's line that a terminal has room for, from the left.
std::string fitting(std::string line, std::size_t width) {
  constexpr std::string_view kBetween = " | ";
  while (line.size() > width) {
    const std::size_t last = line.rfind(kBetween);
    if (last == std::string::npos) {
      break;
    }
    line.resize(last);
  }
  return line;
}

/// The console is never a reason to end a run: a closed or full output is ignored.
void put(std::FILE* file, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);  // a log that is followed, or cut off by a kill, holds whole lines
}

}  // namespace

std::optional<std::size_t> shown_columns(std::FILE* file) {
  if (is_terminal(file)) {
    return static_cast<std::size_t>(columns_of(file));
  }
  const std::size_t columns = columns_of_launcher(file);
  return columns > 0 ? std::optional(columns) : std::nullopt;
}

ProgressMode progress_mode_of(std::string_view text) {
  constexpr std::array<std::string_view, 4> kNames = {"auto", "bar", "lines", "off"};
  const auto found = std::ranges::find(kNames, text);
  if (found == kNames.end()) {
    throw user_error("flags", "--progress {}: it is one of auto, bar, lines, off; {}", text,
                     name_hint(text, kNames));
  }
  return static_cast<ProgressMode>(found - kNames.begin());
}

std::string duration_text(double seconds) {
  constexpr std::int64_t kDayS = 86400;
  if (!(seconds >= 0) || seconds > 1e6 * kDayS) {
    return "?";
  }
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t hours = total / 3600;
  const std::int64_t minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

double remaining_s(const RunProgress& state) {
  const auto left = static_cast<double>(std::max<std::int64_t>(0, state.total_steps - state.step));
  return state.steps_here > 0 ? state.elapsed_s / static_cast<double>(state.steps_here) * left
                              : std::numeric_limits<double>::quiet_NaN();
}

std::string progress_bar(const RunProgress& state, int width) {
  constexpr int kCellsMin = 5;
  constexpr int kCellsMax = 40;
  const std::string elapsed = duration_text(state.elapsed_s);
  if (state.total_steps <= 0) {
    return fmt::format("step {}  elapsed {}", state.step, elapsed).substr(0, std::max(0, width));
  }
  const double share = std::clamp(
      static_cast<double>(state.step) / static_cast<double>(state.total_steps), 0.0, 1.0);
  const std::string left = duration_text(remaining_s(state));
  const std::string figures =
      fmt::format("  {}/{}  {:.0f}%  elapsed {}  left {}", state.step, state.total_steps,
                  std::floor(share * 100), elapsed, left);
  const int cells = std::min(kCellsMax, width - static_cast<int>(figures.size()) - 2);
  if (cells < kCellsMin) {
    return figures.substr(2, std::max(0, width));
  }
  const int full = static_cast<int>(share * cells);
  return fmt::format("[{}{}]{}", std::string(full, '#'), std::string(cells - full, '.'), figures);
}

Console::Console(ProgressMode mode, std::int64_t total_steps, std::int64_t log_interval,
                 std::FILE* lines, std::FILE* bar)
    : lines_(lines),
      bar_(bar),
      total_steps_(total_steps),
      log_interval_(std::max<std::int64_t>(1, log_interval)),
      show_lines_(mode != ProgressMode::kOff && log_interval > 0),
      show_bar_((mode == ProgressMode::kAuto || mode == ProgressMode::kBar) && is_terminal(bar)),
      start_(std::chrono::steady_clock::now()) {}

Console::~Console() { finish(); }

void Console::erase_bar() {
  if (std::exchange(bar_drawn_, false)) {
    put(bar_, "\r\x1b[K");
  }
}

void Console::print_line(std::string_view line) {
  erase_bar();
  put(lines_, fmt::format("{}\n", line));
}

void Console::step(const StepMetrics& metrics) {
  if (first_step_ < 0) {
    first_step_ = metrics.step - 1;
  }
  last_step_ = metrics.step;
  if (show_lines_ && (metrics.step % log_interval_ == 0 || metrics.step == total_steps_)) {
    print_line(step_line(metrics));
  }
  draw_bar(metrics.step);
}

RunProgress Console::progress() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  return {.step = last_step_,
          .total_steps = total_steps_,
          .steps_here = first_step_ < 0 ? 0 : last_step_ - first_step_,
          .elapsed_s = elapsed.count()};
}

std::string Console::step_line(const StepMetrics& metrics) const {
  const bool says_rest = !show_bar_ && total_steps_ > 0 && metrics.step < total_steps_;
  const std::string rest = says_rest ? fmt::format(" | of {}, left {}", total_steps_,
                                                   duration_text(remaining_s(progress())))
                                     : "";
  std::string line = console_line(metrics);
  if (const std::optional<std::size_t> columns = shown_columns(lines_)) {
    line = fitting(std::move(line), *columns - std::min(*columns, rest.size()));
  }
  return line + rest;
}

void Console::draw_bar(std::int64_t step) {
  if (!show_bar_ || first_step_ < 0) {
    return;
  }
  // A step can take less than the terminal takes to draw; a reader takes in no more than some lines
  // a second.
  const auto now = std::chrono::steady_clock::now();
  if (bar_drawn_ && now - last_drawn_ < kBetweenBars && step != total_steps_) {
    return;
  }
  last_drawn_ = now;
  const std::string bar = progress_bar(progress(), columns_of(bar_) - 1);
  put(bar_, "\r\x1b[K" + bar);
  bar_drawn_ = true;
}

void Console::note(std::string_view line) {
  print_line(line);
  draw_bar(last_step_);
}

void Console::finish() { erase_bar(); }

}  // namespace tandem
