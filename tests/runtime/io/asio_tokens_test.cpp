// use_task as a whole completion token: every signature, adapters, awaitables of Asio both ways,
// and what a stop leaves behind. Asio 1.22 looks for coroutines in GCC and Visual C++ alone.
#define ASIO_HAS_CO_AWAIT 1
#define ASIO_HAS_STD_COROUTINE 1
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#if __has_include(<asio/as_tuple.hpp>)
#include <asio/as_tuple.hpp>
#else
#include <asio/experimental/as_tuple.hpp>
#endif
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/connect_pair.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <gtest/gtest.h>

#include "runtime/io/asio_await.hpp"
#include "runtime/io/asio_run.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using Socket = asio::local::stream_protocol::socket;
#if __has_include(<asio/as_tuple.hpp>)
using asio::as_tuple;
#else
using asio::experimental::as_tuple;
#endif

struct NoDefault {
  explicit NoDefault(int v) : value(v) {}
  int value;
};

// An operation of one's own: its handler is called with `results` from the reactor.
template <class Signature, class Token, class... Results>
auto complete_with(Token token, Results... results) {
  return asio::async_initiate<Token, Signature>(
      [](auto handler, Results... all) {
        asio::post(EventLoop::current().reactor(),
                   [handler = std::move(handler), ... rest = std::move(all)]() mutable {
                     std::move(handler)(std::move(rest)...);
                   });
      },
      token, std::move(results)...);
}

TEST(AsioTokens, EverySignatureGivesItsValues) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    const asio::error_code good;
    co_await asio::post(EventLoop::current().reactor(), use_task);  // void()
    EXPECT_EQ((co_await complete_with<void(int)>(use_task, 3)), 3);
    EXPECT_EQ((co_await complete_with<void(int, std::string)>(use_task, 3, std::string("x"))),
              std::tuple(3, "x"));
    EXPECT_EQ((co_await complete_with<void(asio::error_code, int, int)>(use_task, good, 1, 2)),
              std::tuple(1, 2));
    EXPECT_EQ(
        (co_await complete_with<void(asio::error_code, NoDefault)>(use_task, good, NoDefault(7)))
            .value,
        7);
    const auto [error, value] = co_await complete_with<void(asio::error_code, NoDefault)>(
        use_task_result, good, NoDefault(8));
    EXPECT_FALSE(error);
    EXPECT_EQ(value.value, 8);
    EXPECT_EQ(
        (co_await complete_with<void(std::exception_ptr, int)>(use_task, std::exception_ptr(), 5)),
        5);
    co_await complete_with<void(std::exception_ptr)>(use_task, std::exception_ptr());
    EXPECT_EQ(
        *(co_await complete_with<void(std::unique_ptr<int>)>(use_task, std::make_unique<int>(6))),
        6);
  });
}

// Its handler is called with `thing` itself.
template <class Signature, class Thing, class Token>
auto refer_to(Thing& thing, Token token) {
  return asio::async_initiate<Token, Signature>(
      [](auto handler, Thing* at) {
        asio::post(EventLoop::current().reactor(), [handler = std::move(handler), at]() mutable {
          if constexpr (std::is_same_v<Signature, void(asio::error_code, Thing&)>) {
            std::move(handler)(asio::error_code(), *at);
          } else {
            std::move(handler)(*at);
          }
        });
      },
      token, &thing);
}

TEST(AsioTokens, AReferenceIsGivenAsOne) {
  EventLoop loop;
  std::unique_ptr<int> owner = std::make_unique<int>(7);  // no copy of it can be made
  const std::string text = "text";
  loop.run(
      [](std::unique_ptr<int>* at, const std::string* read) -> Task<> {
        using Owner = std::unique_ptr<int>;
        Owner& plain = co_await refer_to<void(Owner&)>(*at, use_task);
        EXPECT_EQ(&plain, at);
        Owner& behind_error = co_await refer_to<void(asio::error_code, Owner&)>(*at, use_task);
        EXPECT_EQ(&behind_error, at);
        const auto [error, beside_error] =
            co_await refer_to<void(asio::error_code, Owner&)>(*at, use_task_result);
        EXPECT_FALSE(error);
        EXPECT_EQ(&beside_error, at);
        // A constant value may be a temporary of the operation, so it is copied.
        auto&& copied = co_await refer_to<void(const std::string&)>(*read, use_task);
        static_assert(std::is_same_v<decltype(copied), std::string&&>);
        EXPECT_EQ(copied, "text");
      },
      &owner, &text);
}

TEST(AsioTokens, AnExceptionIsThrownAsItIs) {
  EventLoop loop;
  EXPECT_THROW(loop.run([]() -> Task<> {
    (void)co_await complete_with<void(std::exception_ptr, int)>(
        use_task, std::make_exception_ptr(std::out_of_range("x")), 5);
  }),
               std::out_of_range);
}

