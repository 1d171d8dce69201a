// `tandem top RUN`: a run that goes on, in the terminal. How far it is and what it says of a step
// come from its folder; who waits for what from its status socket, where it has one.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <simdjson.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "actors/storage/file.hpp"
#include "engine/memory/memory_plan.hpp"
#include "examples/support/console.hpp"
#include "examples/support/program.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"
#include "tools/cli/commands.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using simdjson::dom::element;

constexpr std::size_t kCurveColumns = 60;
constexpr std::size_t kShownTasks = 8;

/// The body of `GET page`, where something answers at the address.
std::optional<std::string> get(const std::string& address, const std::string& page) {
  const std::size_t colon = address.rfind(':');
  const bool is_port = colon != std::string::npos && address.find('/') == std::string::npos;
  const OwnedDescriptor socket(
      ::socket(is_port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 2, .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  int failed = -1;
  if (is_port) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
    failed = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  } else if (sockaddr_un to{}; address.size() < sizeof(to.sun_path)) {
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address.c_str(), address.size() + 1);
    failed = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }
  const std::string request = "GET " + page + " HTTP/1.0\r\n\r\n";
  if (failed != 0 || ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return std::nullopt;
  }
  std::string answer;
  std::array<char, 4096> chunk{};
  for (ssize_t got = 0; (got = ::recv(socket.get(), chunk.data(), chunk.size(), 0)) > 0;) {
    answer.append(chunk.data(), static_cast<std::size_t>(got));
  }
  const std::size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos || answer.find(" 200 ") > body
             ? std::nullopt
             : std::optional(answer.substr(body + 4));
}

/// What metrics.jsonl says, read on from where it was left.
class Steps {
 public:
  explicit Steps(fs::path path) : path_(std::move(path)) {}

  void read_on() {
    std::ifstream file(path_, std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto bytes = static_cast<std::int64_t>(file.tellg());
    if (bytes < at_) {  // a run that began anew
      *this = Steps(path_);
    }
    file.seekg(at_);
    for (std::string line; std::getline(file, line) && !file.eof();) {
      at_ += static_cast<std::int64_t>(line.size()) + 1;
      take(line);
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
  void take(const std::string& line) {
    constexpr std::size_t kRecent = 50;
    element of_line;
    if (parser_->parse(line).get(of_line) != simdjson::SUCCESS) {
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

/// Means of equal shares of the steps, one character each, from the least to the most.
std::string curve(const std::vector<double>& losses) {
  constexpr std::array kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> means;
  const std::size_t columns = std::min(kCurveColumns, losses.size());
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

/// What the run said before its first step.
std::string notes_of(const std::string& run) {
  const fs::path path = fs::path(run) / "notes.txt";
  constexpr std::uint64_t kMostBytes = 1 << 20;
  return fs::exists(path) ? read_file(path, "top", kMostBytes) : "";
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

/// Tasks by how long they wait, and mailboxes with messages.
std::string waits(const std::string& json) {
  simdjson::dom::parser parser;
  element all;
  if (parser.parse(json).get(all) != simdjson::SUCCESS) {
    return {};
  }
  struct Wait {
    double since_s;
    std::string line;
  };
  std::vector<Wait> found;
  for (const element scope : all["scopes"].get_array()) {
    for (const element task : scope["tasks"].get_array()) {
      double since_s = 0;
      if (task["since_s"].get(since_s) == simdjson::SUCCESS) {
        found.push_back(
            {since_s, fmt::format("{:9.3f} s  {:<20} {}", since_s, std::string_view(task["name"]),
                                  std::string_view(task["awaits"]))});
      }
    }
  }
  std::ranges::sort(found, std::greater(), &Wait::since_s);
  found.resize(std::min(found.size(), kShownTasks));
  std::string text = "waits     since      task                 for\n";
  for (const Wait& wait : found) {
    text += "      " + wait.line + "\n";
  }
  for (const element actor : all["actors"].get_array()) {
    if (const auto depth = std::uint64_t(actor["depth"]); depth > 0) {
      text += fmt::format("mailbox   {}: {} waiting\n", std::string_view(actor["name"]), depth);
    }
  }
  return text;
}

std::string frame(const std::string& run, const Steps& steps, const std::string& socket) {
  const std::string notes = notes_of(run);
  std::int64_t total = steps_of(notes);
  double eta_s = -1;
  const std::optional<std::string> live = get(socket, "/step");
  simdjson::dom::parser parser;
  element of_step;
  if (live && parser.parse(*live).get(of_step) == simdjson::SUCCESS) {
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
  std::string text = fmt::format("{}\n", run);
  text +=
      fmt::format("step      {}{}{}\n", steps.step, total > 0 ? fmt::format(" of {}", total) : "",
                  eta_s >= 0 ? ", " + duration_text(eta_s) + " left" : "");
  if (!steps.losses.empty()) {
    text += fmt::format("loss      {:.4f}{}\n", steps.losses.back(),
                        std::isfinite(steps.eval_loss)
                            ? fmt::format(", of the last evaluation {:.4f}", steps.eval_loss)
                            : "");
    text += fmt::format("          {}\n", curve(steps.losses));
    text += fmt::format("rate      {:.3e}, {:.0f} tokens/s\n", steps.lr, steps.tokens_per_s);
    text +=
        fmt::format("memory    {} host{}\n", size_text(steps.host_bytes),
                    steps.device_bytes > 0 ? ", " + size_text(steps.device_bytes) + " device" : "");
  }
  const std::optional<std::string> actors = get(socket, "/actors");
  text +=
      actors ? waits(*actors)
             : fmt::format("waits     unknown: nothing serves {} (--status_socket auto)\n", socket);
  return text;
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
    fmt::print("{}{}{}", once ? "" : kHomeAndClear, frame(run, steps, socket),
               ended ? "ended\n" : "");
    std::fflush(stdout);
    if (once || ended) {
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_s));
  }
}

}  // namespace tandem
