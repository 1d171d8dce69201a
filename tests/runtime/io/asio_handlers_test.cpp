// The handler that use_task gives to an operation takes Asio's adapters, and a task whose handler
// was dropped does not wait for ever.
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include <asio/bind_allocator.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/thread_pool.hpp>
#include <gtest/gtest.h>

#include "runtime/io/asio_await.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

constexpr const char* kDropped =
    "[asio] an operation has gone without a result: what it ran on died first; end the operation "
    "before that";

// Calls its handler never: it dies at once, or when the loop comes to it.
template <class Token>
auto forget(Token token, bool at_once) {
  return asio::async_initiate<Token, void(asio::error_code, int)>(
      [at_once](auto handler) {
        auto kept = std::make_shared<decltype(handler)>(std::move(handler));
        if (!at_once) {
          EventLoop::current().post([kept]() mutable { kept.reset(); });
        }
      },
      token);
}

template <class Token>
auto fail_to_begin(Token token) {
  return asio::async_initiate<Token, void(asio::error_code)>(
      [](auto handler) {
        const auto mine = std::move(handler);
        throw std::out_of_range("no memory");
      },
      token);
}

TEST(AsioHandlers, BindToExecutorsAllocatorsAndSlots) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    EventLoop& here = EventLoop::current();
    asio::steady_timer timer(here.reactor(), 1ms);
    asio::thread_pool pool(1);
    co_await timer.async_wait(asio::bind_executor(pool, use_task));
    EXPECT_EQ(EventLoop::current_or_null(), &here);
    timer.expires_after(1ms);
    co_await timer.async_wait(asio::bind_allocator(std::allocator<void>(), use_task));
    asio::cancellation_signal signal;
    timer.expires_after(1h);
    here.post([&signal] { signal.emit(asio::cancellation_type::terminal); });
    const asio::error_code error =
        co_await timer.async_wait(asio::bind_cancellation_slot(signal.slot(), use_task_result));
    EXPECT_EQ(error, asio::error::operation_aborted);
  });
}

TEST(AsioHandlers, OneThatIsDroppedEndsItsAwait) {
  for (const bool at_once : {true, false}) {
    for (const bool stoppable : {true, false}) {
      EventLoop loop;
      const auto forgotten = [](bool soon, bool with_token) -> Task<> {
        StopSource source;
        (void)co_await forget(use_task(with_token ? source.token() : StopToken()), soon);
      };
      EXPECT_THAT([&] { loop.run(forgotten, at_once, stoppable); }, ThrowsError<Error>(kDropped));
    }
  }
}

TEST(AsioHandlers, TheEndOfAnIoContextEndsTheAwaitsOnIt) {
  EventLoop loop;
  const auto outlived = []() -> Task<> {
    auto other = std::make_unique<asio::io_context>();
    std::optional<asio::steady_timer> timer(std::in_place, *other, 1h);
    EventLoop::current().post([&] {
      timer.reset();
      other.reset();
    });
    co_await timer->async_wait(use_task);
  };
  EXPECT_THAT([&] { loop.run(outlived); }, ThrowsError<Error>(kDropped));
}

TEST(AsioHandlers, WhatTheInitiationThrowsComesOutOfTheAwaitOnce) {
  EventLoop loop;
  int ended = 0;
  loop.run(
      [](int* count) -> Task<> {
        StopSource source;
        for (int i = 0; i < 3; ++i) {
          bool thrown = false;
          try {
            co_await fail_to_begin(use_task(source.token()));
          } catch (const std::out_of_range&) {
            thrown = true;
          }
          co_await sleep_for(1ms);
          *count += thrown ? 1 : 0;
        }
        source.request_stop();
      },
      &ended);
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace tandem
