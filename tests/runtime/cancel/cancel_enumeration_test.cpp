// Every public awaitable, stopped at every point of its wait. The list is compared with the
// headers: a new awaitable (whatever says kAwaitName) fails the test until it has a scenario here,
// or a reason why it needs none.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/actor.hpp"
#include "tests/runtime/cancel/cancel_scenarios.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using namespace test;

// ---- mailboxes
struct Fill {
  int value;
  Tracked tracked = {};
};
struct Question {
  using Reply = int;
  Tracked tracked = {};
};
struct Later {
  using Reply = std::unique_ptr<int>;
};
template <WhenFull kPolicy>
struct Narrow : Actor<Narrow<kPolicy>, Fill, Question, Later> {
  static constexpr WhenFull kWhenFull = kPolicy;
  Narrow() : Actor<Narrow, Fill, Question, Later>("narrow", MailboxOptions{.credits = 2}) {}
  static bool coalesce(Fill& waiting, Fill&& newer)
    requires(kPolicy == WhenFull::kCoalesce)
  {
    if (waiting.value % 2 != newer.value % 2) {
      return false;
    }
    waiting = std::move(newer);
    return true;
  }
  Task<> handle(Fill fill) {
    const Tracked tracked;
    co_await sleep_for(3ms);
  }
  Task<int> handle(Question question) {
    co_await sleep_for(3ms);
    co_return 1;
  }
  void handle(Later, ReplyTo<Later> reply) { kept.push_back(std::move(reply)); }
  std::vector<ReplyTo<Later>> kept;
};

// After all is over, exactly the mailbox's credits are there, and the share's.
template <class Address>
void check_credits(const Address& all, const Address& mine) {
  EXPECT_EQ(mine.try_send(Fill{1}), SendResult::kSent);
  EXPECT_EQ(mine.metrics().depth, 1U);
  EXPECT_EQ(all.try_send(Fill{2}), SendResult::kSent);
  EXPECT_EQ(all.metrics().depth, 2U);
  (void)all.try_send(Fill{3});
  (void)mine.try_send(Fill{4});
  EXPECT_EQ(all.metrics().depth, 2U);
}

template <WhenFull kPolicy>
struct Sends : Scenario {
  explicit Sends(EventLoop& on) : Scenario(on), actors(on, "actors") {
    narrow.start(actors);
    all = narrow.address();
    mine = all.with_credits(1);
  }
  using Address = typename Narrow<kPolicy>::AddressType;
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    for (int i = 0; i < 4; ++i) {
      bool refused = false;
      try {
        co_await all.send(Fill{i}, stop);
        co_await mine.send(Fill{i}, stop);
      } catch (const MailboxFull&) {
        refused = true;
      }
      if (refused) {
        EXPECT_EQ(kPolicy, WhenFull::kReject);
        co_await sleep_for(3ms, stop);
      }
      co_await yield();
      pass();
    }
  }
  Task<> finish() override {
    while (all.depth() > 0) {
      co_await tick();
    }
    check_credits(all, mine);
    narrow.close();
    while (actors.running() > 0) {
      co_await tick();
    }
    EXPECT_EQ(all.depth(), 0U);
  }
  void between(int) override {}
  Scope actors;
  Narrow<kPolicy> narrow;
  Address all;
  Address mine;
};

Task<> ask_in_every_form(Scenario* scenario, Narrow<WhenFull::kWait>::AddressType all,
                         Narrow<WhenFull::kWait>::AddressType mine) {
  const StopToken stop = co_await current_stop_token();
  EXPECT_EQ(co_await all.ask(Question{}, stop), 1);
  scenario->pass();
  EXPECT_EQ(co_await mine.ask(Question{}, 1h, stop), 1);
  scenario->pass();
  for (int i = 0; i < 3; ++i) {
    (void)all.try_send(Fill{i});  // so that the next request waits in the wait queue
  }
  EXPECT_EQ(co_await all.ask(Question{}, stop), 1);
  scenario->pass();
  EXPECT_EQ(*co_await mine.ask(Later{}, stop), 7);
  scenario->pass();
  try {
    (void)co_await all.ask(Later{}, 4ms, stop);
  } catch (const DeadlineExceeded&) {
    scenario->pass();
  }
}

