#include "runtime/message_tap.hpp"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/actor.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

struct Note {
  int value;
};
struct Read {
  using Reply = std::vector<int>;
};
struct Book : Actor<Book, Note, Read> {
  explicit Book(std::uint32_t credits = 256) : Actor("book", credits) {}
  void handle(Note m) { notes.push_back(m.value); }
  std::vector<int> handle(Read) { return notes; }
  std::vector<int> notes;
};

struct HoldAll : MessageTap {
  void on_message(TappedMessage envelope) noexcept override { held.push_back(std::move(envelope)); }
  std::vector<TappedMessage> held;
};

class MessageTapTest : public ::testing::Test {
 protected:
  void SetUp() override {
    loop.set_message_tap(&tap);
    book.start(scope);
  }
  void TearDown() override {
    loop.set_message_tap(nullptr);
    book.close();
    loop.run(&Scope::join, &scope);
    tap.held.clear();
  }
  // Everything that can run has run.
  void settle() {
    loop.run([]() -> Task<> { co_await sleep_for(1ms); });
  }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
  HoldAll tap;
  Scope scope{loop, "actors"};
  Book book;
};

TEST_F(MessageTapTest, HoldsReordersAndDelivers) {
  (void)book.address().try_send(Note{1});
  settle();
  scope.spawn(
      "writer", [](Book::AddressType to) -> Task<> { co_await to.send(Note{2}); }, book.address());
  settle();
  ASSERT_EQ(tap.held.size(), 2U);
  EXPECT_TRUE(book.notes.empty());
  EXPECT_STREQ(tap.held[0].message(), "Note");
  EXPECT_STREQ(tap.held[0].from(), "outside");
  EXPECT_STREQ(tap.held[0].to(), "book");
  EXPECT_STREQ(tap.held[1].from(), "writer");
  EXPECT_EQ(tap.held[1].target(), tap.held[0].target());
  EXPECT_TRUE(tap.held[1].is<Note>());
  EXPECT_FALSE(tap.held[1].is<Read>());
  EXPECT_EQ(tap.held[1].get<Note>().value, 2);
  tap.held[1].deliver();
  tap.held[0].deliver();
  EXPECT_FALSE(tap.held[0]);
  settle();
  EXPECT_EQ(book.notes, (std::vector<int>{2, 1}));
}

TEST_F(MessageTapTest, ADroppedAskIsReturnedAndItsCreditComesBack) {
  std::string text;
  scope.spawn(
      "asker",
      [](Book::AddressType to, std::string* out) -> Task<> {
        try {
          (void)co_await to.ask(Read{});
        } catch (const ActorClosed& error) {
          *out = error.what();
        }
      },
      book.address(), &text);
  settle();
  ASSERT_EQ(tap.held.size(), 1U);
  EXPECT_EQ(book.address().depth(), 1U);
  tap.held.clear();
  EXPECT_EQ(book.address().depth(), 0U);
  settle();
  EXPECT_EQ(text, "[actor] book does not take messages any more");
  EXPECT_FALSE(book.ended());
}

TEST_F(MessageTapTest, ADropServesTheLine) {
  Book small(1);
  small.start(scope);
  scope.spawn(
      "writer",
      [](Book::AddressType to) -> Task<> {
        co_await to.send(Note{1});
        co_await to.send(Note{2});
      },
      small.address());
  settle();
  ASSERT_EQ(tap.held.size(), 1U);
  std::exchange(tap.held, {})[0].drop();
  ASSERT_EQ(tap.held.size(), 1U);
  EXPECT_EQ(tap.held[0].get<Note>().value, 2);
  EXPECT_STREQ(tap.held[0].from(), "writer");
  tap.held[0].deliver();
  settle();
  EXPECT_EQ(small.notes, (std::vector<int>{2}));
  small.close();
  settle();
}

TEST_F(MessageTapTest, AClosedActorWaitsForHeldMail) {
  (void)book.address().try_send(Note{1});
  (void)book.address().try_send(Note{2});
  settle();
  book.close();
  settle();
  EXPECT_FALSE(book.ended());
  tap.held[0].deliver();
  settle();
  EXPECT_FALSE(book.ended());
  tap.held[1].drop();
  settle();
  EXPECT_TRUE(book.ended());
  EXPECT_EQ(book.notes, (std::vector<int>{1}));
}

TEST_F(MessageTapTest, HeldMailOutlivesItsActor) {
  {
    Book gone;
    Scope own(loop, "own");
    gone.start(own);
    (void)gone.address().try_send(Note{1});
    (void)gone.address().try_send(Note{2});
    settle();
    own.request_stop();
    loop.run(&Scope::join, &own);
  }
  ASSERT_EQ(tap.held.size(), 2U);
  EXPECT_STREQ(tap.held[0].to(), "book");
  tap.held[0].deliver();
  tap.held[1].drop();
}

TEST_F(MessageTapTest, MessagesSentBeforeTheStartAndFromAnotherThreadPassesTheTap) {
  Book late;
  (void)late.address().try_send(Note{1});
  EXPECT_TRUE(tap.held.empty());
  late.start(scope);
  ASSERT_EQ(tap.held.size(), 1U);
  std::thread([address = late.address()] { (void)address.try_send(Note{2}); }).join();
  settle();
  ASSERT_EQ(tap.held.size(), 2U);
  EXPECT_STREQ(tap.held[1].from(), "outside");
  tap.held[1].deliver();
  tap.held[0].deliver();
  settle();
  EXPECT_EQ(late.notes, (std::vector<int>{2, 1}));
  late.close();
  settle();
}

TEST_F(MessageTapTest, WithoutATapMailIsDeliveredAgain) {
  loop.set_message_tap(nullptr);
  (void)book.address().try_send(Note{1});
  settle();
  EXPECT_TRUE(tap.held.empty());
  EXPECT_EQ(book.notes, (std::vector<int>{1}));
}

}  // namespace
}  // namespace tandem
