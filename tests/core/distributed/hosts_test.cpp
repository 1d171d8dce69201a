// Ranks of several hosts that meet: processes with host names, and networks, of their own.
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/nccl/nccl_peers.hpp"
#include "engine/distributed/hello.hpp"
#include "engine/distributed/process_group.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "engine/types/version.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/sleep.hpp"
#include "runtime/ucx/ucx_net.hpp"
#include "tests/support/reduction_reference.hpp"
#include "tests/support/strangers/rendezvous_job.hpp"
#include "tests/support/strangers/two_hosts.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using test::Job;
using test::kNoNames;
using test::of_two_hosts;
using test::on_two_hosts;
using test::OnHost;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using namespace std::chrono_literals;

const std::string kSecret(64, 's');

TEST(MeetingOfHosts, ADifferenceIsNamedWithTheHosts) {
  const Job job{.secret = kSecret};
  const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
    group.require_same("config", "alike");
    group.require_same("data", group.rank() == 0 ? "1234" : "5678");
  });
  if (errors[0] == "0 skip") {
    GTEST_SKIP() << kNoNames;
  }
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "4 [ranks] the data differs: rank 0 (on host host-a) has 1234, rank 1 (on host "
              "host-b) has 5678; start all ranks alike");
  }
}

TEST(MeetingOfHosts, VersionsAreComparedFirst) {
  const std::string here = own_hello(2);
  EXPECT_NO_THROW(require_fit(0, here, 1, here));
  const auto error_of = [](const std::string& mine, const std::string& others) {
    return error_text([&] { require_fit(0, mine, 1, others); }, ExitCode::kPeer);
  };
  const std::string own = version();
  EXPECT_EQ(error_of("2 " + own + " boot net host-a", "2 0.0.9 boot2 net host-b"),
            "[rendezvous] the version of Tandem differs: rank 1 (on host host-b) has 0.0.9, rank 0 "
            "(on host host-a) has " +
                own + "; start all ranks alike");
  EXPECT_THAT(error_of(here, "3 " + here.substr(2)),
              HasSubstr("the world size differs: rank 1 has 3, rank 0 has 2;"));
  // Text from a peer's hello is escaped before it is shown, whatever bytes it has.
  EXPECT_THAT(error_of(here, "2 \x1b[31m boot net x\ny"),
              HasSubstr("(on host x\\ny) has \\x1b[31m"));
  EXPECT_THAT(error_of(here, ""), HasSubstr("the world size differs"));
}

TEST(MeetingOfHosts, HostsOfOneNameAreToldApart) {
  const std::vector<std::string> hosts = {"boot net node",  "boot net node", "boot net2 node",
                                          "boot3 net a",    "boot net node", "boot4 net node",
                                          "boot net2 node", "boot5 net x\ny"};
  EXPECT_EQ(distinct_names(hosts), (std::vector<std::string>{"node", "node", "node#2", "a", "node",
                                                             "node#3", "node#2", "x\\ny"}));
  const std::vector<std::string> taken = {"1 n a", "2 n a#2", "3 n a"};
  EXPECT_EQ(distinct_names(taken), (std::vector<std::string>{"a", "a#2", "a#3"}));
}

// Rank 0 is of a build with another handshake, so only the version can be compared.
TEST(MeetingOfHosts, AnotherHandshakeIsSaidToBeAnotherVersion) {
  const Job job{.timeout = 700ms, .secret = kSecret};
  std::thread rank_0([&] {
    const OwnedDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = test::loopback(job.port);
    const int yes = 1;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(::listen(listener.get(), 100), 0);
    const auto until = std::chrono::steady_clock::now() + 800ms;
    ::fcntl(listener.get(), F_SETFL, O_NONBLOCK);
    while (std::chrono::steady_clock::now() < until) {
      const OwnedDescriptor client(::accept(listener.get(), nullptr, nullptr));
      const rendezvous::Answer answer{.version = rendezvous::kVersion + 1};
      if (client.get() >= 0) {
        (void)test::pull(client, sizeof(rendezvous::Opening));
        test::put(client, &answer, sizeof(answer));
      }
    }
  });
  const auto errors = test::run({of_two_hosts(job, 1)}, job.timeout);
  rank_0.join();
  EXPECT_THAT(errors[0], StartsWith("4 [rendezvous] rank 0, at port "));
  EXPECT_THAT(errors[0], HasSubstr("is of a version of Tandem that this one (rank 1) does not"));
}