TEST(AsioTokens, AdaptersTakeIt) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Socket a(EventLoop::current().reactor());
    Socket b(EventLoop::current().reactor());
    asio::local::connect_pair(a, b);
    const auto [error, moved] =
        co_await asio::async_write(a, asio::buffer("abc", 3), as_tuple(use_task));
    EXPECT_FALSE(error);
    EXPECT_EQ(moved, 3U);
    a.close();
    char bytes[10];
    asio::error_code end;
    EXPECT_EQ(
        co_await asio::async_read(b, asio::buffer(bytes), asio::redirect_error(use_task, end)), 3U);
    EXPECT_EQ(end, asio::error::eof);
  });
}

asio::awaitable<int> theirs(int value) {
  asio::steady_timer timer(co_await asio::this_coro::executor, 1ms);
  co_await timer.async_wait(asio::use_awaitable);
  if (value < 0) {
    throw std::out_of_range("negative");
  }
  co_return value;
}

TEST(AsioTokens, AnAwaitableOfAsioIsAwaitedByATask) {
  EventLoop loop;
  const auto ask = [](int value) -> Task<int> {
    co_return co_await asio::co_spawn(EventLoop::current().reactor(), theirs(value), use_task);
  };
  EXPECT_EQ(loop.run(ask, 5), 5);
  EXPECT_THROW(loop.run(ask, -1), std::out_of_range);
}

Task<int> ours(int value) {
  co_await sleep_for(1ms);
  if (value < 0) {
    throw std::out_of_range("negative");
  }
  co_return value;
}

asio::awaitable<int> asks_ours(Scope* scope, int value) {
  co_return co_await async_run(*scope, asio::use_awaitable, &ours, value);
}

TEST(AsioTokens, ATaskIsAwaitedByAnAwaitableOfAsio) {
  EventLoop loop;
  Scope scope(loop, "ours");
  const auto ask = [](Scope* in, int value) -> Task<int> {
    co_return co_await asio::co_spawn(EventLoop::current().reactor(), asks_ours(in, value),
                                      use_task);
  };
  EXPECT_EQ(loop.run(ask, &scope, 5), 5);
  EXPECT_THROW(loop.run(ask, &scope, -1), std::out_of_range);
  loop.run(&Scope::join, &scope);
}

TEST(AsioTokens, AStoppedTransferSaysHowMuchItMoved) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    Socket a(EventLoop::current().reactor());
    Socket b(EventLoop::current().reactor());
    asio::local::connect_pair(a, b);
    (void)co_await asio::async_write(a, asio::buffer("abcd", 4), use_task);
    co_await with_scope(
        [](Scope& scope, Socket* socket) -> Task<> {
          scope.spawn(
              "stopper",
              [](Scope* of) -> Task<> {
                co_await sleep_for(5ms);
                of->request_stop();
              },
              &scope);
          char bytes[10];
          const auto [error, moved] = co_await asio::async_read(
              *socket, asio::buffer(bytes), use_task_result(scope.stop_token()));
          EXPECT_EQ(error, asio::error::operation_aborted);
          EXPECT_EQ(moved, 4U);
        },
        &b);
  });
}

// The signal that a socket's read has used is the next operation's; a look-up installs nothing in
// its slot, so what the socket left there would be called.
TEST(AsioTokens, AStopReachesNoOperationThatHasEnded) {
  EventLoop loop;
  int cancelled = 0;
  {
    detail::CancelSignal first;
    first.slot().assign([&cancelled](asio::cancellation_type) { ++cancelled; });
  }
  detail::CancelSignal second;
  second.emit();
  EXPECT_EQ(cancelled, 0);
}

TEST(AsioTokens, AnotherIoContextCompletesOnTheLoop) {
  EventLoop loop;
  asio::io_context other;
  auto work = asio::make_work_guard(other);
  std::thread thread([&] { other.run(); });
  EXPECT_TRUE(loop.run(
      [](asio::io_context* elsewhere) -> Task<bool> {
        const auto before = std::this_thread::get_id();
        asio::steady_timer timer(*elsewhere, 1ms);
        co_await timer.async_wait(use_task);
        co_return before == std::this_thread::get_id();
      },
      &other));
  work.reset();
  thread.join();
}

TEST(AsioTokens, AnExceptionOfAPlainHandlerLeavesRunAndTheLoopGoesOn) {
  EventLoop loop;
  int ended = 0;
  const auto sleeps = [](int* count) -> Task<> {
    co_await sleep_for(20ms);
    ++*count;
  };
  for (const bool asleep : {false, true}) {
    asio::steady_timer timer(loop.reactor(), asleep ? 5ms : 0ms);
    timer.async_wait([](const asio::error_code&) { throw std::out_of_range("handler"); });
    EXPECT_THROW(loop.run(sleeps, &ended), std::out_of_range);
  }
  EXPECT_EQ(ended, 0);
  loop.run([]() -> Task<> { co_await sleep_for(50ms); });
  EXPECT_EQ(ended, 2);  // the tasks of those runs went on
}

}  // namespace
}  // namespace tandem
