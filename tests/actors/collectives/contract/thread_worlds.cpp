// Ranks that are threads and share memory: the back end for it, and those that use it.
#include <utility>

#include <dirent.h>
#include <fmt/format.h>

#include "actors/collectives/group_backend.hpp"
#include "actors/collectives/hosts/hosts_backend.hpp"
#include "runtime/ucx/ucx_net.hpp"
#include "tests/actors/collectives/contract/wrapped_ranks.hpp"
#include "tests/support/net_ranks.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kHomeBytes = std::size_t{48} << 20;
constexpr std::size_t kStepBytes = std::size_t{1} << 20;  // of ShmBackend's transfer buffer
constexpr Duration kTimeout = 30s;  // a rank that is missed ends the test, and does not hang it

using MakeRank = std::function<std::unique_ptr<ContractRank>(ShmRank& shm)>;

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) {
    ++count;
  }
  ::closedir(folder);
  return count;
}

void run_host(std::uint32_t ranks, const ShmBackend::Options& options, const MakeRank& make,
              const Program& program, std::span<Ending> endings) {
  const std::vector<std::string> errors = run_ranks(
      ranks,
      [&](ShmRank& shm) {
        const std::uint32_t rank = shm.backend->rank();
        const std::unique_ptr<ContractRank> made = make(shm);
        shm.loop.run(&run_to_its_end, made.get(), &program, &endings[rank]);
      },
      options);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (!errors[rank].empty()) {
      endings[rank] = {.text = "outside of its program: " + errors[rank], .code = 1, .lost = {}};
    }
  }
}

WorldRun run_threads(std::uint32_t ranks, ShmBackend::Options options, const MakeRank& make,
                     const Program& program) {
  options.timeout = kTimeout;
  const std::size_t before = open_descriptors();
  WorldRun run{.ranks = std::vector<Ending>(ranks)};
  run_host(ranks, options, make, program, run.ranks);
  if (const std::size_t after = open_descriptors(); after != before) {
    run.left_behind = fmt::format("{} file descriptors", after - before);
  }
  return run;
}

Backend over_shared_memory(std::string name, std::vector<std::uint32_t> worlds,
                           const MakeRank& make, const ShmBackend::Options& options = {}) {
  const std::vector<Homes> host = {{Home::kAllocated, Home::kAllocated}, {Home::kOwn, Home::kOwn}};
  return {.name = std::move(name),
          .worlds = std::move(worlds),
          .buffer_bytes = kStepBytes,
          .large_bytes = 2 * kStepBytes + 902'849,
          .large_tiles = 301,
          .gathers = {host[0], host[1], {Home::kMixed, Home::kOwn}},
          .reductions = host,
          .swaps = host,
          .exchanges = {host[0]},
          .run = [=](std::uint32_t ranks, std::uint64_t, const Program& program) {
            return run_threads(ranks, options, make, program);
          }};
}

std::unique_ptr<ContractRank> owning(std::unique_ptr<CollectiveBackend> backend) {
  return std::make_unique<OwningRank>(std::move(backend), kHomeBytes);
}

/// The group has the ranks 1, 2, ... of a run whose rank 0 is no member.
std::unique_ptr<ContractRank> group_rank(ShmRank& shm) {
  std::vector<std::uint32_t> members;
  for (std::uint32_t rank = 0; rank < shm.backend->world(); ++rank) {
    members.push_back(rank + 1);
  }
  return owning(std::make_unique<GroupBackend>(
      std::move(shm.backend),
      std::make_shared<GroupWaits>(std::make_shared<RunWaits>(), std::move(members))));
}

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;  // between hosts

/// A rank of one of several hosts, joined by UCX on the loopback.
class UcxRank final : public ContractRank {
 public:
  UcxRank(ShmRank& shm, std::uint32_t number, std::uint32_t world, AddressBook& book)
      : UcxRank(std::make_unique<Parts>(shm, number, world, book)) {}

 private:
  struct Parts {
    Parts(ShmRank& shm, std::uint32_t number, std::uint32_t world, AddressBook& book)
        : net(connect_on_loopback(shm.loop, loopback_options(number, world), book)),
          backend(*shm.backend, net, shm.pool,
                  {.piece_bytes = kPieceBytes, .waits = {.timeout = kTimeout}}) {}
    Net net;
    HostsBackend backend;
  };
  explicit UcxRank(std::unique_ptr<Parts> parts)
      : ContractRank(parts->backend, kHomeBytes), parts_(std::move(parts)) {}

  std::unique_ptr<Parts> parts_;
};

WorldRun run_hosts(std::uint32_t hosts, std::uint32_t per_host, const Program& program) {
  const std::uint32_t world = hosts * per_host;
  WorldRun run{.ranks = std::vector<Ending>(world)};
  AddressBook book(world);
  std::vector<std::thread> threads;
  for (std::uint32_t first = 0; first < world; first += per_host) {
    threads.emplace_back([&, first] {
      const MakeRank make = [&](ShmRank& shm) {
        return std::make_unique<UcxRank>(shm, first + shm.backend->rank(), world, book);
      };
      run_host(per_host, {.first_rank = first, .all_ranks = world, .timeout = kTimeout}, make,
               program, std::span(run.ranks).subspan(first, per_host));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return run;
}

}  // namespace

std::vector<Backend> thread_backends() {
  Backend shm = over_shared_memory("shm", {1, 2, 3, 4},
                                   [](ShmRank& rank) { return owning(std::move(rank.backend)); });
  shm.not_promised[Promise::kKeepsTypes] = "a single rank has SelfBackend";
  Backend group = over_shared_memory("group", {2, 3}, &group_rank, {.outside_ranks = 4});
  group.first_name = 1;
  Backend staged = over_shared_memory(
      "staged_over_shm", {2, 4}, [](ShmRank& rank) -> std::unique_ptr<ContractRank> {
        return std::make_unique<DeviceRank>(rank.loop, std::move(rank.backend),
                                            SimDevice::Time::kReal);
      });
  use_device(staged, 2);
  staged.not_promised[Promise::kSaysWhy] = "an operation is several of the inner back end";
  Backend file = over_shared_memory(
      "state_file_over_shm", {2, 3}, [](ShmRank& rank) -> std::unique_ptr<ContractRank> {
        return std::make_unique<FileRank>(rank.loop, rank.pool, std::move(rank.backend), false);
      });
  use_file(file, false);
  Backend hosts = over_shared_memory("hosts_over_shm_and_ucx", {4}, nullptr);
  hosts.buffer_bytes = kPieceBytes;
  hosts.large_bytes = 3 * kPieceBytes + 333;
  hosts.large_tiles = 67;
  hosts.not_promised = not_over_nets();
  hosts.missing = [] {
    return ucx_support().usable ? std::string() : "no UCX: " + ucx_support().what;
  };
  hosts.run = [](std::uint32_t ranks, std::uint64_t, const Program& program) {
    return run_hosts(2, ranks / 2, program);
  };
  return {shm, group, staged, file, hosts};
}

}  // namespace tandem::test
