#include "runtime/actor.hpp"

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Note {
  int value;
};
struct NoteSlowly {
  int value;
};
struct Read {
  using Reply = std::vector<int>;
};
struct ReadSlowly {
  using Reply = int;
  explicit ReadSlowly(int add_in) : add(add_in) {}
  int add;
};
struct Promise {
  using Reply = std::unique_ptr<int>;
};
struct Flush {
  using Reply = void;
};
struct Fail {
  std::string text;
};
struct FailAsk {
  using Reply = int;
};
struct FailSlowly {
  using Reply = int;
};

struct Book
    : Actor<Book, Note, NoteSlowly, Read, ReadSlowly, Promise, Flush, Fail, FailAsk, FailSlowly> {
  explicit Book(std::uint32_t credits = 256) : Actor("book", credits) {}
  void handle(Note m) { notes.push_back(m.value); }
  Task<> handle(NoteSlowly m) {
    notes.push_back(-m.value);
    co_await sleep_for(1ms);
    notes.push_back(m.value);
  }
  std::vector<int> handle(Read) { return notes; }
  Task<int> handle(ReadSlowly r) {
    co_await sleep_for(1ms);
    co_return static_cast<int>(notes.size()) + r.add;
  }
  void handle(Promise, ReplyTo<Promise> reply) { promised.push_back(std::move(reply)); }
  void handle(Flush) { ++flushes; }
  void handle(Fail m) { throw std::runtime_error(m.text); }
  int handle(FailAsk) { throw std::runtime_error("asked"); }
  Task<int> handle(FailSlowly) {
    co_await sleep_for(1ms);
    throw std::runtime_error("slowly");
  }
  void on_close() { ++closes; }

  std::vector<int> notes;
  std::vector<ReplyTo<Promise>> promised;
  int flushes = 0;
  int closes = 0;
};
using BookAddress = Book::AddressType;

class ActorTest : public ::testing::Test {
 protected:
  void SetUp() override { book.start(scope); }
  void TearDown() override {
    book.close();
    try {
      loop.run(&Scope::join, &scope);
    } catch (const std::exception&) {
    }
    EXPECT_TRUE(book.ended());
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  Scope scope{loop, "actors"};
  Book book;
};

TEST_F(ActorTest, HandlesEveryFormOfHandler) {
  loop.run(
      [](Book* b) -> Task<> {
        const BookAddress address = b->address();
        EXPECT_EQ(address.try_send(Note{1}), SendResult::kSent);
        co_await address.send(NoteSlowly{2});
        co_await address.send(Note{3});
        EXPECT_EQ(co_await address.ask(Read{}), (std::vector<int>{1, -2, 2, 3}));
        EXPECT_EQ(co_await address.ask(ReadSlowly(10)), 14);
        co_await address.ask(Flush{});
        EXPECT_EQ(b->flushes, 1);
      },
      &book);
}

TEST_F(ActorTest, AnswersLaterAndInAnyOrder) {
  std::vector<int> got;
  auto asks = [](BookAddress address, std::vector<int>* out) -> Task<> {
    out->push_back(*co_await address.ask(Promise{}));
  };
  scope.spawn("first", asks, book.address(), &got);
  scope.spawn("second", asks, book.address(), &got);
  loop.run(
      [](Book* b) -> Task<> {
        while (b->promised.size() < 2) {
          co_await yield();
        }
        b->promised[1].send(std::make_unique<int>(2));
        co_await yield();
        co_await yield();
        b->promised[0].send(std::make_unique<int>(1));
        EXPECT_FALSE(b->promised[0]);
        co_await yield();
        co_await yield();
      },
      &book);
  EXPECT_EQ(got, (std::vector<int>{2, 1}));
}

template <class E, class R>
Task<std::string> text_of_failure(BookAddress address, R request) {
  std::string text;
  try {
    (void)co_await address.ask(std::move(request));
  } catch (const E& error) {
    text = error.what();
  }
  co_return text;
}

TEST_F(ActorTest, ADroppedOrFailedReplyFailsTheAsker) {
  std::string text;
  scope.spawn(
      "asker",
      [](BookAddress address, std::string* out) -> Task<> {
        *out = co_await text_of_failure<Error>(address, Promise{});
      },
      book.address(), &text);
  auto wait = [](Book* b) -> Task<> {
    while (b->promised.empty()) {
      co_await yield();
    }
  };
  // Idle once: what is in the inbox has been delivered by then.
  auto turns = []() -> Task<> { co_await sleep_for(1s); };
  loop.run(wait, &book);
  book.promised.clear();
  loop.run(turns);
  EXPECT_EQ(text, "[actor] Promise was dropped without an answer");

  scope.spawn(
      "asker",
      [](BookAddress address, std::string* out) -> Task<> {
        *out = co_await text_of_failure<std::logic_error>(address, Promise{});
      },
      book.address(), &text);
  loop.run(wait, &book);
  book.promised[0].fail(std::make_exception_ptr(std::logic_error("on purpose")));
  loop.run(turns);
  EXPECT_EQ(text, "on purpose");
  EXPECT_FALSE(book.ended());
}

// ---- order, bounds, credits
TEST_F(ActorTest, KeepsTheOrderOfOneSender) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(book.address().try_send(Note{i}), SendResult::kSent);
  }
  const std::vector<int> notes = loop.run(
      [](BookAddress address) -> Task<std::vector<int>> { co_return co_await address.ask(Read{}); },
      book.address());
  ASSERT_EQ(notes.size(), 100U);
  EXPECT_TRUE(std::is_sorted(notes.begin(), notes.end()));
}