TEST(MeetingOfHosts, AddressesThatOtherHostsCannotReachAreRefused) {
  const Job job{.secret = kSecret};
  Environment none = of_two_hosts(job, 1);
  none.address_given = false;
  EXPECT_THAT(test::run({none}, 1s).front(),
              HasSubstr("2 [rendezvous] 1 of 2 ranks are on this host, and a test say nothing of "
                        "where rank 0 is; set MASTER_ADDR"));
  // "127.1" is not the text of an IP address, so it is resolved as a name, and it resolves to a
  // loopback address, as the own name of many hosts does.
  Environment trap = of_two_hosts(job, 0);
  trap.master_address = "127.1";
  EXPECT_THAT(test::run({trap}, 1s).front(),
              HasSubstr("2 [rendezvous] MASTER_ADDR 127.1 is 127.0.0.1 on this host"));
}

TEST(MeetingOfHosts, TheInterfaceThatIsNamedIsTheOne) {
  const Job job{.secret = kSecret};
  const auto join = [&](int rank, const char* interface) {
    Environment environment = of_two_hosts(job, rank);
    environment.interface = interface;
    return environment;
  };
  EXPECT_THAT(test::run({join(0, "none0")}, 1s).front(),
              StartsWith("2 [rendezvous] TANDEM_INTERFACE is none0, and no such interface"));
  EXPECT_THAT(test::run({join(1, "none0")}, 1s).front(),
              StartsWith("2 [rendezvous] TANDEM_INTERFACE is none0, and no such interface"));
  EXPECT_EQ(test::run({join(0, "lo"), join(1, "lo")}, job.timeout),
            (std::vector<std::string>{"", ""}));
  // Rank 0 listens at that interface, whatever address its own name resolves to.
  Environment trap = join(0, "lo");
  trap.master_address = "127.0.1.1";
  EXPECT_EQ(test::run({trap, join(1, "")}, job.timeout), (std::vector<std::string>{"", ""}));
}

// ---- what they do together then, over UCX on the loopback ----
/// Adds up numbers whose sum depends on the order, gathers, and compares with the sum of as many
/// ranks first as are added first: all of them on one host.
void expect_collectives_of_hosts(EventLoop& loop, CollectiveBackend& backend,
                                 std::uint32_t per_host) {
  constexpr std::size_t kShard = 2 * kNormTile;
  const std::uint32_t world = backend.world();
  auto* block = reinterpret_cast<float*>(backend.allocate(world * kShard * sizeof(float)));
  const auto value = [](std::uint32_t rank, std::size_t i) { return test::value_of(rank, 0, i); };
  for (std::size_t i = 0; i < world * kShard; ++i) {
    block[i] = value(backend.rank(), i);
  }
  std::vector<float> sum(kShard), all(world * kShard);
  loop.run(
      [](CollectiveBackend* b, ReduceArguments reduce, GatherArguments gather) -> Task<> {
        (void)co_await b->reduce_scatter_add(reduce);
        co_await b->all_gather(gather);
      },
      &backend,
      ReduceArguments{.block = reinterpret_cast<const std::byte*>(block),
                      .accumulator = sum.data(),
                      .shard_elements = kShard},
      GatherArguments{reinterpret_cast<const std::byte*>(sum.data()),
                      reinterpret_cast<std::byte*>(all.data()), kShard * sizeof(float)});
  for (std::size_t i = 0; i < all.size(); ++i) {
    float expected = 0;
    for (std::uint32_t first = 0; first < world; first += per_host) {
      float of_host = value(first, i);
      for (std::uint32_t rank = first + 1; rank < first + per_host; ++rank) {
        of_host += value(rank, i);
      }
      expected = first == 0 ? of_host : expected + of_host;
    }
    if (all[i] != expected) {
      throw failure(ExitCode::kFailure, "test", "element {} is {}, not {}", i, all[i], expected);
    }
  }
}

