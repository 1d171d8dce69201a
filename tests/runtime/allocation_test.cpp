// No allocation per message, call, spawn or sleep once everything has been used once: every malloc
// of the process counts.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/event_fd.hpp"
#include "runtime/io/file_io.hpp"

namespace {
std::atomic<std::int64_t> allocations{0};
}

#if !defined(TANDEM_ASAN) && !defined(TANDEM_TSAN)
// operator new ends here, too.
extern "C" void* __libc_malloc(std::size_t bytes);  // NOLINT
extern "C" void* malloc(std::size_t bytes) {        // NOLINT
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
#endif

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Put {
  std::int64_t value;
};
struct Get {
  using Reply = std::int64_t;
  std::int64_t add;
};
struct GetLater {
  using Reply = std::int64_t;
};
struct GetSlowly {
  using Reply = std::int64_t;
};
struct Store : Actor<Store, Put, Get, GetLater, GetSlowly> {
  Store() : Actor("store", 64) {}
  void handle(Put m) { sum += m.value; }
  std::int64_t handle(Get r) { return sum + r.add; }
  void handle(GetLater, ReplyTo<GetLater> reply) { reply.send(sum); }
  Task<std::int64_t> handle(GetSlowly) {
    co_await yield();
    co_return sum;
  }
  std::int64_t sum = 0;
};

class Allocation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kAddressSanitizer || kThreadSanitizer) {
      GTEST_SKIP() << "sanitizers have their own malloc, and frames are not reused there";
    }
    store.start(scope);
    // The first sleep of a loop makes its alarm; whether a busy test comes to sleep at all is
    // chance.
    loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  }
  void TearDown() override {
    store.close();
    loop.run(&Scope::join, &scope);
  }
  // Returns the allocations of a thousand rounds after a first thousand, in all: the least of three
  // times, because a thread that a busy machine starts late allocates its name meanwhile.
  template <class Factory, class... Args>
  std::int64_t after_warm_up(Factory factory, Args... args) {
    loop.run(factory, args..., 1000);
    std::int64_t least = 1;
    for (int i = 0; i < 3 && least > 0; ++i) {
      const std::int64_t before = allocations.load();
      loop.run(factory, args..., 1000);
      const std::int64_t found = allocations.load() - before;
      least = i == 0 ? found : std::min(least, found);
    }
    return least;
  }
  EventLoop loop{
      {.stall_limit = Duration::zero()}};  // a busy machine makes stalls, whose report allocates
  Scope scope{loop, "actors"};
  Store store;
};

TEST_F(Allocation, TheCounterCounts) {
  const std::int64_t before = allocations.load();
  std::free(std::malloc(100));
  std::make_unique<std::string>(100, 'x').reset();
  EXPECT_GE(allocations.load() - before, 2);
}

TEST_F(Allocation, TrySend) {
  EXPECT_EQ(after_warm_up(
                [](Store::AddressType a, int rounds) -> Task<> {
                  for (int i = 0; i < rounds; ++i) {
                    EXPECT_EQ(a.try_send(Put{1}), SendResult::kSent);
                    co_await yield();
                  }
                },
                store.address()),
            0);
}

TEST_F(Allocation, SendWithAndWithoutWaiting) {
  EXPECT_EQ(after_warm_up(
                [](Store::AddressType a, int rounds) -> Task<> {
                  for (int i = 0; i < rounds; ++i) {
                    co_await a.send(Put{1});
                  }
                },
                store.address()),
            0);
}

TEST_F(Allocation, AskInEveryForm) {
  EXPECT_EQ(after_warm_up(
                [](Store::AddressType a, int rounds) -> Task<> {
                  for (int i = 0; i < rounds; ++i) {
                    (void)co_await a.ask(Get{1});
                    (void)co_await a.ask(Get{1}, 1s);
                    (void)co_await a.ask(GetLater{});
                    (void)co_await a.ask(GetSlowly{});
                  }
                },
                store.address()),
            0);
}

struct Latest {
  std::int64_t value;
};
struct Urgent {
  static constexpr bool kControl = true;
};
// Each policy at a full mailbox: one credit, and a round sends four before the actor gets its turn.
template <WhenFull kPolicy>
struct Full : Actor<Full<kPolicy>, Latest, Urgent> {
  static constexpr WhenFull kWhenFull = kPolicy;
  Full() : Actor<Full, Latest, Urgent>("full", MailboxOptions{.credits = 1, .measure = true}) {}
  static bool coalesce(Latest& waiting, Latest&& newer)
    requires(kPolicy == WhenFull::kCoalesce)
  {
    waiting = newer;
    return true;
  }
  void handle(Latest) { ++handled; }
  void handle(Urgent) {}
  int handled = 0;
};

