// The handshake of the rendezvous: who gets in, and what others may do meanwhile.
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <latch>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "actors/collectives/secret.hpp"
#include "engine/rendezvous/rendezvous_server.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "tests/support/strangers/rendezvous_job.hpp"

namespace tandem {
namespace {

using rendezvous::Answer;
using rendezvous::Closing;
using rendezvous::Opening;
using rendezvous::Question;
using rendezvous::Request;
using rendezvous::Role;
using test::all_of;
using test::dial;
using test::Job;
using test::pull;
using test::put;
using test::run;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

const std::string kSecret(64, 's');
const std::vector<std::string> kBothWell = {"", ""};

/// A store alone, at a port.
struct Server {
  int port = 0;
  std::optional<RendezvousServer> server;
  Server() {
    OwnedDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = test::loopback(0);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener.get(), SOMAXCONN), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
    server.emplace(std::move(listener), Secret(kSecret), "none/0");
  }
};

template <class T>
T pulled(const OwnedDescriptor& socket) {
  const std::string bytes = pull(socket, sizeof(T));
  T value{};
  EXPECT_EQ(bytes.size(), sizeof(T));
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof(T)));
  return value;
}

/// Both messages of a client that knows `secret`, over `socket`.
struct Handshake {
  Opening opening{.nonce = rendezvous::random_nonce()};
  Answer answer;
  Closing closing;
  Handshake(const OwnedDescriptor& socket, const std::string& secret,
            const std::string& run = "none/0") {
    put(socket, &opening, sizeof(opening));
    answer = pulled<Answer>(socket);
    closing.proof = prove(Role::kClient, Secret(secret), run, opening.nonce, answer.nonce);
    put(socket, &closing, sizeof(closing));
  }
};

TEST(Rendezvous, BothSidesProveTheSecret) {
  const Server server;
  const OwnedDescriptor socket = dial(server.port);
  const Handshake hands(socket, kSecret);
  EXPECT_TRUE(is_proof(hands.answer.proof, Role::kServer, Secret(kSecret), "none/0",
                       hands.opening.nonce, hands.answer.nonce));
  EXPECT_EQ(pull(socket, 1), "\1");
}

// A rank 0 that gives up has set what the others are to know: who is there still hears it.
TEST(Rendezvous, WhoIsThereIsAnsweredWhileRank0GivesUp) {
  Server server;
  const OwnedDescriptor socket = dial(server.port);
  const Handshake hands(socket, kSecret);
  EXPECT_EQ(pull(socket, 1), "\1");
  const auto ask = [&](rendezvous::Question question, std::string_view key,
                       std::string_view value) {
    const rendezvous::Request request{.question = question,
                                      .key_bytes = static_cast<std::uint32_t>(key.size()),
                                      .value_bytes = value.size()};
    put(socket, &request, sizeof(request));
    put(socket, key.data(), key.size());
    put(socket, value.data(), value.size());
    const auto reply = pulled<rendezvous::Reply>(socket);
    return pull(socket, reply.value_bytes);
  };
  (void)ask(rendezvous::Question::kSet, "hello", "version 1");
  std::latch ends(2);
  const std::jthread rank_0([&] {
    ends.arrive_and_wait();
    server.server.reset();
  });
  ends.arrive_and_wait();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(ask(rendezvous::Question::kGet, "hello", ""), "version 1") << i;
    std::this_thread::sleep_for(2ms);
  }
}

TEST(Rendezvous, RefusesAnotherSecretAnotherRunAndAProofOfAnotherHandshake) {
  const Server server;
  const OwnedDescriptor wrong = dial(server.port);
  const Handshake other_secret(wrong, kSecret + "x");
  EXPECT_EQ(pull(wrong, 1), "");
  const OwnedDescriptor earlier = dial(server.port);
  const Handshake earlier_start(earlier, kSecret, "none/1");
  EXPECT_EQ(pull(earlier, 1), "");

  const OwnedDescriptor real = dial(server.port);
  const Handshake recorded(real, kSecret);
  EXPECT_EQ(pull(real, 1), "\1");
  const OwnedDescriptor replay = dial(server.port);
  put(replay, &recorded.opening, sizeof(recorded.opening));
  const Answer answer = pulled<Answer>(replay);
  EXPECT_NE(answer.nonce, recorded.answer.nonce);
  put(replay, &recorded.closing, sizeof(recorded.closing));
  EXPECT_EQ(pull(replay, 1), "");

  const OwnedDescriptor mirror = dial(server.port);  // the server's own proof, back to it
  put(mirror, &recorded.opening, sizeof(recorded.opening));
  const Closing back{.proof = pulled<Answer>(mirror).proof};
  put(mirror, &back, sizeof(back));
  EXPECT_EQ(pull(mirror, 1), "");
}