struct Slow : Actor<Slow, Note, Flush> {
  Slow() : Actor("slow", 4) {}
  Task<> handle(Note m) {
    co_await sleep_for(1s);
    notes.push_back(m.value);
  }
  void handle(Flush) {}
  std::vector<int> notes;
};

TEST(Mailbox, TakesAsManyAsItHasCredits) {
  ManualClock clock;
  EventLoop loop({.clock = &clock});
  Scope scope(loop);
  Slow slow;
  slow.start(scope);
  const auto address = slow.address();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(address.try_send(Note{i}), SendResult::kSent);
  }
  Note fifth{4};
  EXPECT_EQ(address.try_send(std::move(fifth)), SendResult::kFull);
  EXPECT_EQ(address.depth(), 4U);
  loop.run(
      [](Slow* s) -> Task<> {
        for (int i = 4; i < 20; ++i) {
          co_await s->address().send(Note{i});  // waits in the wait queue
          EXPECT_LE(s->address().depth(), 4U);
        }
        co_await s->address().ask(Flush{});
      },
      &slow);
  std::vector<int> expected(20);
  for (int i = 0; i < 20; ++i) {
    expected[static_cast<std::size_t>(i)] = i;
  }
  EXPECT_EQ(slow.notes, expected);
  slow.close();
  loop.run(&Scope::join, &scope);
}

TEST(Mailbox, ServesTheLineInItsOrderBeforeNewcomers) {
  ManualClock clock;
  EventLoop loop({.clock = &clock});
  Scope scope(loop);
  Slow slow;
  slow.start(scope);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(slow.address().try_send(Note{i}), SendResult::kSent);
  }
  auto sender = [](Address<Note> address, int value) -> Task<> {
    co_await address.send(Note{value});
  };
  for (int i = 10; i < 15; ++i) {
    scope.spawn("sender", sender, Address<Note>(slow.address()), i);
  }
  loop.run(
      [](Slow* s) -> Task<> {
        co_await sleep_for(1500ms);
        EXPECT_EQ(s->address().try_send(Note{99}), SendResult::kFull);
        co_await s->address().ask(Flush{});
      },
      &slow);
  EXPECT_EQ(slow.notes, (std::vector<int>{0, 1, 2, 3, 10, 11, 12, 13, 14}));
  slow.close();
  loop.run(&Scope::join, &scope);
}

