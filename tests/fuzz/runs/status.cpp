// Requests to a run's status socket: an answer, or the connection's end, and the pages stay.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>

#include <sys/socket.h>
#include <sys/un.h>

#include "runtime/event_loop.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/status_server.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {
namespace {

Task<> serve(std::atomic<bool>* is_there) {
  *is_there = true;
  for (;;) {
    co_await sleep_for(std::chrono::hours(1));
  }
}

/// A loop on a thread of its own, which serves for as long as the process lives.
class Served {
 public:
  Served() : path_((folder() / "status.sock").string()) {
    std::thread([this] {
      EventLoop loop;
      const StatusServer server(loop, path_, {{"/step", {"text/plain", [] { return "17"; }}}});
      loop.run(&serve, &is_there_);
    }).detach();
    while (!is_there_) {
      std::this_thread::yield();
    }
  }
  [[nodiscard]] std::string ask(std::string_view request) const {
    const OwnedDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path_.copy(to.sun_path, sizeof(to.sun_path) - 1);
    expect(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0,
           "the server takes connections");
    (void)::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
    (void)::shutdown(socket.get(), SHUT_WR);
    std::string answer;
    char some[4096];
    for (ssize_t got = 0; (got = ::recv(socket.get(), some, sizeof(some), 0)) != 0;) {
      if (got < 0 && errno != EINTR) {  // libFuzzer's clock ticks
        break;
      }
      answer.append(some, static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    }
    return answer;
  }

 private:
  std::string path_;
  std::atomic<bool> is_there_ = false;
};

}  // namespace

void read(std::string_view input) {
  static const Served* const served = new Served();
  static int runs = 0;
  const std::string answer = served->ask(input);
  expect(answer.empty() || answer.starts_with("HTTP/1.0 "), "an answer has a head");
  if (++runs % 16 == 0) {
    expect(served->ask("GET /step HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n17"), "the page is there");
  }
}

}  // namespace tandem::fuzz