TEST(Rendezvous, ASilentConnectionEndsAfterFiveSeconds) {
  const Server server;
  const auto begin = std::chrono::steady_clock::now();
  const OwnedDescriptor silent = dial(server.port);
  const OwnedDescriptor slow = dial(server.port);
  const Opening half;
  put(slow, &half, sizeof(half) / 2);
  EXPECT_EQ(pull(silent, 1), "");
  EXPECT_EQ(pull(slow, 1), "");
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(took, 4900ms);
  EXPECT_LT(took, 12s);
}

TEST(Rendezvous, LengthsAreBoundedAfterTheProofToo) {
  const Server server;
  const Request hostile[] = {
      {.question = Question::kSet, .key_bytes = 0, .value_bytes = 4},
      {.question = Question::kSet, .key_bytes = ~0U, .value_bytes = 4},
      {.question = Question::kSet, .key_bytes = 4, .value_bytes = ~std::uint64_t{0}},
      {.question = Question::kSet, .key_bytes = 4, .value_bytes = std::uint64_t{1} << 62}};
  for (const Request& request : hostile) {
    const OwnedDescriptor socket = dial(server.port);
    const Handshake hands(socket, kSecret);
    ASSERT_EQ(pull(socket, 1), "\1");
    put(socket, &request, sizeof(request));
    EXPECT_EQ(pull(socket, 1), "");
  }
}

TEST(Rendezvous, TheNumberOfKeysIsBounded) {
  const Server server;
  const OwnedDescriptor socket = dial(server.port);
  const Handshake hands(socket, kSecret);
  ASSERT_EQ(pull(socket, 1), "\1");
  std::size_t kept = 0;
  for (;; ++kept) {
    const std::string key = std::to_string(kept);
    const Request request{.question = Question::kCount,
                          .key_bytes = static_cast<std::uint32_t>(key.size())};
    std::string message(reinterpret_cast<const char*>(&request), sizeof(request));
    message += key;
    put(socket, message.data(), message.size());
    if (pull(socket, sizeof(rendezvous::Reply) + 1).empty()) {
      break;
    }
  }
  EXPECT_EQ(kept, rendezvous::kMostKeys);
}