TEST(Mailbox, IsExactFromManyThreads) {
  struct Adder : Actor<Adder, Note> {
    Adder() : Actor("adder", 32) {}
    void handle(Note m) {
      if (m.value <= last[static_cast<std::size_t>(m.value % 4)]) {
        ordered = false;
      }
      last[static_cast<std::size_t>(m.value % 4)] = m.value;
      if (++count == 4 * 5000) {
        done->set();
      }
    }
    std::array<int, 4> last{-1, -1, -1, -1};
    bool ordered = true;
    int count = 0;
    Event* done = nullptr;
  };
  EventLoop loop;
  Scope scope(loop);
  Event done;
  Adder adder;
  adder.done = &done;
  adder.start(scope);
  std::vector<std::thread> threads;
  std::atomic<int> full{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([address = adder.address(), t, &full] {
      for (int i = 0; i < 5000; ++i) {
        while (address.try_send(Note{4 * i + t}) != SendResult::kSent) {
          ++full;
          std::this_thread::yield();
        }
      }
    });
  }
  loop.run([](Event* event) -> Task<> { co_await *event; }, &done);
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(adder.count, 4 * 5000);
  EXPECT_TRUE(adder.ordered);
  EXPECT_EQ(adder.address().depth(), 0U);
  adder.close();
  loop.run(&Scope::join, &scope);
}

// ---- the end
TEST_F(ActorTest, CloseRefusesNewMessagesAndHandlesTheAccepted) {
  const BookAddress address = book.address();
  EXPECT_EQ(address.try_send(Note{1}), SendResult::kSent);
  EXPECT_EQ(address.try_send(Note{2}), SendResult::kSent);
  book.close();
  EXPECT_TRUE(address.closed());
  EXPECT_EQ(address.try_send(Note{3}), SendResult::kClosed);
  const std::string text = loop.run(&text_of_failure<ActorClosed, Read>, address, Read{});
  EXPECT_EQ(text, "[actor] book does not take messages any more");
  loop.run(&Scope::join, &scope);
  EXPECT_EQ(book.notes, (std::vector<int>{1, 2}));
  EXPECT_EQ(book.closes, 1);
}

TEST_F(ActorTest, AStopOfTheScopeDropsTheAcceptedAndFailsTheirAskers) {
  std::string text;
  scope.spawn(
      "asker",
      [](BookAddress address, std::string* out) -> Task<> {
        EXPECT_EQ(address.try_send(NoteSlowly{1}), SendResult::kSent);
        EXPECT_EQ(address.try_send(Note{2}), SendResult::kSent);
        *out = co_await text_of_failure<ActorClosed>(address, Read{});
      },
      book.address(), &text);
  loop.run(
      [](Book* b, Scope* s) -> Task<> {
        while (b->notes.empty()) {
          co_await yield();
        }
        s->request_stop();
        co_await s->join();
      },
      &book, &scope);
  EXPECT_EQ(book.notes,
            (std::vector<int>{-1, 1}));  // the one under way ended, the next was dropped
  EXPECT_NE(text, "");
}

TEST_F(ActorTest, AnPendingReplyFailsWhenTheActorEnds) {
  // The asker and the actor share a scope: without this it could never be joined.
  std::string text;
  scope.spawn(
      "asker",
      [](BookAddress address, std::string* out) -> Task<> {
        *out = co_await text_of_failure<ActorClosed>(address, Promise{});
      },
      book.address(), &text);
  loop.run(
      [](Book* b) -> Task<> {
        while (b->promised.empty()) {
          co_await yield();
        }
      },
      &book);
  book.close();
  loop.run(&Scope::join, &scope);
  EXPECT_NE(text, "");
  book.promised[0].send(nullptr);  // too late, and harmless
}

TEST_F(ActorTest, AFailingHandlerClosesTheActorAndFailsItsScope) {
  EXPECT_EQ(book.address().try_send(Fail{"broken"}), SendResult::kSent);
  EXPECT_EQ(book.address().try_send(Note{1}), SendResult::kSent);
  EXPECT_THAT([&] { loop.run(&Scope::join, &scope); },
              ::testing::ThrowsMessage<std::runtime_error>("broken"));
  EXPECT_STREQ(scope.failures()[0].task, "book");
  EXPECT_TRUE(book.notes.empty());
  EXPECT_EQ(book.closes, 1);
  EXPECT_EQ(book.address().try_send(Note{2}), SendResult::kClosed);
}