void expect_collectives_of_one_host(EventLoop& loop, CollectiveBackend& backend) {
  expect_collectives_of_hosts(loop, backend, backend.world());
}

/// A rank of a test: its loop and pool.
struct Worker {
  EventLoop loop;
  CpuPool pool{loop, {.threads = 1}};
};

class RanksOfHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!ucx_support().usable) {
      GTEST_SKIP() << "no UCX: " << ucx_support().what;
    }
    if (OnHost("host-a", [] {}).error() == "0 skip") {
      GTEST_SKIP() << kNoNames;
    }
  }
};

TEST_F(RanksOfHosts, ReduceAndGatherAsOnOneHost) {
  for (const int world : {2, 4}) {
    const Job job{.world = world, .secret = kSecret};
    const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
      Worker worker;
      const auto backend = group.make_backend(worker.loop, worker.pool);
      expect_collectives_of_one_host(worker.loop, *backend);
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(world), "0 "));
  }
}

TEST_F(RanksOfHosts, TheFastOrderAddsAHostsRanksFirst) {
  const Job job{.world = 4, .secret = kSecret};
  const auto errors = on_two_hosts(
      job,
      [](ProcessGroup& group) {
        Worker worker;
        const auto backend = group.make_backend(worker.loop, worker.pool);
        expect_collectives_of_hosts(worker.loop, *backend, 2);
        try {
          expect_collectives_of_one_host(worker.loop, *backend);
        } catch (const Error& other_bits) {
          EXPECT_EQ(other_bits.code(), ExitCode::kFailure);
          return;
        }
        throw failure(ExitCode::kFailure, "test", "another order has other bits");
      },
      [](int) { return ReductionOrder::kFast; });
  EXPECT_EQ(errors, std::vector<std::string>(4, "0 "));
}

TEST_F(RanksOfHosts, AddInOneOrder) {
  const Job job{.secret = kSecret};
  const auto errors = on_two_hosts(
      job,
      [](ProcessGroup& group) {
        Worker worker;
        (void)group.make_backend(worker.loop, worker.pool);
      },
      [](int rank) { return rank == 0 ? ReductionOrder::kExact : ReductionOrder::kFast; });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "4 [ranks] the reduction order differs: rank 0 (on host host-a) has exact, rank 1 "
              "(on host host-b) has fast; start all ranks alike");
  }
}

/// A rank's two groups where two hosts have two ranks each: one across the hosts, one within its
/// host.
struct Groups {
  std::unique_ptr<CollectiveBackend> over_hosts, of_host;
};
Groups groups_of(ProcessGroup& group, Worker& worker) {
  const int rank = group.rank();
  const auto made = [&](std::string name, int own) {
    return group.make_group_backend(worker.loop, worker.pool,
                                    {.name = std::move(name), .rank = own, .world_size = 2});
  };
  auto over_hosts = made(fmt::format("over-{}", rank % 2), rank / 2);
  return {std::move(over_hosts), made(fmt::format("host-{}", rank / 2), rank % 2)};
}

// Two groups across hosts, two within a host, and each host's ranks alone: all at the same time.
TEST_F(RanksOfHosts, GroupsAreOfOneHostOrOfSeveral) {
  const Job job{.world = 4, .secret = kSecret};
  const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
    Worker worker;
    const auto [over_hosts, of_host] = groups_of(group, worker);
    expect_collectives_of_one_host(worker.loop, *over_hosts);
    expect_collectives_of_one_host(worker.loop, *of_host);
  });
  EXPECT_EQ(errors, std::vector<std::string>(4, "0 "));
}

