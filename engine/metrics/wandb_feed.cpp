#include "engine/metrics/wandb_feed.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actors/storage/file.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr std::size_t kMostUnsentBytes = std::size_t{1} << 22;
// Records go together, so that the module is woken once for all of them.
constexpr std::chrono::seconds kBetweenSends{1};

// The first line describes the run, each other line is a record. The process shares the trainer's
// processors and uses only idle time; its wake-ups preempt no thread of the trainer. No one views
// an offline run while it trains, so the module gets its records every few minutes: with single
// records its two processes would wake each other for each one. Python before 3.11 does not know
// PYTHONSAFEPATH, and looks in the current folder first.
constexpr const char* kProgram = R"PY(
import sys
sys.path[:] = [entry for entry in sys.path if entry]
import json, os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
about = json.loads(sys.stdin.readline())
try:
    import wandb
except ImportError as error:
    sys.exit(f"wandb: {error}; install it for the python3 of the PATH, or leave wandb out")
if "WANDB_MODE" not in os.environ and "WANDB_API_KEY" not in os.environ:
    os.environ["WANDB_MODE"] = "offline"
hold_s = 600 if os.environ.get("WANDB_MODE") == "offline" else 0
run = wandb.init(resume="allow", **about)
held, due = [], time.monotonic() + hold_s
def log_held():
    for line in held:
        record = json.loads(line)
        scalars = {tag: float(value) for tag, value in record["scalars"].items()}
        run.log({**scalars, "_timestamp": record["time"]}, step=record["at"])
    held.clear()
for line in sys.stdin:
    held.append(line)
    if time.monotonic() >= due:
        log_held()
        due = time.monotonic() + hold_s
log_held()
run.finish()
)PY";

/// The id of the run that is resumed, or a new one, which stays in the run's folder.
std::string run_id(const WandbRun& run) {
  const std::filesystem::path path = std::filesystem::path(run.folder) / "wandb_id.txt";
  if (run.append && std::filesystem::exists(path)) {
    std::string id = read_file(path, "metrics", 64);
    while (!id.empty() && id.back() == '\n') {
      id.pop_back();
    }
    return id;
  }
  std::random_device random;
  const std::string id = fmt::format("{:08x}", random());
  write_file(path, "metrics", id + "\n");
  return id;
}

std::string about(const WandbConfig& config, const WandbRun& run) {
  JsonWriter json;
  json.begin_object();
  json.field("id", run_id(run)).field("dir", run.folder).field("project", config.project);
  const auto given = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) {
      json.field(key, value);
    }
  };
  given("group", config.group);
  given("entity", config.team);
  given("name", run.name);
  if (!run.tags.empty()) {
    json.key("tags").begin_array();
    for (const std::string& tag : run.tags) {
      json.value(tag);
    }
    json.end_array();
  }
  std::string text = json.end_object().take();
  if (!run.config_json.empty()) {
    text.pop_back();
    text += fmt::format(", \"config\": {}}}", run.config_json);
  }
  for (char& c : text) {  // one line; a newline stands between values only
    c = c == '\n' ? ' ' : c;
  }
  return text + "\n";
}

/// The module's time axis: when the step ended, not when it is told of it.
double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// This process's variables, by which Python finds modules in no place that the current folder
/// decides: that folder holds data, and a json.py among data is not code of ours.
std::vector<std::string> python_environment() {
  constexpr std::string_view kPath = "PYTHONPATH=";
  std::vector<std::string> found = {"PYTHONSAFEPATH=1"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    std::string_view text = *variable;
    if (!text.starts_with(kPath)) {
      found.emplace_back(text);
      continue;
    }
    std::string kept;
    for (text.remove_prefix(kPath.size()); !text.empty();) {
      const std::string_view entry = text.substr(0, text.find(':'));
      text.remove_prefix(std::min(text.size(), entry.size() + 1));
      if (entry.starts_with('/')) {
        kept += (kept.empty() ? "" : ":") + std::string(entry);
      }
    }
    found.push_back(std::string(kPath) + kept);
  }
  return found;
}