struct Asks : Scenario {
  explicit Asks(EventLoop& on) : Scenario(on), actors(on, "actors") { narrow.start(actors); }
  Task<> run() override { co_await ask_in_every_form(this, narrow.address(), mine); }
  void between(int step) override {
    for (; answered < narrow.kept.size() && answered < 1 && step > last + 5; ++answered) {
      narrow.kept[answered].send(std::make_unique<int>(7));
    }
    last = narrow.kept.size() > answered ? last : step;
  }
  Task<> finish() override {
    while (narrow.address().depth() > 0) {
      co_await tick();
    }
    for (; answered < narrow.kept.size(); ++answered) {
      narrow.kept[answered].send(std::make_unique<int>(8));  // late
    }
    check_credits(narrow.address(), mine);
    narrow.close();
    while (actors.running() > 0) {
      co_await tick();
    }
  }
  Scope actors;
  Narrow<WhenFull::kWait> narrow;
  Narrow<WhenFull::kWait>::AddressType mine = narrow.address().with_credits(1);
  std::size_t answered = 0;
  int last = 0;
};

// Another loop on the same thread, which gets a turn at each step: two loops, and still the same
// every time.
struct OtherLoop {
  OtherLoop() { narrow.start(scope); }
  void turn() {
    clock.advance(1ms);
    loop.run([]() -> Task<> { co_await sleep_for(0s); });  // inbox, what is queued, and timers
    for (; answered < narrow.kept.size(); ++answered) {
      narrow.kept[answered].send(std::make_unique<int>(7));
    }
  }
  void end() {
    narrow.close();
    while (!narrow.ended()) {
      turn();
    }
    loop.run(&Scope::join, &scope);
    EXPECT_EQ(narrow.address().depth(), 0U);
  }
  ManualClock clock{ManualClock::Idle::kWait};
  EventLoop loop{{.name = "other", .clock = &clock, .stall_limit = Duration(0)}};
  Scope scope{loop, "other"};
  Narrow<WhenFull::kWait> narrow;
  std::size_t answered = 0;
};

struct AcrossLoops : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    for (int i = 0; i < 5; ++i) {
      co_await all.send(Fill{i}, stop);
      pass();
      co_await mine.send(Fill{i}, stop);
      pass();
    }
    EXPECT_EQ(co_await all.ask(Question{}, stop), 1);
    pass();
    EXPECT_EQ(co_await mine.ask(Question{}, 1h, stop), 1);
    pass();
    EXPECT_EQ(*co_await all.ask(Later{}, stop), 7);
    pass();
  }
  void between(int) override { other.turn(); }
  Task<> finish() override {
    while (all.depth() > 0) {
      co_await tick();
    }
    for (int i = 0; i < 8; ++i) {
      co_await tick();
    }
    check_credits(all, mine);
    other.end();
  }
  OtherLoop other;
  Narrow<WhenFull::kWait>::AddressType all = other.narrow.address();
  Narrow<WhenFull::kWait>::AddressType mine = all.with_credits(1);
};

// A loop on a thread of its own, with an actor that answers in its own time.
struct Distant : Actor<Distant, Fill, Question> {
  Distant() : Actor("distant", MailboxOptions{.credits = 2}) {}
  Task<> handle(Fill fill) {
    const Tracked tracked;
    co_await yield();
  }
  Task<int> handle(Question question) {
    co_await sleep_for(50us);
    co_return 1;
  }
};
struct DistantLoop {
  DistantLoop() {
    distant.start(scope);
    thread = std::thread([this] { loop.run(&Scope::join, &scope); });
  }
  ~DistantLoop() {
    stop.request_stop();
    thread.join();
  }
  EventLoop loop{{.name = "distant"}};
  Scope scope{loop, "distant"};
  Distant distant;
  StopHandle stop = scope.stop_handle();
  std::thread thread;
};

