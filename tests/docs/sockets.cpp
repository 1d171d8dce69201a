// Snippets of docs/runtime.md: sockets and signals. tools/docs_in_step.py keeps the page equal to
// this.
#include <csignal>
#include <string>

#include <asio/local/connect_pair.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/read.hpp>
#include <asio/read_until.hpp>
#include <asio/write.hpp>
#include <gtest/gtest.h>
#include <tandem/runtime/event_loop.hpp>
#include <tandem/runtime/io/asio_await.hpp>
#include <tandem/runtime/io/signals.hpp>
#include <tandem/runtime/scope.hpp>
#include <tandem/runtime/sleep.hpp>

namespace {

using tandem::Task;
using Socket = asio::local::stream_protocol::socket;

// [socket]
Task<std::string> answer_line(Socket* socket, tandem::StopToken stop) {
  std::string line;
  (void)co_await asio::async_read_until(*socket, asio::dynamic_buffer(line), '\n',
                                        tandem::use_task(stop));
  const std::string answer = "you said " + line;
  (void)co_await asio::async_write(*socket, asio::buffer(answer), tandem::use_task);
  co_return line;
}
// [/socket]

// [signal]
Task<int> until_interrupted() {
  tandem::Signals signals(tandem::EventLoop::current(), {SIGINT, SIGTERM});
  co_return co_await signals.wait();
}
// [/signal]

TEST(DocsSockets, TalkAndListenToSignals) {
  tandem::EventLoop loop({.name = "docs"});
  Socket here(loop.reactor());
  Socket there(loop.reactor());
  asio::local::connect_pair(here, there);
  asio::write(there, asio::buffer(std::string("hello\n")));
  EXPECT_EQ(loop.run(&answer_line, &here, tandem::StopToken()), "hello\n");
  std::string text(15, '\0');
  asio::read(there, asio::buffer(text));
  EXPECT_EQ(text, "you said hello\n");

  tandem::Scope scope(loop, "signals");
  int which = 0;
  scope.spawn("listen", [](int* out) -> Task<> { *out = co_await until_interrupted(); }, &which);
  loop.run([]() -> Task<> {
    co_await tandem::yield();
    std::raise(SIGTERM);
  });
  loop.run(&tandem::Scope::join, &scope);
  EXPECT_EQ(which, SIGTERM);
}

}  // namespace
