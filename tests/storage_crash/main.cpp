// storage_crash --kills N [--seed S]   saves that are killed N times; what is found after each kill
// storage_crash --save FOLDER --io uring|threads   saves there until it is killed (the above starts
// it)
//
// No checkpoint that was said to be committed may be lost, none that is torn may be taken for
// whole.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "tests/support/small_checkpoint.hpp"

namespace tandem {
namespace {

constexpr std::uint32_t kWriters = 3;
constexpr std::int64_t kScale = 200;  // about 90 kB of tensors
constexpr int kKeep = 2;
constexpr std::int64_t kMostSaves = 3;  // per life, before the save that is cut

Task<> save_until_killed(FileIo* io, std::string folder) {
  std::printf("0\n");  // it runs
  std::fflush(stdout);
  const std::vector<FoundCheckpoint> found = co_await find_checkpoints(io, folder, nullptr);
  co_await remove_older(io, folder, kKeep, INT64_MAX);
  for (std::int64_t step = found.empty() ? 1 : found[0].step + 1;; ++step) {
    co_await save_checkpoint(io, small_plan(folder, step, kScale), kWriters, 20'000);
    std::printf("%lld\n", static_cast<long long>(step));
    std::fflush(stdout);
    co_await remove_older(io, folder, kKeep, INT64_MAX);
  }
}

/// The checkpoints and their faults, the broken ones included.
Task<> inspect(FileIo* io, std::string folder, std::vector<FoundCheckpoint>* found,
               std::vector<std::string>* faults) {
  *found = co_await find_checkpoints(io, folder, faults);
  for (const FoundCheckpoint& one : *found) {
    for (std::string& fault : co_await faults_of(io, one.path)) {
      faults->push_back(std::move(fault));
    }
  }
}

/// A saver in a process of its own, and what it has said.
class Saver {
 public:
  Saver(const std::string& folder, const char* io) {
    int pipe[2];
    if (::pipe2(pipe, O_CLOEXEC) != 0) {
      std::abort();
    }
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(pipe[1], 1);
      ::execl("/proc/self/exe", "storage_crash", "--save", folder.c_str(), "--io", io, nullptr);
      ::_exit(127);
    }
    ::close(pipe[1]);
    out_ = pipe[0];
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  ~Saver() { ::close(out_); }

  /// The next line that it says; none when it said its last.
  std::optional<std::int64_t> next() {
    std::string line;
    for (char one = 0; ::read(out_, &one, 1) == 1;) {
      if (one == '\n') {
        return std::atoll(line.c_str());
      }
      line += one;
    }
    return std::nullopt;
  }

  void kill() {
    ::kill(child_, SIGKILL);
    int status = 0;
    ::waitpid(child_, &status, 0);
    if (!WIFSIGNALED(status)) {
      std::fprintf(stderr, "the saver ended by itself with status %d\n", status);
      std::exit(1);
    }
  }

 private:
  pid_t child_ = -1;
  int out_ = -1;
};

/// Kills savers at random points of a save. A life is counted in saves, and its end in parts of the
/// last save's time: on a busy host saves and their start take longer, and lives with them.
class Killer {
 public:
  explicit Killer(Random& random) : random_(random) {}

  /// Starts a saver and kills it; the last step that it said was committed, or `before`.
  std::int64_t live_and_die(const std::string& folder, const char* io, std::int64_t before) {
    Saver saver(folder, io);
    std::int64_t last = before;
    const auto read_line = [&] {
      const std::optional<std::int64_t> step = saver.next();
      last = step.value_or(0) > 0 ? *step : last;
      return step.has_value();
    };
    auto since = Clock::now();
    for (std::int64_t lines = random_.between(1, 1 + kMostSaves); lines > 0 && read_line();
         --lines) {
      const auto now = Clock::now();
      save_ = last > before ? now - since : save_;
      since = now;
    }
    const auto save = std::chrono::duration_cast<std::chrono::microseconds>(save_);
    std::this_thread::sleep_for(std::chrono::microseconds(random_.between(0, save.count())));
    saver.kill();
    while (read_line()) {
    }
    return last;
  }

 private:
  using Clock = std::chrono::steady_clock;

  Random& random_;
  Clock::duration save_ = std::chrono::milliseconds(1);  // the last reported save's time
};

struct Tally {
  int kills = 0;
  int saves_cut = 0;  // a save was under way
  int lost = 0;
  int torn = 0;
};

int kill_again_and_again(int kills, std::uint64_t seed) {
  std::string folder = std::filesystem::temp_directory_path() / "tandem_storage_crash_XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    std::perror("mkdtemp");
    return 1;
  }
  EventLoop loop;
  FileIo io(loop);
  Random random(seed);
  Killer killer(random);
  Tally tally;
  std::int64_t committed = 0;
  while (tally.kills < kills && tally.lost + tally.torn == 0) {
    const bool uring = FileIo::choose().uring && random.chance(0.5);
    committed = killer.live_and_die(folder, uring ? "uring" : "threads", committed);
    ++tally.kills;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      tally.saves_cut += entry.path().string().find(".tmp-0") != std::string::npos ? 1 : 0;
    }
    std::vector<FoundCheckpoint> found;
    std::vector<std::string> faults;
    loop.run(inspect, &io, folder, &found, &faults);
    tally.torn += static_cast<int>(faults.size());
    tally.lost += committed > 0 && (found.empty() || found[0].step < committed) ? 1 : 0;
    for (const std::string& fault : faults) {
      std::printf("kill %d: %s\n", tally.kills, fault.c_str());
    }
  }
  std::printf(
      "%d kills, %d of them within a save, %lld checkpoints committed; lost %d, torn and taken for "
      "whole %d\n",
      tally.kills, tally.saves_cut, static_cast<long long>(committed), tally.lost, tally.torn);
  if (tally.lost + tally.torn > 0 || committed == 0) {
    std::printf("seed %llu; the folder is kept: %s\n", static_cast<unsigned long long>(seed),
                folder.c_str());
    return 1;
  }
  std::filesystem::remove_all(folder);
  return 0;
}

int save(const std::string& folder, const std::string& io_name) {
  EventLoop loop;
  FileIo io(loop,
            {.backend = io_name == "uring" ? FileIo::Backend::kUring : FileIo::Backend::kThreads});
  loop.run(save_until_killed, &io, folder);
  return 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags = {{"--seed", "1"}, {"--io", "threads"}};
  for (int i = 1; i + 1 < argc; i += 2) {
    flags[argv[i]] = argv[i + 1];
  }
  if (flags.contains("--save")) {
    return tandem::save(flags["--save"], flags["--io"]);
  }
  if (flags.contains("--kills")) {
    return tandem::kill_again_and_again(std::atoi(flags["--kills"].c_str()),
                                        std::strtoull(flags["--seed"].c_str(), nullptr, 10));
  }
  std::fprintf(stderr, "storage_crash --kills N [--seed S]\n");
  return 2;
}