TEST_F(ActorTest, AFailingAskGoesToTheAskerAndToTheScope) {
  EXPECT_EQ(loop.run(&text_of_failure<std::runtime_error, FailAsk>, book.address(), FailAsk{}),
            "asked");
  EXPECT_THROW(loop.run(&Scope::join, &scope), std::runtime_error);
}

TEST_F(ActorTest, AFailingSlowAskGoesToTheAskerAndToTheScope) {
  EXPECT_EQ(
      loop.run(&text_of_failure<std::runtime_error, FailSlowly>, book.address(), FailSlowly{}),
      "slowly");
  EXPECT_THROW(loop.run(&Scope::join, &scope), std::runtime_error);
}

TEST(Actor, AnAddressOutlivesItsActor) {
  EventLoop loop;
  Address<Note> note;
  BookAddress address;
  EXPECT_EQ(note.try_send(Note{1}), SendResult::kClosed);
  {
    Scope scope(loop);
    Book book;
    address = book.address();
    note = address;  // narrower
    book.start(scope);
    EXPECT_EQ(note.try_send(Note{1}), SendResult::kSent);
    book.close();
    loop.run(&Scope::join, &scope);
    EXPECT_EQ(book.notes, (std::vector<int>{1}));
  }
  EXPECT_TRUE(address.closed());
  EXPECT_EQ(note.try_send(Note{1}), SendResult::kClosed);
  EXPECT_NE(loop.run(&text_of_failure<ActorClosed, Read>, address, Read{}), "");
  EXPECT_THROW(loop.run([](Address<Note> a) -> Task<> { co_await a.send(Note{1}); }, note),
               ActorClosed);
}

TEST(Actor, MessagesInFlightFromAnotherThreadSurviveItsEnd) {
  EventLoop loop;
  {
    Scope scope(loop);
    Book book;
    book.start(scope);
    // Into the loop's inbox, while the loop does not run; the actor ends before they arrive.
    std::thread([address = book.address()] {
      EXPECT_EQ(address.try_send(Fail{"never handled"}), SendResult::kSent);
    }).join();
    scope.request_stop();
    loop.run(&Scope::join, &scope);
  }
  loop.run([]() -> Task<> { co_await yield(); });
}

TEST(Actor, QueuesWhatIsSentBeforeItsStart) {
  EventLoop loop;
  Scope scope(loop);
  Book book;
  EXPECT_EQ(book.address().try_send(Note{5}), SendResult::kSent);
  book.start(scope);
  EXPECT_EQ(loop.run([](BookAddress a) -> Task<int> { co_return (co_await a.ask(Read{}))[0]; },
                     book.address()),
            5);
  book.close();
  loop.run(&Scope::join, &scope);
}

TEST(Actor, OneThatWasNeverStartedMayDie) {
  BookAddress address;
  {
    Book book;
    address = book.address();
    EXPECT_EQ(address.try_send(Note{5}), SendResult::kSent);
  }
  EXPECT_EQ(address.try_send(Note{5}), SendResult::kClosed);
}

TEST(ActorDeathTest, DiesAfterItsEndOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        EventLoop loop;
        Scope scope(loop);
        Book book;
        book.start(scope);
        loop.run([]() -> Task<> { co_await yield(); });
        book.~Book();
      },
      "an actor died before it had ended");
}

TEST(Actor, GreedyPairsLeaveTurnsToOthers) {
  struct Loud : Actor<Loud, Note> {
    void handle(Note m) { (void)address().try_send(Note{m.value + 1}); }  // for ever
  };
  EventLoop loop;
  Scope scope(loop);
  Loud loud;
  loud.start(scope);
  EXPECT_EQ(loud.address().try_send(Note{0}), SendResult::kSent);
  loop.run([]() -> Task<> { co_await sleep_for(2ms); });
  loud.close();
  loop.run(&Scope::join, &scope);
}

}  // namespace
}  // namespace tandem
