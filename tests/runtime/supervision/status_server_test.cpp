// A loop answers for itself over a socket: to its user alone, whatever clients do, and to several.
#include "runtime/supervision/status_server.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/actor.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/supervision/describe.hpp"
#include "runtime/supervision/socket_path.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

int connect_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (address.find('/') == std::string::npos && colon != std::string::npos) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
    const int made = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    return made;
  }
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const SocketPath path(address);
  path.address.copy(to.sun_path, sizeof(to.sun_path) - 1);
  const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(::connect(made, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0) << address;
  return made;
}

std::string say(const std::string& address, const std::string& request) {
  const int client = connect_to(address);
  EXPECT_EQ(::send(client, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 512> chunk{};
  for (ssize_t got = 0; (got = ::recv(client, chunk.data(), chunk.size(), 0)) > 0;) {
    answer.append(chunk.data(), static_cast<std::size_t>(got));
  }
  ::close(client);
  return answer;
}

/// A loop on a thread of its own, until it is told to end.
class StatusServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("status" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  [[nodiscard]] std::string path() const { return (folder_ / "status.sock").string(); }
  static std::map<std::string, StatusPage> pages() {
    return {{"/hello", {"text/plain", [] { return std::string("hello\n"); }}}};
  }
  /// Serves, and runs `body` beside the loop.
  template <class Body>
  void with_server(const std::string& address, Body body) {
    EventLoop loop({.name = "served"});
    StatusServer server(loop, address, pages());
    std::atomic<bool> done = false;
    std::thread client([&] {
      body(server.address());
      done = true;
    });
    loop.run(
        [](std::atomic<bool>* ended) -> Task<> {
          while (!*ended) {
            co_await sleep_for(1ms);
          }
        },
        &done);
    client.join();
  }
  fs::path folder_;
};

TEST_F(StatusServerTest, AnswersOverASocketAndALoopbackPort) {
  for (const std::string& address : {path(), std::string("127.0.0.1:0")}) {
    with_server(address, [](const std::string& at) {
      EXPECT_THAT(say(at, "GET /hello HTTP/1.0\r\n\r\n"),
                  AllOf(StartsWith("HTTP/1.0 200 OK\r\n"), HasSubstr("Content-Length: 6\r\n"),
                        EndsWith("\r\n\r\nhello\n")));
      EXPECT_THAT(say(at, "GET /hello?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), EndsWith("hello\n"));
      EXPECT_THAT(say(at, "GET / HTTP/1.0\r\n\r\n"), EndsWith("/hello\n"));
      EXPECT_THAT(say(at, "GET /other HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.0 404 "));
      EXPECT_THAT(say(at, "POST /hello HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.0 405 "));
    });
  }
  EXPECT_FALSE(fs::exists(path())) << "the server's end removes its file";
}

TEST_F(StatusServerTest, ServesAtAPathOfAnyLength) {
  const fs::path far = folder_ / std::string(150, 'a') / std::string(150, 'b');
  fs::create_directories(far);
  const std::string place = far / "status.sock";
  for (int again = 0; again < 2; ++again) {
    with_server(place, [&](const std::string& at) {
      EXPECT_EQ(at, place);
      EXPECT_THAT(say(at, "GET /hello HTTP/1.0\r\n\r\n"), EndsWith("hello\n"));
      EventLoop second;
      EXPECT_THROW(StatusServer(second, place, pages()), Error) << "it is served already";
    });
    EXPECT_FALSE(fs::exists(place));
  }
}

TEST_F(StatusServerTest, ClientsThatDoNotAskHoldUpNothing) {
  with_server(path(), [](const std::string& at) {
    std::vector<int> silent;
    for (int i = 0; i < 7; ++i) {
      silent.push_back(connect_to(at));
    }
    EXPECT_THAT(say(at, "GET /hello HTTP/1.0\r\n\r\n"), EndsWith("hello\n"));
    EXPECT_THAT(say(at, std::string(8192, 'x')), StartsWith("HTTP/1.0 405 "));
    for (const int client : silent) {
      ::close(client);
    }
    for (int i = 0; i < 200; ++i) {  // some are gone before they are answered
      const int gone = connect_to(at);
      ::send(gone, "GET /hello HTTP/1.0\r\n\r\n", 23, MSG_NOSIGNAL);
      ::close(gone);
    }
    EXPECT_THAT(say(at, "GET /hello HTTP/1.0\r\n\r\n"), EndsWith("hello\n"));
  });
}

/// Whether the other side has let this connection go.
bool is_let_go(int client) {
  char byte = 0;
  return ::recv(client, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

TEST_F(StatusServerTest, ThoseWhoConnectAndStayKeepNobodyOut) {
  for (const std::string& address : {path(), std::string("127.0.0.1:0")}) {
    with_server(address, [](const std::string& at) {
      rlimit descriptors{};
      ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &descriptors), 0);
      const int strangers = static_cast<int>(std::min<rlim_t>(descriptors.rlim_cur - 100, 300));
      std::vector<int> silent;
      for (int i = 0; i < strangers; ++i) {
        silent.push_back(connect_to(at));
        if (i % 2 == 0) {  // half of them begin to ask
          ::send(silent.back(), "GET /hel", 8, MSG_NOSIGNAL);
        }
      }
      for (int i = 0; i < 3; ++i) {
        EXPECT_THAT(say(at, "GET /hello HTTP/1.0\r\n\r\n"), EndsWith("hello\n"));
      }
      // Long before a silent one's five seconds: no more than sixteen are held.
      EXPECT_GE(std::ranges::count_if(silent, is_let_go), strangers - 16);
      for (const int client : silent) {
        ::close(client);
      }
    });
  }
}

TEST_F(StatusServerTest, AListenerThatTakesNobodyIsNoReasonToWait) {
  const int other = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  const SocketPath place(path());
  place.address.copy(at.sun_path, sizeof(at.sun_path) - 1);
  ASSERT_EQ(::bind(other, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(::listen(other, 0), 0);
  const int waiting = connect_to(path());  // its backlog is full now
  EventLoop loop;
  EXPECT_THROW(StatusServer(loop, path(), pages()), Error);
  ::close(waiting);
  ::close(other);
}

TEST_F(StatusServerTest, TheFileIsItsUsersAlone) {
  with_server(path(), [](const std::string& at) {
    struct stat found{};
    ASSERT_EQ(::stat(at.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777U, 0600U);
  });
}

TEST_F(StatusServerTest, RefusesWhatItCannotServe) {
  EventLoop loop;
  const auto refusal = [&](const std::string& address) -> std::string {
    try {
      const StatusServer server(loop, address, pages());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUserInput);
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(refusal("0.0.0.0:9000"), HasSubstr("127.0.0.1:PORT (other hosts are not served)"));
  EXPECT_THAT(refusal("127.0.0.1:99999"), HasSubstr("127.0.0.1:PORT"));
  EXPECT_THAT(refusal((folder_ / "none/status.sock").string()), HasSubstr("No such file"));
  EXPECT_THAT(refusal("/" + std::string(200, 'x')), HasSubstr("cannot serve"));
  std::ofstream(path()) << "a file";
  EXPECT_THAT(refusal(path()), HasSubstr("something else is there"));
  fs::remove(path());
  const StatusServer first(loop, path(), pages());
  EXPECT_THAT(refusal(path()), HasSubstr("another process serves it"));
}

TEST_F(StatusServerTest, AFileThatAKilledProcessLeftIsReplaced) {
  const int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  const SocketPath socket(path());
  socket.address.copy(at.sun_path, sizeof(at.sun_path) - 1);
  ASSERT_EQ(::bind(left, reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
  ::close(left);
  with_server(path(), [](const std::string& address) {
    EXPECT_THAT(say(address, "GET /hello HTTP/1.0\r\n\r\n"), EndsWith("hello\n"));
  });
}

struct Poke {};
struct Stuck : Actor<Stuck, Poke> {
  Stuck() : Actor("stuck", MailboxOptions{.credits = 4}) {}
  Task<> handle(Poke) { co_await go.wait(); }
  Event go;
};

TEST(TasksJson, NamesWhatABlockedActorWaitsFor) {
  EventLoop loop({.name = "watched"});
  Scope scope(loop, "actors");
  Stuck stuck;
  stuck.start(scope);
  const std::string json = loop.run(
      [](EventLoop* on, Stuck* actor) -> Task<std::string> {
        co_await actor->address().send(Poke{});
        co_await actor->address().send(Poke{});
        co_await sleep_for(5ms);
        std::string text = tasks_json(*on);
        actor->go.set();
        actor->close();
        co_return text;
      },
      &loop, &stuck);
  loop.run(&Scope::join, &scope);
  EXPECT_THAT(json, AllOf(HasSubstr(R"("loop": "watched")"), HasSubstr(R"("name": "actors")"),
                          HasSubstr(R"("name": "stuck", "awaits": "event")"),
                          HasSubstr("status_server_test.cpp"),
                          HasSubstr(R"({"name": "stuck", "depth": 1, "closed": false})")));
}

}  // namespace
}  // namespace tandem