std::size_t resident_bytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(Rendezvous, TenThousandConnectionsOfGarbageStopNoStart) {
  const Job job{.world = 3};
  std::size_t grown = 0;
  std::thread crowd([&] {
    const std::string garbage(4096, '\xa5');
    const std::size_t before = resident_bytes();
    for (int count = 0; count < 10'000; ++count) {
      const OwnedDescriptor socket = dial(job.port);
      put(socket, garbage.data(), static_cast<std::size_t>(count) % garbage.size());
    }
    grown = resident_bytes() - std::min(before, resident_bytes());
  });
  const auto begin = std::chrono::steady_clock::now();
  std::thread ranks([&] {
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(run({job.of(1)}, job.timeout), std::vector<std::string>{""});
  });
  std::thread rank_2([&] {
    crowd.join();
    std::printf("10,000 connections in %.2f s\n",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    EXPECT_EQ(run({job.of(2)}, job.timeout), std::vector<std::string>{""});
  });
  EXPECT_EQ(run({job.of(0)}, job.timeout), std::vector<std::string>{""});
  ranks.join();
  rank_2.join();
  EXPECT_LT(grown, std::size_t{32} << 20);
}

TEST(Rendezvous, AStoreFullOfConnectionsLetsRanksIn) {
  const Job job{.secret = kSecret};
  std::vector<OwnedDescriptor> held;
  std::thread late([&] {
    // Both ends of them are this process's, which may have 256 descriptors.
    for (std::size_t count = 0; count < rendezvous::kMostUnproven + 32; ++count) {
      held.push_back(dial(job.port));
    }
    EXPECT_EQ(run({job.of(1)}, job.timeout), std::vector<std::string>{""});
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run({job.of(0)}, job.timeout), std::vector<std::string>{""});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s);  // none of them had to be late first
  late.join();
  EXPECT_EQ(pull(held.back(), 1), "");  // and the ranks' meeting ends those that are left
}

// ---- the secret ---------------------------------------------------------------------------------

TEST(Rendezvous, TimeInWhichARankIsStoppedCountsToNoDeadline) {
  const Job job;
  const pid_t rank_1 = ::fork();
  if (rank_1 == 0) {
    std::string error;
    try {
      (void)ProcessGroup::join(job.of(1), 4s);
    } catch (const Error& caught) {
      error = caught.what();
    }
    (void)!::write(STDERR_FILENO, error.data(), error.size());
    ::_exit(error.empty() ? 0 : 1);
  }
  std::this_thread::sleep_for(200ms);
  ASSERT_EQ(::kill(rank_1, SIGSTOP), 0);
  std::this_thread::sleep_for(5s);  // longer than it waits
  ASSERT_EQ(::kill(rank_1, SIGCONT), 0);
  EXPECT_NO_THROW((void)ProcessGroup::join(job.of(0), 20s));
  int status = 0;
  EXPECT_EQ(::waitpid(rank_1, &status, 0), rank_1);
  EXPECT_EQ(status, 0);
}

TEST(Rendezvous, RanksWithDifferentSecretsDoNotMeet) {
  const Job job{.timeout = 500ms, .secret = kSecret};
  std::vector<Environment> environments = all_of(job);
  environments[1].secret += "x";
  const auto errors = run(environments, job.timeout);
  EXPECT_THAT(errors[0], HasSubstr("1 of 2 ranks came within 0.5 s (0)"));
  EXPECT_THAT(errors[1], StartsWith("4 [rendezvous] what listens at port"));
  EXPECT_THAT(errors[1], HasSubstr("does not know this run's secret"));
}

TEST(Rendezvous, ManyHostsNeedASecretGivenToThem) {
  Environment environment = Job().of(0);
  environment.local_world = 1;
  EXPECT_THAT(run({environment}, 1s).front(), HasSubstr("set TANDEM_RUN_SECRET"));
}

TEST(Rendezvous, ALauncherThatListensAtThePortItselfIsNoHindrance) {
  const Job job;
  const OwnedDescriptor taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = test::loopback(job.port);
  ASSERT_EQ(::bind(taken.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(taken.get(), 1), 0);
  for (const std::string& secret : {std::string(), kSecret}) {
    std::vector<Environment> environments = all_of(job);
    for (Environment& environment : environments) {
      environment.agent_store = true;
      environment.secret = secret;
    }
    EXPECT_EQ(run(environments, job.timeout), kBothWell);
  }
}

// ---- addresses ----------------------------------------------------------------------------------

TEST(Rendezvous, NeverListensOnEveryNetwork) {
  for (const char* name : {"0.0.0.0", "::", "0", "::ffff:0.0.0.0"}) {
    Job job;
    Environment environment = job.of(0);
    environment.master_address = name;
    environment.address_given = true;
    EXPECT_THAT(
        run({environment}, 1s).front(),
        HasSubstr(fmt::format("2 [rendezvous] MASTER_ADDR {} stands for every network", name)));
  }
}

TEST(Rendezvous, TimesOfTheCollectivesAreReadBeforeTheRanksMeet) {
  for (const char* name : {"TANDEM_COLLECTIVE_TIMEOUT_S", "TANDEM_HEARTBEAT_S"}) {
    ::setenv(name, "x", 1);
    EXPECT_THROW((void)ProcessGroup::from_environment(), Error) << name;
    ::unsetenv(name);
  }
}

}  // namespace
}  // namespace tandem
