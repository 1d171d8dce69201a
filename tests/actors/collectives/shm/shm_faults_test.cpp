// What the ranks of a host say when one of them dies, stands still, gives up, leaves or does
// something else: in all operations every survivor ends, names the rank at fault and its own
// operation, and nothing is left behind.
#include <csignal>
#include <fstream>
#include <latch>
#include <sstream>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/scope.hpp"
#include "tests/support/shm_world.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::random_job;
using testing::run_ranks;
using testing::ShmRank;
using namespace std::chrono_literals;

constexpr const char* kKinds[] = {"all-gather",     "broadcast",  "all-to-all",
                                  "reduce-scatter", "all-reduce", "exchange"};

/// Operands of every operation, in the arena.
struct Operands {
  static constexpr std::size_t kElements = 4096;
  std::byte* block;
  std::byte* into;

  explicit Operands(ShmRank& rank)
      : block(rank.backend->allocate(4 * kElements * 4)),
        into(rank.backend->allocate(4 * kElements * 4)) {}
};

Task<> operate(ShmBackend* backend, Operands* o, std::size_t kind) {
  constexpr std::size_t kElements = Operands::kElements;
  const ReduceArguments reduce{
      .block = o->block, .accumulator = o->into, .shard_elements = kElements, .want_norm = true};
  switch (kind) {
    case 0:
      co_await backend->all_gather({o->block, o->into, kElements});
      break;
    case 1:
      co_await backend->broadcast({o->block, kElements, 1});
      break;
    case 2:
      co_await backend->all_to_all({o->block, o->into, kElements});
      break;
    case 3:
      (void)co_await backend->reduce_scatter_add(reduce);
      break;
    case 4:
      (void)co_await backend->all_reduce_add(reduce);
      break;
    default:
      co_await backend->exchange({o->block, o->into, 64});
      break;
  }
}

Task<> operate_times(ShmBackend* backend, Operands* o, std::size_t kind, int times) {
  for (int i = 0; i < times; ++i) {
    co_await operate(backend, o, kind);
  }
}

/// A rank that is a process; `body` runs there. What it throws, or writes to the pipe, comes back.
class RankProcess {
 public:
  RankProcess(const ShmBackend::Options& options,
              const std::function<void(ShmRank&, int pipe)>& body) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      std::string text;
      int code = 0;
      try {
        ShmRank rank(options);
        body(rank, ends[1]);
      } catch (const Error& error) {
        text = error.what();
        code = static_cast<int>(error.code());
      } catch (const std::exception& error) {
        text = error.what();
        code = 1;
      }
      (void)!::write(ends[1], text.data(), text.size());
      ::_exit(code);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ~RankProcess() { ::close(pipe_); }
  RankProcess(const RankProcess&) = delete;

