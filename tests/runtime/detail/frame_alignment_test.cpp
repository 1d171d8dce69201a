// Variables of a coroutine lie where their alignment asks, whatever it is.
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/channel.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/first_of.hpp"
#include "runtime/generator.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/build.hpp"
#include "runtime/when_all.hpp"
#include "runtime/with_deadline.hpp"

namespace tandem {
namespace {

constexpr const char* kNoWiderFrames = "g++ does not align frames further than FrameRecycler does";

template <std::size_t kBytes>
struct alignas(kBytes) Wide {
  char bytes[kBytes];
};

template <class T>
[[gnu::noinline]] bool misplaced(const T& object) {
  const volatile auto address = reinterpret_cast<std::uintptr_t>(&object);
  return address % alignof(T) != 0;
}

template <std::size_t kBytes>
Task<int> local(Wide<kBytes> parameter) {
  Wide<kBytes> variable{};
  int bad = misplaced(variable) + misplaced(parameter);
  co_await yield();
  bad += misplaced(variable) + misplaced(parameter);
  co_return bad;
}

template <std::size_t kBytes>
Generator<int> generated() {
  Wide<kBytes> variable{};
  co_yield misplaced(variable);
}

template <std::size_t kBytes>
Task<int> everywhere(CpuPool* pool) {
  int bad = 0;
  for (int i = 0; i < 20; ++i) {
    // Frames of other sizes before it, so that chance does not align each.
    co_await local<16>({});
    bad += co_await local<kBytes>({});
    auto numbers = generated<kBytes>();
    bad += *co_await numbers.next();
    Channel<Wide<kBytes>> channel(1);
    (void)co_await channel.send({});
    const std::optional<Wide<kBytes>> got = co_await channel.receive();
    bad += misplaced(*got);
    const Wide<kBytes> captured{};
    bad += co_await pool->run([captured] { return misplaced(captured) ? 1 : 0; });
  }
  co_return bad;
}

TEST(FrameAlignment, VariablesOfACoroutineLieWhereTheyAsk) {
  EventLoop loop;
  CpuPool pool(loop, {.threads = 1});
  EXPECT_EQ(loop.run(&everywhere<32>, &pool), 0);
  EXPECT_EQ(loop.run(&everywhere<64>, &pool), 0);
  if (kGnuCompiler) {
    GTEST_SKIP() << kNoWiderFrames;
  }
  EXPECT_EQ(loop.run(&everywhere<128>, &pool), 0);
  EXPECT_EQ(loop.run(&everywhere<4096>, &pool), 0);
}

// A range's items, passed on to a task each.
template <std::size_t kBytes>
Task<int> of_ranges() {
  const auto look = [](Wide<kBytes> item) -> Task<Wide<kBytes>> {
    co_await yield();
    EXPECT_FALSE(misplaced(item));
    co_return item;
  };
  int bad = 0;
  for (const auto& each : co_await when_all(std::vector<Wide<kBytes>>(3), look)) {
    bad += misplaced(each);
  }
  const auto first = co_await first_of(std::vector<Wide<kBytes>>(3), look);
  co_return bad + misplaced(first.value);
}

TEST(FrameAlignment, ItemsOfARangeDoSo) {
  EventLoop loop;
  EXPECT_EQ(loop.run(&of_ranges<32>), 0);
  EXPECT_EQ(loop.run(&of_ranges<64>), 0);
  if (kGnuCompiler) {
    GTEST_SKIP() << kNoWiderFrames;
  }
  EXPECT_EQ(loop.run(&of_ranges<128>), 0);
}

template <std::size_t kBytes>
Task<int> with_deadlines() {
  const Wide<kBytes> argument{};
  const TimePoint later = time_after(EventLoop::current().now(), std::chrono::hours(1));
  int bad = 0;
  for (int i = 0; i < 3; ++i) {
    bad += co_await with_deadline(std::chrono::hours(1), &local<kBytes>, argument);
    bad += co_await with_deadline(Duration(std::chrono::hours(1)), &local<kBytes>, argument);
    bad += co_await with_deadline(later, &local<kBytes>, argument);
  }
  co_return bad;
}

TEST(FrameAlignment, ArgumentsOfATaskWithADeadlineDoSo) {
  EventLoop loop;
  EXPECT_EQ(loop.run(&with_deadlines<32>), 0);
  EXPECT_EQ(loop.run(&with_deadlines<64>), 0);
  if (kGnuCompiler) {
    GTEST_SKIP() << kNoWiderFrames;
  }
  EXPECT_EQ(loop.run(&with_deadlines<128>), 0);
  EXPECT_EQ(loop.run(&with_deadlines<4096>), 0);
}

template <std::size_t kBytes>
struct Ask {
  using Reply = Wide<kBytes>;
  Wide<kBytes> question;
};
template <std::size_t kBytes>
struct Answers : Actor<Answers<kBytes>, Ask<kBytes>> {
  Wide<kBytes> handle(Ask<kBytes> ask) {
    bad += misplaced(ask) + misplaced(member);
    return ask.question;
  }
  Wide<kBytes> member{};
  int bad = 0;
};

template <std::size_t kBytes>
int of_messages() {
  EventLoop loop;
  Scope scope(loop);
  auto& actor = scope.start<Answers<kBytes>>();
  const int bad = loop.run(
      [](typename Answers<kBytes>::AddressType to) -> Task<int> {
        const Wide<kBytes> reply = co_await to.ask(Ask<kBytes>{});
        co_return misplaced(reply);
      },
      actor.address());
  loop.run(&Scope::join, &scope);
  return bad + actor.bad;
}

TEST(FrameAlignment, MessagesAndRepliesDoSo) {
  EXPECT_EQ(of_messages<16>(), 0);
  EXPECT_EQ(of_messages<64>(), 0);
  if (kGnuCompiler) {
    GTEST_SKIP() << kNoWiderFrames;
  }
  EXPECT_EQ(of_messages<128>(), 0);
}

TEST(FrameAlignment, EveryBlockHasTheWidestAlignmentOfSimd) {
  for (std::size_t bytes = 1; bytes < 10'000; bytes += 333) {
    void* block = FrameRecycler::allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % FrameRecycler::kAlignment, 0U) << bytes;
    FrameRecycler::deallocate(block, bytes);
  }
}

}  // namespace
}  // namespace tandem