/// The rank that all-to-alls of the group come to blame.
PeerLost blamed_by_exchanges(EventLoop& loop, CollectiveBackend& group) {
  std::array<std::byte, 8> from{};
  std::array<std::byte, 8> into{};
  try {
    for (;;) {
      loop.run([](CollectiveBackend* all,
                  AllToAllArguments arguments) -> Task<> { return all->all_to_all(arguments); },
               &group, AllToAllArguments{.from = from.data(), .into = into.data(), .bytes = 4});
    }
  } catch (const PeerLost& lost) {
    return lost;
  }
}

// Rank 3 fails and rank 2 sees it. Rank 1 is told by rank 3 itself, rank 0 by rank 2 in a group
// that rank 3 is not in; both tell each other in a third one.
TEST_F(RanksOfHosts, AGroupBlamesTheRankThatFailed) {
  const Job job{.world = 4, .secret = kSecret};
  const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
    Worker worker;
    const int rank = group.rank();
    const auto [over_hosts, of_host] = groups_of(group, worker);
    if (rank == 3) {
      over_hosts->give_up(std::runtime_error("its disk is full"));
    } else if (rank == 2) {
      over_hosts->give_up(PeerLost("rank 3 is lost", 3));
    } else {
      const PeerLost lost = blamed_by_exchanges(worker.loop, *over_hosts);
      of_host->give_up(lost);
      const PeerLost told = blamed_by_exchanges(worker.loop, *of_host);
      throw failure(ExitCode::kPeer, "test", "{} {} {}", lost.rank(), told.rank(), lost.what());
    }
  });
  EXPECT_THAT(errors[0], StartsWith("4 [test] 3 3 [collectives] rank 3 is at fault, 5 as the "));
  EXPECT_THAT(errors[1], StartsWith("4 [test] 3 3 [collectives] rank 3 is at fault, 1 as the "));
  EXPECT_EQ(errors[2], "0 ");
  EXPECT_EQ(errors[3], "0 ");
}

Task<> keep_turns(NcclPeers* peers, bool decides) {
  constexpr std::uint64_t kTurns = 3 * NcclPeers::kMostAhead;
  for (std::uint64_t turn = 0; turn < kTurns; ++turn) {
    if (decides) {
      while (turn >= NcclPeers::kMostAhead && peers->behind(turn - NcclPeers::kMostAhead + 1)) {
        co_await sleep_for(100us);
      }
      NcclLaunch launch{.comm = static_cast<std::uint32_t>(turn % 3 % 2), .operation = {}};
      launch.operation.number = turn * 3;
      peers->decide(turn, launch);
    }
    std::optional<NcclLaunch> decided;
    while (!(decided = peers->decided(turn))) {
      co_await sleep_for(100us);
    }
    if (decided->comm != turn % 3 % 2 || decided->operation.number != turn * 3) {
      throw failure(ExitCode::kFailure, "test", "turn {} is another one", turn);
    }
    peers->has_begun(turn + 1);
  }
  while (peers->behind(kTurns)) {
    co_await sleep_for(1ms);
  }
}

Task<> wait_for_loss(NcclPeers* peers) {
  while (!peers->loss()) {
    co_await sleep_for(1ms);
  }
}

// The channel beside NCCL, as make_gpu_backend() connects it.
TEST_F(RanksOfHosts, KeepTheTurnsOfNccl) {
  ::setenv("TANDEM_HEARTBEAT_S", "0.2", 1);
  for (const int world : {2, 4}) {
    const Job job{.world = world, .secret = kSecret};
    const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
      EventLoop loop;
      const auto peers = group.connect_nccl_peers(loop);
      loop.run(&keep_turns, peers.get(), group.rank() == 0);
      if (peers->loss()) {
        throw failure(ExitCode::kFailure, "test", "{}", peers->loss()->cause);
      }
      const char* const interface = std::getenv("NCCL_SOCKET_IFNAME");
      if (interface == nullptr || std::string(interface) != "=lo") {
        throw failure(ExitCode::kFailure, "test", "NCCL would listen elsewhere");
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(world), "0 "));
  }
  ::unsetenv("TANDEM_HEARTBEAT_S");
}

