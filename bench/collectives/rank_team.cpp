#include "bench/collectives/rank_team.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem::bench {
namespace {

struct Command {
  Work work;
  std::uint32_t times;
  std::uint64_t bytes;  // of a block
};

/// One rank, in its process.
class Worker {
 public:
  Worker(const ShmBackend::Options& options, std::size_t most_bytes)
      : pool_(loop_,
              {.threads = std::max(1, machine::usable_cpus() / static_cast<int>(options.world))}),
        backend_(ShmBackend::connect(loop_, pool_, options)),
        block_(backend_->allocate(most_bytes)),
        shard_(backend_->allocate(most_bytes / options.world)),
        sum_(backend_->allocate(most_bytes / options.world)),
        slot_(backend_->allocate(most_bytes)) {
    for (const auto& [data, bytes] : {std::pair(block_, most_bytes), std::pair(slot_, most_bytes),
                                      std::pair(shard_, most_bytes / options.world),
                                      std::pair(sum_, most_bytes / options.world)}) {
      std::memset(data, 0, bytes);
    }
  }

  double run(const Command& command) {
    return loop_.run([](Worker* w, Command c) { return w->batch(c); }, this, command);
  }

 private:
  Task<double> batch(Command c) {
    const std::size_t shard = c.bytes / backend_->world();
    co_await backend_->exchange({});
    const auto start = std::chrono::steady_clock::now();
    switch (c.work) {
      case Work::kAllGather:
        for (std::uint32_t i = 0; i < c.times; ++i) {
          co_await backend_->all_gather({shard_, slot_, shard});
        }
        break;
      case Work::kReduceScatter:
        for (std::uint32_t i = 0; i < c.times; ++i) {
          (void)co_await backend_->reduce_scatter_add(
              {.block = block_, .accumulator = sum_, .shard_elements = shard / sizeof(float)});
        }
        break;
      case Work::kGatherBound:
        co_await copy(c.bytes, c.times);
        break;
      case Work::kReduceBound:
        // It reads a block and writes a shard; a copy reads and writes half of that each.
        co_await copy((c.bytes + shard) / 2, c.times);
        break;
    }
    co_return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Every thread of the pool its part, all times over, without anything in between.
  Task<> copy(std::size_t bytes, std::uint32_t times) {
    const auto threads = static_cast<std::size_t>(pool_.threads());
    const std::byte* from = block_;
    std::byte* into = slot_;
    co_await pool_.for_chunks(threads, [from, into, bytes, times, threads](std::size_t part) {
      const std::size_t begin = bytes * part / threads;
      const std::size_t end = bytes * (part + 1) / threads;
      for (std::uint32_t i = 0; i < times; ++i) {
        std::memcpy(into + begin, from + begin, end - begin);
        asm volatile("" : : "r"(into) : "memory");
      }
    });
  }

  EventLoop loop_;
  CpuPool pool_;
  std::unique_ptr<ShmBackend> backend_;
  std::byte* block_;
  std::byte* shard_;
  std::byte* sum_;
  std::byte* slot_;
};

[[noreturn]] void serve(const ShmBackend::Options& options, std::size_t most_bytes, int socket) {
  int code = 0;
  try {
    Worker worker(options, most_bytes);
    Command command;
    while (::read(socket, &command, sizeof(command)) == sizeof(command)) {
      const double seconds = worker.run(command);
      if (::write(socket, &seconds, sizeof(seconds)) != sizeof(seconds)) {
        break;
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    code = 1;
  }
  ::_exit(code);
}

}  // namespace

RankTeam::RankTeam(std::uint32_t world, std::size_t most_bytes) {
  std::uint64_t words[2] = {};
  TANDEM_CHECK(::getrandom(words, sizeof(words), 0) == sizeof(words), "random bytes for a name");
  ShmBackend::Options options{.world = world,
                              .job = fmt::format("{:016x}{:016x}", words[0], words[1]),
                              .arena_bytes = 4 * most_bytes + (std::size_t{16} << 20)};
  for (options.rank = 0; options.rank < world; ++options.rank) {
    int ends[2];
    TANDEM_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
    const pid_t process = ::fork();
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const Rank& other : ranks_) {
        ::close(other.socket);  // else its end would not be seen
      }
      ::close(ends[0]);
      serve(options, most_bytes, ends[1]);
    }
    ::close(ends[1]);
    ranks_.push_back({process, ends[0]});
  }
}

RankTeam::~RankTeam() {
  for (const Rank& rank : ranks_) {
    ::close(rank.socket);
  }
  for (const Rank& rank : ranks_) {
    (void)::waitpid(rank.process, nullptr, 0);
  }
}

double RankTeam::run(Work work, std::size_t bytes, std::uint32_t times) {
  const Command command{work, times, bytes};
  double slowest = 0;
  bool lost = false;
  for (const Rank& rank : ranks_) {
    lost = lost || ::send(rank.socket, &command, sizeof(command), MSG_NOSIGNAL) !=
                       static_cast<ssize_t>(sizeof(command));
  }
  for (const Rank& rank : ranks_) {
    double seconds = 0;
    lost = lost || ::read(rank.socket, &seconds, sizeof(seconds)) != sizeof(seconds);
    slowest = std::max(slowest, seconds);
  }
  if (lost) {
    throw failure(ExitCode::kPeer, "bench", "a rank is gone; see its output");
  }
  return slowest;
}

}  // namespace tandem::bench