  void signal(int number) const { EXPECT_EQ(::kill(pid_, number), 0); }
  /// Blocks until the child wrote a byte.
  void wait_for_byte() const {
    char byte = 0;
    EXPECT_EQ(::read(pipe_, &byte, 1), 1);
  }
  /// Everything that it wrote until its end.
  std::string text() const {
    std::string all;
    char buffer[512];
    for (ssize_t got = 0; (got = ::read(pipe_, buffer, sizeof(buffer))) > 0;) {
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all;
  }
  int wait() const {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    return status;
  }

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

enum class Fault { kKilled, kStopped, kRaises, kLeaves };

struct FaultCase {
  Fault fault;
  const char* name;
  const char* says;  // about rank 1
};
class ShmFaults : public ::testing::TestWithParam<FaultCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, ShmFaults,
    ::testing::Values(FaultCase{Fault::kKilled, "killed", "rank 1 is gone: its process ended"},
                      FaultCase{Fault::kStopped, "stopped", "rank 1 did not arrive at"},
                      FaultCase{Fault::kRaises, "raises", "rank 1 aborted: no more data"},
                      FaultCase{Fault::kLeaves, "leaves", "rank 1 has left"}),
    [](const ::testing::TestParamInfo<FaultCase>& info) { return info.param.name; });

void strike(Fault fault, ShmRank& rank) {
  switch (fault) {
    case Fault::kKilled:
      ::raise(SIGKILL);
      break;
    case Fault::kStopped:
      ::raise(SIGSTOP);
      break;
    case Fault::kRaises:
      rank.backend->abort("no more data");
      break;
    case Fault::kLeaves:
      break;
  }
}

// Three ranks do two operations of a kind; before the third, rank 1 is struck.
void run_fault(const FaultCase& c, std::size_t kind) {
  SCOPED_TRACE(kKinds[kind]);
  ShmBackend::Options options{.world = 3, .job = random_job()};
  if (c.fault == Fault::kStopped) {
    options.timeout = 300ms;
  }
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    ranks.push_back(std::make_unique<RankProcess>(options, [&](ShmRank& rank, int) {
      Operands operands(rank);
      rank.loop.run(&operate_times, rank.backend.get(), &operands, kind, 2);
      if (rank.backend->rank() == 1) {
        strike(c.fault, rank);
      } else {
        rank.loop.run(&operate_times, rank.backend.get(), &operands, kind, 1);
      }
    }));
  }
  for (const std::uint32_t survivor : {0U, 2U}) {
    const std::string text = ranks[survivor]->text();
    EXPECT_THAT(text, HasSubstr(c.says));
    EXPECT_THAT(text, HasSubstr(fmt::format("{} 2 cannot end on rank {}", kKinds[kind], survivor)));
    const int status = ranks[survivor]->wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
  }
  if (c.fault == Fault::kStopped) {
    ranks[1]->signal(SIGKILL);
  }
  (void)ranks[1]->wait();
}

TEST_P(ShmFaults, SurvivorsNameTheFailedRankAndTheirOperation) {
  for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
    run_fault(GetParam(), kind);
  }
}

TEST(ShmBackend, ADeadlineNamesRankOperationAndLimit) {
  std::latch over{1};
  const auto errors =
      run_ranks(2,
                [&over](ShmRank& rank) {
                  Operands operands(rank);
                  rank.loop.run(&operate_times, rank.backend.get(), &operands, std::size_t{3}, 5);
                  if (rank.backend->rank() == 1) {
                    over.wait();  // there, but late
                    return;
                  }
                  try {
                    rank.loop.run(&operate_times, rank.backend.get(), &operands, std::size_t{3}, 1);
                  } catch (const PeerLost& lost) {
                    EXPECT_EQ(lost.rank(), 1U);
                    over.count_down();
                    throw;
                  }
                },
                {.timeout = 400ms});
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not arrive at reduce-scatter 5 within 0.4 s"));
}

// The killed rank is in the middle of anything: of waiting, copying, adding.
TEST(ShmBackend, AKillAtAnyMomentEndsEveryRank) {
  for (std::uint32_t repetition = 0; repetition < 24; ++repetition) {
    ShmBackend::Options options{.world = 3, .job = random_job()};
    const std::uint32_t victim = repetition % 3;
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (options.rank = 0; options.rank < 3; ++options.rank) {
      ranks.push_back(std::make_unique<RankProcess>(options, [&](ShmRank& rank, int pipe) {
        Operands operands(rank);
        for (std::uint32_t round = 0;; ++round) {
          rank.loop.run(&operate_times, rank.backend.get(), &operands, std::size_t{round % 6}, 1);
          if (round == repetition) {
            (void)!::write(pipe, "x", 1);
          }
        }
      }));
    }
    ranks[victim]->wait_for_byte();
    ranks[victim]->signal(SIGKILL);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const std::string text = ranks[rank]->text();
      const int status = ranks[rank]->wait();
      if (rank == victim) {
        EXPECT_TRUE(WIFSIGNALED(status));
      } else {
        EXPECT_THAT(text, HasSubstr(fmt::format("rank {} is gone", victim)));
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
      }
    }
  }
}

