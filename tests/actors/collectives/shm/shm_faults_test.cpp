// Errors that only ranks over shared memory have when one of them is at fault, beside
// tests/actors/collectives/rank_faults_test.cpp and the contract's; and nothing is left behind.
#include <atomic>
#include <csignal>
#include <fstream>
#include <latch>
#include <memory>
#include <sstream>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/shm_world.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using test::kOperations;
using test::Operands;
using test::operands_of;
using test::random_job;
using test::RankProcess;
using test::run;
using test::run_ranks;
using test::ShmRank;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(ShmBackend, ADeadlineNamesRankOperationAndLimit) {
  std::latch over{1};
  const auto errors = run_ranks(2,
                                [&over](ShmRank& rank) {
                                  const Operands operands = operands_of(rank);
                                  run(rank, operands, 2, 5);
                                  if (rank.backend->rank() == 1) {
                                    over.wait();  // there, but late
                                    return;
                                  }
                                  try {
                                    run(rank, operands, 2, 1);
                                  } catch (const PeerLost& lost) {
                                    EXPECT_EQ(lost.rank(), 1U);
                                    over.count_down();
                                    throw;
                                  }
                                },
                                {.timeout = 400ms});
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not arrive at reduce-scatter 5 within 0.4 s"));
}

// The two ranks here are ranks 2 and 3 of four; rank 0 is on another host.
TEST(ShmBackend, ARankThatWaitsForAnotherHostIsNotTheOneAtFault) {
  std::atomic<bool> has_ended = false;
  const auto errors =
      run_ranks(2,
                [&has_ended](ShmRank& rank) {
                  const Operands operands = operands_of(rank);
                  if (rank.backend->rank() == 0) {
                    const std::shared_ptr<void> end(nullptr, [&](void*) { has_ended = true; });
                    run(rank, operands, 2, 1);
                    return;
                  }
                  Awaited on_the_net;
                  on_the_net.add(0);
                  rank.backend->say_awaited(3, on_the_net);
                  EXPECT_EQ(rank.backend->awaited(3).word(0), 1U);
                  rank.loop.run(
                      +[](std::atomic<bool>* ended) -> Task<> {
                        while (!*ended) {
                          co_await sleep_for(20ms);
                        }
                      },
                      &has_ended);
                },
                {.first_rank = 2, .all_ranks = 4, .timeout = 2s});
  EXPECT_THAT(errors[0], HasSubstr("rank 3 did not arrive at reduce-scatter 0 within 2 s; it "
                                   "waits for rank 0 in the end"));
  EXPECT_THAT(errors[0], HasSubstr("cannot end on rank 2"));
}

/// Operations without end, in a process; a byte once they go on.
std::unique_ptr<RankProcess> endless(ShmBackend::Options options) {
  return std::make_unique<RankProcess>(options, [](ShmRank& rank, int pipe) {
    const Operands operands = operands_of(rank);
    for (std::uint32_t round = 0;; ++round) {
      run(rank, operands, round % kOperations.size(), 1);
      if (round == 50) {
        (void)!::write(pipe, "x", 1);
      }
    }
  });
}

// All ranks stand still for three times the deadline; the one that goes on first waits in an
// operation then.
TEST(ShmBackend, TimeInWhichThisRankWasStoppedCountsToNoDeadline) {
  ShmBackend::Options options{.world = 2, .job = random_job(), .timeout = 1s};
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    ranks.push_back(endless(options));
  }
  ranks[0]->wait_for_byte();
  ranks[1]->wait_for_byte();
  ranks[1]->signal(SIGSTOP);
  std::this_thread::sleep_for(100ms);  // rank 0 gets to where it waits
  ranks[0]->signal(SIGSTOP);
  std::this_thread::sleep_for(3s);
  ranks[0]->signal(SIGCONT);
  std::this_thread::sleep_for(300ms);
  ranks[1]->signal(SIGCONT);
  std::this_thread::sleep_for(300ms);
  ranks[1]->signal(SIGKILL);
  EXPECT_THAT(ranks[0]->text(), HasSubstr("rank 1 is gone"));
  (void)ranks[0]->wait();
  (void)ranks[1]->wait();
}

TEST(ShmBackend, AStoppedRankIsSaidInTimeAndNamedAtTheDeadline) {
  ShmBackend::Options options{.world = 2, .job = random_job(), .timeout = 4s, .heartbeat = 200ms};
  int errors[2];
  ASSERT_EQ(::pipe2(errors, O_CLOEXEC), 0);
  const int terminal = ::dup(2);
  ::dup2(errors[1], 2);  // both ranks write there
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    ranks.push_back(endless(options));
  }
  ::dup2(terminal, 2);
  ::close(terminal);
  ::close(errors[1]);
  ranks[0]->wait_for_byte();
  const auto stopped = std::chrono::steady_clock::now();
  ranks[1]->signal(SIGSTOP);
  char line[256] = {};
  pollfd said{.fd = errors[0], .events = POLLIN, .revents = 0};
  EXPECT_TRUE(::poll(&said, 1, 5000) > 0 && ::read(errors[0], line, sizeof(line) - 1) > 0);
  const double noticed_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - stopped).count();
  EXPECT_LT(noticed_s, 2) << "three heartbeats, and room for a busy machine";
  EXPECT_THAT(std::string(line), HasSubstr("[collectives] rank 1 is stopped (state T of process "));
  EXPECT_THAT(std::string(line), HasSubstr("rank 0 waits for it until the deadline of 4 s"));
  const std::string text = ranks[0]->text();
  EXPECT_THAT(text, HasSubstr("rank 1 did not "));
  EXPECT_THAT(text, HasSubstr("within 4 s; it is stopped (state T of process "));
  ranks[1]->signal(SIGKILL);
  (void)ranks[0]->wait();
  (void)ranks[1]->wait();
  ::close(errors[0]);
}

