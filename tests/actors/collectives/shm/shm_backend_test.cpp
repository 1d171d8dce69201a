// Collectives over shared memory, beside tests/actors/collectives/contract: sleepers, heartbeats,
// and the arena's memory.
#include "actors/collectives/shm/shm_backend.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/shm_world.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using test::run_ranks;
using test::ShmRank;

// The heartbeat's timer is due behind the last task's, and waits in the loop's queue, which
// outlives the back end.
TEST(ShmBackend, EndsWhileItsHeartbeatIsDue) {
  ShmBackend::Options options;
  options.heartbeat = std::chrono::milliseconds(40);  // the timer's time is half of it
  const auto errors = run_ranks(
      1,
      [](ShmRank& rank) {
        Scope scope(rank.loop);
        scope.spawn("keeps the loop", []() -> Task<> {
          co_await sleep_for(std::chrono::microseconds(50));
          std::this_thread::sleep_for(std::chrono::milliseconds(60));
        });
        rank.loop.run([]() -> Task<> { co_await sleep_for(std::chrono::milliseconds(5)); });
      },
      options);
  EXPECT_EQ(errors, std::vector<std::string>(1));
}

Task<> many_exchanges(ShmBackend* backend, std::uint64_t times) {
  std::vector<std::uint64_t> all(backend->world());
  for (std::uint64_t i = 0; i < times; ++i) {
    const std::uint64_t mine = i * 10 + backend->rank();
    co_await backend->exchange({reinterpret_cast<const std::byte*>(&mine),
                                reinterpret_cast<std::byte*>(all.data()), sizeof(mine)});
    EXPECT_EQ(all.back(), i * 10 + backend->world() - 1);
  }
}

// Without a spin every wait is a sleep, so that each of many thousand has to be ended by a peer.
// One that is not ends the test by its deadline.
TEST(ShmBackend, SleepersAreAlwaysWoken) {
  const auto errors = run_ranks(
      4,
      [](ShmRank& rank) {
        rank.loop.run(&many_exchanges, rank.backend.get(), std::uint64_t{5000});
      },
      {.timeout = std::chrono::seconds(20)}, Spin::kNever);
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

TEST(ShmBackend, LargeMemoryIsOnHugePagesAndBounded) {
  const auto errors =
      run_ranks(2,
                [](ShmRank& rank) {
                  std::byte* large = rank.backend->allocate(std::size_t{4} << 20);
                  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % (2 << 20), 0U);
                  EXPECT_THAT([&] { (void)rank.backend->allocate(std::size_t{64} << 20); },
                              ThrowsError(ExitCode::kRefused));
                },
                {.arena_bytes = std::size_t{16} << 20});
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

}  // namespace
}  // namespace tandem