// when_all and first_of over work that other threads do: of the pool, which cannot be cancelled,
// and of another loop.
struct CompositionsElsewhere : Scenario {
  using Scenario::Scenario;
  static Task<int> ask(Distant::AddressType to) {
    const Tracked tracked;
    const StopToken stop = co_await current_stop_token();
    co_await to.send(Fill{1}, stop);
    co_return co_await to.ask(Question{}, stop);
  }
  // Ends when the gate is opened once.
  static Task<int> compute(CompositionsElsewhere* self) {
    const Tracked tracked;
    co_return co_await self->pool.run([self] {
      while (!self->gate.exchange(false)) {
        self->gate.wait(false);
      }
      return 1;
    });
  }
  static Task<int> compute_and_fail(CompositionsElsewhere* self) {
    (void)co_await compute(self);
    co_await self->pool.for_chunks(8, [](std::size_t chunk) {
      if (chunk > 2) {
        throw std::out_of_range("chunk");
      }
    });
    co_return 0;
  }
  Task<> run() override {
    const StopToken stop = co_await current_stop_token();
    const Distant::AddressType far = other.distant.address();
    auto [a, b, c] = co_await when_all(ask(far), compute(this), nap(3ms));
    EXPECT_EQ(a + b + c, 3);
    pass();
    const std::vector<Distant::AddressType> addresses(
        5,
        far);  // two credits: the rest waits in the wait queue
    EXPECT_EQ((co_await when_all(addresses, &CompositionsElsewhere::ask)).size(), 5U);
    pass();
    EXPECT_EQ((co_await first_of(ask(far), nap(1h))).index, 0U);
    pass();
    EXPECT_EQ((co_await first_of(compute(this), nap(3ms), ask(far))).value, 1);  // any of them
    pass();
    EXPECT_EQ((co_await first_of(nap(1h), compute(this))).index, 1U);
    pass();
    bool failed = false;
    try {
      (void)co_await when_all(compute_and_fail(this), nap(1h), ask(far));
    } catch (const std::out_of_range&) {
      failed = true;
    }
    EXPECT_TRUE(failed);
    stop.throw_if_stopped();
    pass();
    EXPECT_EQ((co_await first_of(compute_and_fail(this), ask(far))).index, 1U);
    pass();
  }
  void between(int step) override {
    if (step % 4 == 3) {
      gate = true;
      gate.notify_one();
    }
    let_threads_run();
  }
  Task<> finish() override {
    while (other.distant.address().depth() > 0) {
      co_await tick();
    }
  }
  std::atomic<bool> gate{false};
  CpuPool pool{loop, {.threads = 2}};
  DistantLoop other;
};

// The actor itself lives in the scope that is stopped, and is in the middle of a handler.
struct Worker : Actor<Worker, Fill, Question> {
  Worker() : Actor("worker", MailboxOptions{.credits = 2}) {}
  Task<> handle(Fill fill) {
    const Tracked tracked;
    (void)co_await nap(3ms);
    ++handled;
  }
  Task<int> handle(Question question) {
    (void)co_await nap(3ms);
    co_return handled;
  }
  int handled = 0;
};
struct Handlers : Scenario {
  using Scenario::Scenario;
  Task<> run() override {
    co_await with_scope(
        [](Scope& scope, Handlers* self) -> Task<> {
          self->worker.start(scope);
          const auto address = self->worker.address();
          co_await address.send(Fill{1});
          co_await address.send(Fill{2});
          const StopToken stop = co_await current_stop_token();
          try {
            EXPECT_EQ(co_await address.ask(Question{}), 2);
          } catch (const ActorClosed&) {
            stop.throw_if_stopped();
            throw;
          }
          self->pass();
          (void)co_await nap(4ms);  // the worker waits for messages
          self->worker.close();
        },
        this);
    pass();
  }
  Task<> finish() override {
    EXPECT_TRUE(worker.ended() || passed == 0);
    EXPECT_EQ(worker.address().depth(), 0U);
    co_return;
  }
  Worker worker;
};

// ---- the list