// The loop of a rank that computes on it stands still, and its process runs.
TEST(ShmBackend, ARankThatIsBusyIsNotTakenForAStoppedOne) {
  ::testing::internal::CaptureStderr();
  const auto errors = run_ranks(2,
                                [](ShmRank& rank) {
                                  const Operands operands = operands_of(rank);
                                  run(rank, operands, 2, 5);
                                  if (rank.backend->rank() == 1) {
                                    std::this_thread::sleep_for(600ms);
                                  }
                                  run(rank, operands, 2, 1);
                                },
                                {.timeout = 20s, .heartbeat = 50ms});
  EXPECT_EQ(errors[0] + errors[1], "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// The killed rank is in the middle of anything: of waiting, copying, adding.
TEST(ShmBackend, AKillAtAnyMomentEndsEveryRank) {
  for (std::uint32_t repetition = 0; repetition < 24; ++repetition) {
    ShmBackend::Options options{.world = 3, .job = random_job()};
    const std::uint32_t victim = repetition % 3;
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (options.rank = 0; options.rank < 3; ++options.rank) {
      ranks.push_back(std::make_unique<RankProcess>(options, [&](ShmRank& rank, int pipe) {
        const Operands operands = operands_of(rank);
        for (std::uint32_t round = 0;; ++round) {
          run(rank, operands, round % kOperations.size(), 1);
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

TEST(ShmBackend, NamesRanksAsAllHostsDo) {
  for (const bool elsewhere : {true, false}) {
    const auto errors = run_ranks(
        2,
        [&](ShmRank& rank) {
          if (rank.backend->rank() == 1) {
            elsewhere ? rank.backend->fail(2, "rank 2 is lost") : rank.backend->abort("no more");
          }
          rank.loop.run([](ShmBackend* backend) -> Task<> { co_await backend->exchange({}); },
                        rank.backend.get());
        },
        {.first_rank = 4, .all_ranks = 8});
    EXPECT_EQ(errors[0], fmt::format("[collectives] {}; exchange 0 cannot end on rank 4",
                                     elsewhere ? "rank 2 is lost" : "rank 5 aborted: no more"));
  }
}

TEST(ShmBackend, ARankThatNeverComesIsNamed) {
  const ShmBackend::Options options{
      .rank = 0, .world = 3, .job = random_job(), .connect_timeout = 50ms};
  EXPECT_THAT(
      [&] { ShmRank rank(options); },
      ThrowsError(ExitCode::kPeer, HasSubstr("of 3 ranks of this host, 1, 2 did not come within")));
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

// Other programs of the project may be at work there, under other names.
bool any_file_of(const std::string& job) {
  bool any = false;
  if (DIR* folder = ::opendir("/dev/shm")) {
    while (const dirent* entry = ::readdir(folder)) {
      any = any || std::string_view(entry->d_name).find(job) != std::string_view::npos;
    }
    ::closedir(folder);
  }
  return any;
}

bool any_socket_of(const std::string& job) {
  std::stringstream sockets;
  sockets << std::ifstream("/proc/net/unix").rdbuf();
  bool any = false;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    any = any || sockets.str().find("@" + shm_name(job, rank)) != std::string::npos;
  }
  return any;
}

TEST(ShmBackend, NothingIsLeftBehind) {
  const std::size_t descriptors = open_descriptors();
  for (int round = 0; round < 5; ++round) {
    const ShmBackend::Options options{.job = random_job()};
    (void)run_ranks(
        3,
        [&](ShmRank& rank) {
          const Operands operands = operands_of(rank);
          for (std::size_t kind = 0; kind < kOperations.size(); ++kind) {
            run(rank, operands, kind, 2);
          }
          EXPECT_FALSE(any_file_of(options.job));  // while it runs, too
        },
        options);
    EXPECT_FALSE(any_socket_of(options.job));
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(ShmBackend, TheDeadlineComesFromTheEnvironment) {
  EXPECT_EQ(ShmBackend::default_heartbeat(), 5s);
  ::setenv("TANDEM_HEARTBEAT_S", "0.5", 1);
  EXPECT_EQ(ShmBackend::default_heartbeat(), 500ms);
  ::unsetenv("TANDEM_HEARTBEAT_S");
  EXPECT_EQ(ShmBackend::default_timeout(), 600s);
  ::setenv("TANDEM_COLLECTIVE_TIMEOUT_S", "1.5", 1);
  EXPECT_EQ(ShmBackend::default_timeout(), 1500ms);
  ::setenv("TANDEM_COLLECTIVE_TIMEOUT_S", "soon", 1);
  EXPECT_THROW((void)ShmBackend::default_timeout(), Error);
  ::unsetenv("TANDEM_COLLECTIVE_TIMEOUT_S");
}

}  // namespace
}  // namespace tandem