pid_t start_python(int stdin_fd) {
  std::vector<std::string> variables = python_environment();
  std::vector<char*> environment;
  for (std::string& variable : variables) {
    environment.push_back(variable.data());
  }
  environment.push_back(nullptr);
  posix_spawn_file_actions_t files{};
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, stdin_fd, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes{};
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);  // Ctrl-C is the trainer's
  std::array<const char*, 4> argv = {"python3", "-c", kProgram, nullptr};
  pid_t process = -1;
  const int failed = ::posix_spawnp(&process, argv[0], &files, &attributes,
                                    const_cast<char* const*>(argv.data()), environment.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) {
    throw failure(ExitCode::kFailure, "metrics", "wandb: cannot start python3: {}",
                  std::generic_category().message(failed));
  }
  return process;
}

template <class... Args>
Error lost(fmt::format_string<Args...> format, Args&&... args) {
  return failure(ExitCode::kFailure, "metrics", "wandb: {}",
                 fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

WandbFeed::WandbFeed(const WandbConfig& config, const WandbRun& run) : patience_s_(run.patience_s) {
  unsent_ = about(config, run);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw lost("no socket: {}", std::generic_category().message(errno));
  }
  socket_ = ends[0];
  try {
    process_ = start_python(ends[1]);
  } catch (...) {
    ::close(ends[0]);
    ::close(ends[1]);
    throw;
  }
  ::close(ends[1]);
  flush();
}

WandbFeed::~WandbFeed() {
  if (socket_ >= 0) {
    ::close(socket_);
  }
}

void WandbFeed::write(std::int64_t at, const std::vector<Scalar>& scalars) {
  JsonWriter json;
  json.begin_object().field("at", at).field("time", unix_time_s()).key("scalars").begin_object();
  for (const auto& [tag, value] : scalars) {
    json.field(tag, value);
  }
  send(json.end_object().end_object().take() + "\n");
}

void WandbFeed::send(std::string_view text) {
  if (socket_ < 0) {
    return;  // its end was reported
  }
  if (unsent_.size() + text.size() > kMostUnsentBytes) {
    flush();
  }
  if (unsent_.size() + text.size() > kMostUnsentBytes) {
    throw lost("its process takes nothing for {} bytes", unsent_.size());
  }
  unsent_ += text;
  const auto now = std::chrono::steady_clock::now();
  if (now >= next_send_) {
    next_send_ = now + kBetweenSends;
    flush();
  }
}

void WandbFeed::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent =
        ::send(socket_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) {
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return;
      }
      ::close(socket_);
      socket_ = -1;
      throw lost("its process ended {}", end_within(1));
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
}

std::string WandbFeed::end_within(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  int status = 0;
  while (process_ > 0) {
    const pid_t ended = ::waitpid(process_, &status, WNOHANG);
    if (ended == process_ || (ended < 0 && errno != EINTR)) {
      process_ = -1;
      return ended < 0             ? "by whom is unknown"
             : WIFSIGNALED(status) ? fmt::format("by signal {}", WTERMSIG(status))
                                   : fmt::format("with exit code {}", WEXITSTATUS(status));
    }
    if (Clock::now() > until) {
      return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "before";
}

void WandbFeed::close() {
  if (socket_ < 0) {
    return;
  }
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(patience_s_);
  const auto left_s = [&] { return std::chrono::duration<double>(until - Clock::now()).count(); };
  flush();
  while (!unsent_.empty() && left_s() > 0) {
    constexpr int kPollMs = 100;
    pollfd ready{.fd = socket_, .events = POLLOUT, .revents = 0};
    ::poll(&ready, 1, kPollMs);
    flush();
  }
  const std::size_t behind = unsent_.size();
  ::close(socket_);
  socket_ = -1;
  const std::string end = end_within(left_s());
  if (behind > 0 || end.empty()) {
    throw lost("its process did not end within {:.3g} s, and is left to itself", patience_s_);
  }
  if (end != "with exit code 0") {
    throw lost("its process ended {}", end);
  }
}

}  // namespace tandem