// Every `kAwaitName = ...;` of the headers, and what stands for it here; "" : it needs no scenario,
// for the given reason.
struct Covered {
  const char* header;
  const char* name;
  const char* await;  // in which some scenario was stopped
};
constexpr Covered kAwaitables[] = {
    {"channel.hpp", "\"a value in a channel\"", "a value in a channel"},
    {"channel.hpp", "\"room in a channel\"", "room in a channel"},
    {"completion.hpp", "\"completion\"", "completion"},
    {"compute_lane.hpp", "\"compute lane\"", "compute lane"},
    {"cpu_pool.hpp", "\"cpu pool\"", "cpu pool"},
    {"device/device.hpp", "\"device event\"", "device event"},
    {"event.hpp", "\"event\"", "event"},
    {"event.hpp", "\"latch\"", "latch"},
    {"interop/execution.hpp", "\"sender\"",
     ""},  // needs stdexec: tests/install/consumer/senders.cpp
    {"io/file_io.hpp", "\"file\"", "file"},
    {"io/asio_await.hpp", "\"asio\"", "asio"},
    {"detail/mailbox/mailbox.hpp", "\"message\"",
     ""},  // the actor's own task awaits it, which Handlers stops; run() never does
    {"detail/mailbox/mailbox_await.hpp", "kTypeName<M>", "Fill"},
    {"detail/mailbox/mailbox_await.hpp", "kTypeName<R>", "Question"},
    {"io/net.hpp", "\"net\"", "net"},
    {"scope.hpp", "\"tasks of a scope\"", "tasks of a scope"},
    {"semaphore.hpp", "\"semaphore\"", "semaphore"},
    {"sleep.hpp", "\"sleep\"", "sleep"},
    {"sleep.hpp", "\"yield\"", "yield"},
};

std::multiset<std::string> names_in_headers() {
  std::multiset<std::string> found;
  const std::filesystem::path root = std::filesystem::path(test::source_dir()) / "runtime";
  const std::regex pattern("kAwaitName\\s*=\\s*([^;]+);");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".hpp") {
      continue;
    }
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const std::string content = text.str();
    for (std::sregex_iterator at(content.begin(), content.end(), pattern), end; at != end; ++at) {
      found.insert(std::filesystem::relative(entry.path(), root).string() + ": " + (*at)[1].str());
    }
  }
  return found;
}

TEST(CancelEnumeration, EveryAwaitableAtEveryPoint) {
  std::set<std::string> seen;
  const auto note = [&](std::set<std::string> stopped_in) { seen.merge(stopped_in); };
  note(enumerate_cancels<Sleeps>("sleep, yield"));
  note(enumerate_cancels<Events>("event, latch"));
  note(enumerate_cancels<Channels>("channel, semaphore"));
  note(enumerate_cancels<Sends<WhenFull::kWait>>("send, wait"));
  note(enumerate_cancels<Sends<WhenFull::kReject>>("send, reject"));
  note(enumerate_cancels<Sends<WhenFull::kDropOldest>>("send, drop-oldest"));
  note(enumerate_cancels<Sends<WhenFull::kCoalesce>>("send, coalesce"));
  note(enumerate_cancels<Asks>("ask"));
  note(enumerate_cancels<AcrossLoops>("send and ask, other loop"));
  note(enumerate_cancels<Handlers>("handlers"));
  note(enumerate_cancels<Compositions>("when_all, first_of, ..."));
  note(enumerate_cancels<CompositionsElsewhere>("when_all, ... elsewhere"));
  note(enumerate_cancels<Threads>("completion, lane, pool"));
  note(enumerate_cancels<Files>("file"));
  note(enumerate_cancels<AsioTimer>("asio"));
  note(enumerate_cancels<Receives>("net"));
  note(enumerate_cancels<DeviceEvents>("device event"));
  std::set<std::string> listed;
  for (const Covered& one : kAwaitables) {
    listed.insert(std::string(one.header) + ": " + one.name);
    EXPECT_TRUE(*one.await == '\0' || seen.count(one.await) == 1)
        << "nothing was stopped while it awaited " << one.await;
  }
  for (const std::string& name : names_in_headers()) {
    EXPECT_EQ(listed.count(name), 1U)
        << "runtime/" << name << " is awaited by no scenario: add it to kAwaitables, and one";
  }
}

}  // namespace
}  // namespace tandem