template <WhenFull kPolicy>
std::int64_t allocated_when_full(EventLoop& loop) {
  Scope scope(loop);
  Full<kPolicy> full;
  full.start(scope);
  const auto rounds = [](Address<Latest, Urgent> all, Address<Latest, Urgent> mine) -> Task<> {
    for (int i = 0; i < 1000; ++i) {
      for (const auto& address : {&all, &mine}) {
        (void)address->try_send(Latest{1});
        (void)address->try_send(Latest{2});
      }
      (void)all.try_send(Urgent{});
      co_await yield();
      co_await all.send(Latest{3});
      if (kPolicy != WhenFull::kReject) {
        co_await mine.send(Latest{4});  // with kWait: in the wait queue
      }
      co_await yield();
    }
  };
  const auto all = full.address();
  const auto mine = all.with_credits(1);
  loop.run(rounds, all, mine);
  const std::int64_t before = allocations.load();
  loop.run(rounds, all, mine);
  const std::int64_t allocated = allocations.load() - before;
  full.close();
  loop.run(&Scope::join, &scope);
  EXPECT_GE(full.handled, 2000);
  const MailboxMetrics metrics = full.metrics();
  EXPECT_EQ(metrics.dropped > 0, kPolicy == WhenFull::kDropOldest);
  EXPECT_EQ(metrics.coalesced > 0, kPolicy == WhenFull::kCoalesce);
  return allocated;
}

TEST_F(Allocation, EveryPolicyAtAFullMailbox) {
  EXPECT_EQ(allocated_when_full<WhenFull::kWait>(loop), 0);
  EXPECT_EQ(allocated_when_full<WhenFull::kReject>(loop), 0);
  EXPECT_EQ(allocated_when_full<WhenFull::kDropOldest>(loop), 0);
  EXPECT_EQ(allocated_when_full<WhenFull::kCoalesce>(loop), 0);
}

TEST_F(Allocation, TrySendFromAnotherThread) {
  std::atomic<std::int64_t> counted{-1};
  Completion<void> done(loop);
  std::thread sender([&, address = store.address()] {
    // A credit is free before the block of its message is (a preempted actor holds one more than
    // there are credits).
    std::vector<void*> blocks(64 + 1);
    for (void*& block : blocks) {
      block = detail::MessagePool::allocate(sizeof(detail::MessageEnvelope<Put>));
    }
    for (void* block : blocks) {
      detail::MessagePool::deallocate(block, sizeof(detail::MessageEnvelope<Put>));
    }
    std::int64_t before = 0;
    for (int i = 0; i < 20'000; ++i) {
      if (i == 10'000) {
        before = allocations.load();
      }
      while (address.try_send(Put{1}) != SendResult::kSent) {
        std::this_thread::yield();
      }
    }
    counted = allocations.load() - before;
    done.set_value();
  });
  loop.run([](Completion<void>* c) -> Task<> { co_await *c; }, &done);
  sender.join();
  EXPECT_EQ(counted.load(), 0);
}

[[gnu::noinline]] Task<int> leaf(int x) { co_return x; }

TEST_F(Allocation, CallsSpawnsAndSleeps) {
  EXPECT_EQ(after_warm_up(
                [](Scope* s, int rounds) -> Task<> {
                  for (int i = 0; i < rounds; ++i) {
                    (void)co_await leaf(i);
                    s->spawn("noop", []() -> Task<> { co_await yield(); });
                    co_await sleep_for(1us);
                  }
                },
                &scope),
            0);
}

TEST_F(Allocation, LaneAndPool) {
  ComputeLane lane(loop);
  CpuPool pool(loop, {.threads = 2});
  EXPECT_EQ(after_warm_up(
                [](ComputeLane* l, CpuPool* p, int rounds) -> Task<> {
                  for (int i = 0; i < rounds; ++i) {
                    (void)co_await l->run([i] { return i; });
                    co_await p->for_chunks(4, [](std::size_t) {});
                  }
                },
                &lane, &pool),
            0);
}

TEST_F(Allocation, AsioOperationsAllocateNothing) {
  EventFd bell(loop);
  StopSource source;
  EXPECT_EQ(after_warm_up(
                [](EventFd* b, StopToken stop, int rounds) -> Task<> {
                  for (int i = 0; i < rounds; ++i) {
                    b->notify();
                    (void)co_await b->wait();
                    b->notify();
                    (void)co_await b->wait(stop);
                  }
                },
                &bell, source.token()),
            0);
}

TEST_F(Allocation, FileOperationsAllocateNothing) {
  for (const FileIo::Backend backend : {FileIo::Backend::kAuto, FileIo::Backend::kThreads}) {
    FileIo io(loop, {.backend = backend});
    StopSource source;
    const IoFile file = loop.run(
        [](FileIo* f) -> Task<IoFile> {
          co_return co_await f->open("/proc/self/exe", OpenMode::kRead);
        },
        &io);
    EXPECT_EQ(after_warm_up(
                  [](FileIo* f, const IoFile* from, StopToken stop, int rounds) -> Task<> {
                    std::byte bytes[512];  // a frame beyond 4 KiB is not recycled
                    for (int i = 0; i < rounds; ++i) {
                      EXPECT_EQ(co_await f->read(*from, 4096, bytes, stop), sizeof bytes);
                    }
                  },
                  &io, &file, source.token()),
              0)
        << io.backend_name();
  }
}

}  // namespace
}  // namespace tandem