TEST(ShmBackend, RanksAtDifferentOperationsSayBoth) {
  const auto errors = run_ranks(3, [](ShmRank& rank) {
    Operands operands(rank);
    const std::size_t kind = rank.backend->rank() == 2 ? 2 : 0;
    rank.loop.run(&operate_times, rank.backend.get(), &operands, kind, 1);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("all-gather 0 of 4096 bytes"));
    EXPECT_THAT(error, HasSubstr("all-to-all 0 of 4096 bytes"));
    EXPECT_THAT(error, HasSubstr("rank 2 is at all-to-all"));
  }
}

TEST(ShmBackend, RanksWithDifferentSizesSayBoth) {
  const auto errors = run_ranks(2, [](ShmRank& rank) {
    std::vector<std::byte> memory(3000);
    const GatherArguments a{memory.data(), memory.data() + 1000, 100 + 28 * rank.backend->rank()};
    rank.loop.run([](ShmBackend* b, GatherArguments g) -> Task<> { co_await b->all_gather(g); },
                  rank.backend.get(), a);
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("all-gather 0 of 100 bytes"));
    EXPECT_THAT(error, HasSubstr("all-gather 0 of 128 bytes"));
  }
}

TEST(ShmBackend, ARankThatNeverComesIsNamed) {
  const ShmBackend::Options options{
      .rank = 0, .world = 3, .job = random_job(), .connect_timeout = 50ms};
  EXPECT_THAT([&] { ShmRank rank(options); },
              ThrowsError(ExitCode::kPeer, HasSubstr("of 3 ranks, 1, 2 did not come within")));
}

TEST(ShmBackend, ADoubledRankIsRefused) {
  const std::string job = random_job();
  std::string text;
  const auto start = [&](std::uint32_t rank) {
    return [&text, options = ShmBackend::Options{
                       .rank = rank, .world = 2, .job = job, .connect_timeout = 2s}] {
      try {
        ShmRank made(options);
      } catch (const Error& error) {
        if (std::string(error.what()).find("twice") != std::string::npos) {
          text = error.what();
        }
      }
    };
  };
  std::thread first(start(1));
  std::thread second(start(1));
  first.join();
  second.join();
  EXPECT_THAT(text, HasSubstr("rank 1 is there twice"));
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) {
    ++count;
  }
  ::closedir(folder);
  return count;
}

bool any_file_of_ours() {
  bool any = false;
  if (DIR* folder = ::opendir("/dev/shm")) {
    while (const dirent* entry = ::readdir(folder)) {
      any = any || std::string_view(entry->d_name).find("tandem") != std::string_view::npos;
    }
    ::closedir(folder);
  }
  return any;
}

bool any_socket_of(const std::string& job) {
  std::stringstream sockets;
  sockets << std::ifstream("/proc/net/unix").rdbuf();
  return sockets.str().find("@tandem-" + job) != std::string::npos;
}

TEST(ShmBackend, NothingIsLeftBehind) {
  const std::size_t descriptors = open_descriptors();
  for (int round = 0; round < 5; ++round) {
    const ShmBackend::Options options{.job = random_job()};
    (void)run_ranks(
        3,
        [&](ShmRank& rank) {
          Operands operands(rank);
          for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
            rank.loop.run(&operate_times, rank.backend.get(), &operands, kind, 2);
          }
          EXPECT_FALSE(any_file_of_ours());  // while it runs, too
        },
        options);
    EXPECT_FALSE(any_socket_of(options.job));
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(ShmBackend, TheDeadlineComesFromTheEnvironment) {
  EXPECT_EQ(ShmBackend::default_timeout(), 600s);
  ::setenv("TANDEM_COLLECTIVE_TIMEOUT_S", "1.5", 1);
  EXPECT_EQ(ShmBackend::default_timeout(), 1500ms);
  ::setenv("TANDEM_COLLECTIVE_TIMEOUT_S", "soon", 1);
  EXPECT_THROW((void)ShmBackend::default_timeout(), Error);
  ::unsetenv("TANDEM_COLLECTIVE_TIMEOUT_S");
}

}  // namespace
}  // namespace tandem