TEST_F(RanksOfHosts, WhatGroupsSayBesideNcclNamesOtherRanksToo) {
  const auto errors = on_two_hosts({.world = 4, .secret = kSecret}, [](ProcessGroup& group) {
    EventLoop loop;
    const RankGroup over{fmt::format("over-{}", group.rank() % 2), group.rank() / 2, 2};
    const auto peers = group.connect_nccl_peers(loop, over);
    if (over.rank == 1) {
      peers->announce_failure(5, "rank 3 is lost");  // behind the two members
    }
    loop.run(&wait_for_loss, peers.get());
    throw failure(ExitCode::kPeer, "test", "{}", peers->loss()->failed_rank);
  });
  EXPECT_EQ(errors, std::vector<std::string>(4, "4 [test] 5"));
}

TEST_F(RanksOfHosts, AnEndedRankIsNamedWithItsHost) {
  const Job job{.world = 4, .secret = kSecret};
  const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
    Worker worker;
    const auto backend = group.make_backend(worker.loop, worker.pool);
    if (group.rank() == 3) {
      ::_exit(77);
    }
    for (;;) {
      expect_collectives_of_one_host(worker.loop, *backend);
    }
  });
  EXPECT_EQ(errors[3], "77 ");
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], StartsWith("4 ["));
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("; rank 3 is on host host-b"));
  }
}

TEST_F(RanksOfHosts, AHangingRankIsNamedWithItsHostAtTheDeadline) {
  ::setenv("TANDEM_COLLECTIVE_TIMEOUT_S", "1", 1);
  const Job job{.world = 4, .secret = kSecret};
  const auto began = std::chrono::steady_clock::now();
  const auto errors = on_two_hosts(job, [](ProcessGroup& group) {
    Worker worker;
    const auto backend = group.make_backend(worker.loop, worker.pool);
    expect_collectives_of_one_host(worker.loop, *backend);
    if (group.rank() == 3) {
      std::this_thread::sleep_for(10s);
      ::_exit(77);
    }
    expect_collectives_of_one_host(worker.loop, *backend);
  });
  ::unsetenv("TANDEM_COLLECTIVE_TIMEOUT_S");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
  EXPECT_EQ(errors[3], "77 ");
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(errors[rank], StartsWith("4 ["));
    EXPECT_THAT(errors[rank], HasSubstr("; rank 3 is on host host-b"));
  }
  EXPECT_THAT(errors[2], HasSubstr("rank 3 did not arrive at "));
}

// Rank 2 waits for rank 0, which waits for rank 1 before it goes on.
TEST(MeetingOfHosts, TheRankThatIsBehindIsNamedAndNotOneThatWaitsForIt) {
  const Job job{.world = 3, .timeout = 3s, .secret = kSecret};
  const auto errors = test::run(test::all_of(job), job.timeout, [](ProcessGroup& group) {
    group.require_same("config", "alike");
    if (group.rank() == 1) {
      std::this_thread::sleep_for(7s);
      return;
    }
    group.require_same("data", "alike");
  });
  const auto names_rank_1 = AllOf(StartsWith("4 [rendezvous] 2 of 3 ranks came within 3 s (0, 2)"),
                                  HasSubstr("rank 1 holds them up"));
  EXPECT_THAT(errors[0], names_rank_1);
  // Its deadline ends at the same time: where rank 0's came first, the store went with it.
  EXPECT_THAT(errors[2], AnyOf(names_rank_1, HasSubstr("rank 0, which hosts the rendezvous, is")));
}

}  // namespace
}  // namespace tandem
