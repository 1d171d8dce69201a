// A real process of another user beside ranks that meet: it reads nothing, fills nothing, stops
// nothing. tests/actors/collectives/shm tests their shared memory against such a process.
#include <cstring>
#include <fstream>

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/collectives/collective_backend.hpp"
#include "engine/distributed/run_secret.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "tests/support/strangers/other_user.hpp"
#include "tests/support/strangers/rendezvous_job.hpp"

namespace tandem {
namespace {

using test::dial;
using test::Job;
using test::OtherUser;
using test::pull;
using test::put;
using test::run;
using namespace std::chrono_literals;

const std::vector<std::string> kWell{""};

std::string text_of(const void* bytes, std::size_t count) {
  return {static_cast<const char*>(bytes), count};
}
template <class T>
std::string raw(T value) {
  return text_of(&value, sizeof(value));
}
std::string with_length(const std::string& text) { return raw(std::uint64_t{text.size()}) + text; }

/// Sends requests of c10d's store, which has no secret: that rank 1 has come, and far more data
/// than the server may keep. Returns how many bytes came back.
std::string speak_as_c10d(int port) {
  const OwnedDescriptor socket = dial(port);
  const std::string hello = raw(std::uint8_t{0}) + raw(std::uint32_t{0x3C85F7CE});
  const std::string add =
      raw(std::uint8_t{4}) + with_length("/tandem/none/0/came/1") + raw(std::int64_t{1});
  const std::string set =
      raw(std::uint8_t{1}) + with_length("junk") + with_length(std::string(1 << 20, 'x'));
  std::string message = hello + add;
  put(socket, message.data(), message.size());
  for (int count = 0; count < 64; ++count) {
    put(socket, set.data(), set.size());
  }
  return fmt::format("c10d: {} bytes back", pull(socket, 1000).size());
}

/// Does the handshake without the secret. Returns how many bytes follow the server's proof.
std::string guess_the_secret(int port) {
  const OwnedDescriptor socket = dial(port);
  const rendezvous::Opening opening{.nonce = rendezvous::random_nonce()};
  put(socket, &opening, sizeof(opening));
  const std::string bytes = pull(socket, sizeof(rendezvous::Answer));
  rendezvous::Answer answer;
  std::memcpy(&answer, bytes.data(), std::min(bytes.size(), sizeof(answer)));
  const Secret guess(std::string(64, '0'));
  const rendezvous::Closing closing{
      .proof = prove(rendezvous::Role::kClient, guess, "none/0", opening.nonce, answer.nonce)};
  put(socket, &closing, sizeof(closing));
  return fmt::format("guess: {} bytes back", pull(socket, 1000).size());
}

std::string read_what_is_theirs(const std::vector<std::string>& paths) {
  std::string told = "opened:";
  for (const std::string& path : paths) {
    const int descriptor = ::open(path.c_str(), O_RDONLY);
    told += descriptor >= 0 ? " " + path : "";
  }
  return told;
}

TEST(Strangers, OfAnotherUserReadFillAndStopNothing) {
  TANDEM_NEEDS_ANOTHER_USER();
  const Job job;
  const std::string process = fmt::format("/proc/{}", ::getpid());
  int over[2];
  ASSERT_EQ(::pipe2(over, O_CLOEXEC), 0);
  const OtherUser stranger([&] {
    std::string told = speak_as_c10d(job.port) + ", " + guess_the_secret(job.port);
    told += ", " + read_what_is_theirs({"/tmp/tandem-0", "/tmp/tandem-0/secret",
                                        process + "/environ", process + "/fd", process + "/mem"});
    std::vector<OwnedDescriptor> held(200);
    for (OwnedDescriptor& one : held) {
      one = dial(job.port);
    }
    (void)!::write(over[1], "x", 1);
    told += fmt::format(", held: {} bytes back", pull(held.back(), 1000).size());
    return told;
  });
  std::thread late([&] {
    char byte = 0;
    EXPECT_EQ(::read(over[0], &byte, 1), 1);
    EXPECT_EQ(run({job.of(1)}, job.timeout,
                  [](ProcessGroup& group) {
                    EventLoop loop;
                    CpuPool pool(loop, {});
                    (void)group.make_backend(loop, pool);
                  }),
              kWell);
  });
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  std::ifstream("/proc/self/statm") >> total >> before;
  EXPECT_EQ(run({job.of(0)}, job.timeout,
                [&](ProcessGroup& group) {
                  std::ifstream("/proc/self/statm") >> total >> after;
                  EventLoop loop;
                  CpuPool pool(loop, {});
                  (void)group.make_backend(loop, pool);
                }),
            kWell);
  late.join();
  EXPECT_EQ(stranger.take(),
            "c10d: 0 bytes back, guess: 0 bytes back, opened:, held: 0 bytes back");
  EXPECT_LT(after, before + (std::size_t{32} << 20) / 4096);
  ::close(over[0]);
  ::close(over[1]);
}

// The listener sends a byte every 100 ms: each byte comes in time, the whole answer does not.
TEST(Strangers, WhoDripsBytesDoesNotOutlastTheDeadline) {
  const Job job{.timeout = 1s, .secret = std::string(64, 's')};
  const OwnedDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = test::loopback(job.port);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  ASSERT_EQ(::listen(listener.get(), 8), 0);
  std::size_t most = 0;
  std::thread dripping([&] {
    for (;;) {
      const OwnedDescriptor socket(::accept(listener.get(), nullptr, nullptr));
      if (socket.get() < 0) {
        return;
      }
      std::size_t sent = 0;
      while (::send(socket.get(), "x", 1, MSG_NOSIGNAL) == 1) {
        most = std::max(most, ++sent);
        std::this_thread::sleep_for(100ms);
      }
    }
  });
  EXPECT_THAT(run({job.of(1)}, job.timeout).front(), ::testing::StartsWith("4 [rendezvous] "));
  ::shutdown(listener.get(), SHUT_RDWR);
  dripping.join();
  EXPECT_GT(most, 0U);
  EXPECT_LT(most, sizeof(rendezvous::Answer));
}

}  // namespace
}  // namespace tandem
