// Sockets, signals and eventfds through use_task: values, errors, cancellation, between two tasks
// and two loops.
#include "runtime/io/asio_await.hpp"

#include <csignal>
#include <string>
#include <thread>

#include <asio/ip/tcp.hpp>
#include <asio/local/connect_pair.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/read.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/io/event_fd.hpp"
#include "runtime/io/signals.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/socket_path.hpp"

namespace tandem {
namespace {

using asio::ip::tcp;
using asio::local::stream_protocol;

constexpr std::size_t kMessageBytes = 1000;

tcp::endpoint any_port() { return {asio::ip::address_v4::loopback(), 0}; }

// Sends back what comes until the other side closes.
template <class Protocol>
Task<std::size_t> echo(typename Protocol::acceptor* acceptor) {
  typename Protocol::socket socket = co_await acceptor->async_accept(use_task);
  std::size_t total = 0;
  std::byte bytes[256];
  for (;;) {
    const auto result = co_await socket.async_read_some(asio::buffer(bytes), use_task_result);
    if (result.first == asio::error::eof) {
      co_return total;
    }
    EXPECT_FALSE(result.first) << result.first.message();
    total += result.second;
    co_await asio::async_write(socket, asio::buffer(bytes, result.second), use_task);
  }
}

template <class Protocol>
Task<> talk(typename Protocol::endpoint server, int rounds) {
  typename Protocol::socket socket(EventLoop::current().reactor());
  co_await socket.async_connect(server, use_task);
  const std::string text(kMessageBytes, 'x');
  std::string back(kMessageBytes, ' ');
  for (int i = 0; i < rounds; ++i) {
    EXPECT_EQ(co_await asio::async_write(socket, asio::buffer(text), use_task), kMessageBytes);
    EXPECT_EQ(co_await asio::async_read(socket, asio::buffer(back), use_task), kMessageBytes);
    EXPECT_EQ(back, text);
  }
}

template <class Protocol>
void echo_between_two_tasks(typename Protocol::endpoint at) {
  EventLoop loop;
  typename Protocol::acceptor acceptor(loop.reactor(), at);
  Scope scope(loop);
  scope.spawn("talk", talk<Protocol>, acceptor.local_endpoint(), 20);
  EXPECT_EQ(loop.run(echo<Protocol>, &acceptor), 20 * kMessageBytes);
  loop.run(&Scope::join, &scope);
}

template <class Protocol>
void echo_between_two_loops(typename Protocol::endpoint at) {
  EventLoop loop;
  typename Protocol::acceptor acceptor(loop.reactor(), at);
  std::thread other([server = acceptor.local_endpoint()] {
    EventLoop own_loop;
    own_loop.run(talk<Protocol>, server, 20);
  });
  EXPECT_EQ(loop.run(echo<Protocol>, &acceptor), 20 * kMessageBytes);
  other.join();
}

// An unused name for a UNIX socket.
std::string some_path() {
  static int count = 0;
  return fmt::format("{}tandem_socket_{}_{}", ::testing::TempDir(), ::getpid(), ++count);
}

TEST(AsioAwait, TcpEcho) {
  echo_between_two_tasks<tcp>(any_port());
  echo_between_two_loops<tcp>(any_port());
}

TEST(AsioAwait, UnixSocketEcho) {
  for (const auto run :
       {&echo_between_two_tasks<stream_protocol>, &echo_between_two_loops<stream_protocol>}) {
    const std::string path = some_path();
    const SocketPath place(path);
    run(place.address);
    ::unlink(path.c_str());
  }
}

TEST(AsioAwait, ErrorsAreThrownOrReturned) {
  EventLoop loop;
  loop.run([]() -> Task<> {
    auto& reactor = EventLoop::current().reactor();
    tcp::acceptor closed(reactor, any_port());
    const tcp::endpoint deserted = closed.local_endpoint();
    closed.close();
    tcp::socket socket(reactor);
    bool thrown = false;
    try {
      co_await socket.async_connect(deserted, use_task);
    } catch (const asio::system_error& error) {
      thrown = error.code() == asio::error::connection_refused;
    }
    EXPECT_TRUE(thrown);
    tcp::socket second(reactor);
    const asio::error_code code = co_await second.async_connect(deserted, use_task_result);
    EXPECT_EQ(code, asio::error::connection_refused);
  });
}

// Stops `factory(args..., token)` after it has started; true if it ended with Stopped.
template <class Factory, class... Args>
bool stopped(EventLoop& loop, Factory factory, Args... args) {
  StopSource source;
  Scope scope(loop);
  scope.spawn(
      "stopper",
      [](StopSource* stop) -> Task<> {
        for (int i = 0; i < 5; ++i) {
          co_await yield();
        }
        stop->request_stop();
      },
      &source);
  bool was_stopped = false;
  try {
    loop.run(factory, args..., source.token());
  } catch (const Stopped&) {
    was_stopped = true;
  }
  loop.run(&Scope::join, &scope);
  return was_stopped;
}

TEST(AsioAwait, EachCanBeStopped) {
  EventLoop loop;
  stream_protocol::socket left(loop.reactor());
  stream_protocol::socket right(loop.reactor());
  asio::local::connect_pair(left, right);
  EXPECT_TRUE(stopped(
      loop,
      [](stream_protocol::socket* socket, StopToken stop) -> Task<> {
        std::byte bytes[10];
        co_await socket->async_read_some(asio::buffer(bytes), use_task(stop));
      },
      &left));
  // More than the socket takes: the write waits for a reader that never comes.
  EXPECT_TRUE(stopped(
      loop,
      [](stream_protocol::socket* socket, StopToken stop) -> Task<> {
        const std::vector<std::byte> bytes(10'000'000);
        co_await asio::async_write(*socket, asio::buffer(bytes), use_task(stop));
      },
      &left));
  tcp::acceptor acceptor(loop.reactor(), any_port());
  EXPECT_TRUE(stopped(
      loop,
      [](tcp::acceptor* at, StopToken stop) -> Task<> {
        tcp::socket socket = co_await at->async_accept(use_task(stop));
      },
      &acceptor));
  EXPECT_TRUE(stopped(
      loop,
      [](tcp::acceptor* at, StopToken stop) -> Task<> {
        tcp::socket socket(EventLoop::current().reactor());
        const auto result = co_await at->async_accept(socket, use_task_result(stop));
        ADD_FAILURE() << result.message();
      },
      &acceptor));
  EXPECT_TRUE(stopped(loop, [](StopToken stop) -> Task<> {
    asio::steady_timer timer(EventLoop::current().reactor(), std::chrono::hours(1));
    co_await timer.async_wait(use_task(stop));
  }));
  EXPECT_TRUE(
      stopped(loop, [](StopToken stop) -> Task<> { co_await wait_for_signal(SIGUSR2, stop); }));
  EventFd bell(loop);
  EXPECT_TRUE(stopped(
      loop, [](EventFd* b, StopToken stop) -> Task<> { (void)co_await b->wait(stop); }, &bell));
}

TEST(AsioAwait, AStoppedTokenStartsNothing) {
  EventLoop loop;
  StopSource source;
  source.request_stop();
  EventFd bell(loop);
  bell.notify();
  EXPECT_THROW(loop.run([](EventFd* b, StopToken stop) -> Task<> { (void)co_await b->wait(stop); },
                        &bell, source.token()),
               Stopped);
  // It is still there.
  EXPECT_EQ(
      loop.run([](EventFd* b) -> Task<std::uint64_t> { co_return co_await b->wait(); }, &bell), 1U);
}

TEST(AsioAwait, ASignalArrives) {
  EventLoop loop;
  Signals signals(loop, {SIGUSR1, SIGUSR2});
  const auto next = [](Signals* s) -> Task<int> { co_return co_await s->wait(); };
  std::raise(SIGUSR2);  // before a task waits
  EXPECT_EQ(loop.run(next, &signals), SIGUSR2);
  std::thread sender([] { ::kill(::getpid(), SIGUSR1); });
  EXPECT_EQ(loop.run(next, &signals), SIGUSR1);
  sender.join();
}

TEST(AsioAwait, AnEventFdCountsItsRings) {
  EventLoop loop;
  EventFd bell(loop);
  std::uint64_t total = 0;
  constexpr std::uint64_t kRings = 5000;
  std::thread ringer([&bell] {
    for (std::uint64_t i = 0; i < kRings; ++i) {
      bell.notify();
    }
  });
  loop.run(
      [](EventFd* b, std::uint64_t* sum) -> Task<> {
        while (*sum < kRings) {
          const std::uint64_t count = co_await b->wait();
          EXPECT_GT(count, 0U);
          *sum += count;
        }
      },
      &bell, &total);
  ringer.join();
  EXPECT_EQ(total, kRings);
}

}  // namespace
}  // namespace tandem
