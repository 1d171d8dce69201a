// Ranks in virtual time: of several hosts in the simulator, and with GPUs on fakes of CUDA and
// NCCL.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "tests/actors/collectives/contract/backend_world.hpp"
#include "tests/support/nccl_world.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kHomeBytes = std::size_t{4} << 20;

bool all_well(const WorldRun& run) {
  return std::ranges::all_of(run.ranks, [](const Ending& ending) { return ending.text.empty(); });
}

// ---- several hosts ----
constexpr std::size_t kPieceBytes = 2048;

/// Ranks of a simulated world, as many on each host. With an odd seed a piece is two frames.
class SimHosts {
 public:
  using Order = HostsBackend::Order;
  SimHosts(std::uint64_t seed, std::uint32_t ranks, std::uint32_t per_host, Order order)
      : world_({.seed = seed, .ranks = ranks}), links_(world_, {.latency = 20us}) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank % per_host == 0) {
        hosts_.push_back(std::make_unique<SimHost>(world_, rank, per_host));
      }
      ranks_.push_back(std::make_unique<Rank>(*this, *hosts_.back(), rank, order, seed % 2 != 0));
    }
  }

  WorldRun run(const Program& program) {
    WorldRun run{.ranks = std::vector<Ending>(ranks_.size())};
    for (const auto& rank : ranks_) {
      rank->scope.spawn("program", &run_to_its_end, static_cast<ContractRank*>(&rank->contract),
                        &program, &run.ranks[rank->number]);
    }
    run_until_done(run);
    bury_the_dead(run);
    if (all_well(run) && links_.frames_under_way() > 0) {
      run.left_behind = fmt::format("{} frames", links_.frames_under_way());
    }
    return run;
  }

 private:
  struct Rank;
  class OfSimulation final : public ContractRank {
   public:
    OfSimulation(SimHosts& all, CollectiveBackend& backend)
        : ContractRank(backend, kHomeBytes), all_(all) {}
    void leave() override {
      all_.world_.after(Duration(0), number(), [this] { all_.world_.kill(number()); });
    }

   private:
    SimHosts& all_;
  };
  struct Rank {
    Rank(SimHosts& all, SimHost& of, std::uint32_t rank, Order order, bool in_frames)
        : number(rank),
          host(of),
          workers(all.world_, rank, {.threads = 2}),
          pool(all.world_.loop(rank), {.threads = 2, .driver = &workers}),
          net(all.links_.attach(rank)),
          local(of.attach(rank, pool)),
          backend(*local, net, pool,
                  {.order = order,
                   .piece_bytes = kPieceBytes,
                   .frame_bytes = in_frames ? kPieceBytes - 800 : kPieceBytes}),
          contract(all, backend),
          scope(all.world_.loop(rank), Name("rank")) {}
    std::uint32_t number;
    SimHost& host;
    SimPool workers;
    CpuPool pool;
    Net net;
    std::unique_ptr<HostLevel> local;
    HostsBackend backend;
    OfSimulation contract;
    Scope scope;
  };

  void run_until_done(WorldRun& run) {
    const SimWorld::End end = world_.run([this] {
      return std::ranges::all_of(ranks_, [this](const auto& rank) {
        return rank->scope.running() == 0 || !world_.alive(rank->number);
      });
    });
    if (end != SimWorld::End::kDone) {
      run.left_behind = "ranks that hang";
    }
  }
  void bury_the_dead(WorldRun& run) {
    for (const auto& rank : ranks_) {
      if (!world_.alive(rank->number)) {
        links_.cut(rank->number);
        rank->host.cut(rank->number);
        world_.bury(rank->number);
      }
    }
    run_until_done(run);
  }

  SimWorld world_;
  SimNet links_;
  std::vector<std::unique_ptr<SimHost>> hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

Backend hosts_of(std::uint32_t per_host, std::string name, std::vector<std::uint32_t> worlds,
                 HostsBackend::Order order = HostsBackend::Order::kExact) {
  const std::vector<Homes> host = {{Home::kAllocated, Home::kAllocated}, {Home::kOwn, Home::kOwn}};
  return {
      .name = std::move(name),
      .worlds = std::move(worlds),
      .buffer_bytes = kPieceBytes,
      .large_bytes = 3 * kPieceBytes + 333,
      .large_tiles = 7,
      .seeds = 6,
      .gathers = host,
      .reductions = host,
      .swaps = host,
      .exchanges = host,
      .not_promised = not_over_nets(),
      .run = [per_host, order](std::uint32_t ranks, std::uint64_t seed, const Program& program) {
        return SimHosts(seed, ranks, per_host, order).run(program);
      }};
}

// ---- GPUs ----
class GpuRank final : public ContractRank {
 public:
  GpuRank(NcclWorld& world, NcclRank& rank)
      : ContractRank(*rank.backend, kHomeBytes), world_(world), rank_(rank) {}
  void leave() override { world_.peers.lose(number(), fmt::format("rank {} has left", number())); }

 protected:
  std::byte* allocate(Home home, std::size_t bytes) override {
    if (home != Home::kDevice) {
      return ContractRank::allocate(home, bytes);
    }
    device_ = rank_.buffer(bytes);
    return device_.data();
  }

 private:
  NcclWorld& world_;
  NcclRank& rank_;
  DeviceBuffer device_;
};

/// The communicator of each launch, in their order.
std::vector<std::string> sequences_of(std::vector<std::string> launches) {
  for (std::string& launch : launches) {
    launch.resize(launch.find(':'));
  }
  return launches;
}

WorldRun run_gpus(std::uint32_t ranks, std::uint64_t seed, const Program& program, bool own_sums) {
  WorldRun run{.ranks = std::vector<Ending>(ranks)};
  NcclWorld world(ranks);
  world.nccl.questions = static_cast<int>(seed) * 2;
  world.connect([own_sums](NcclBackend::Options& options) { options.own_sums = own_sums; });
  {
    std::vector<std::unique_ptr<GpuRank>> made;
    for (NcclRank& rank : world.ranks) {
      made.push_back(std::make_unique<GpuRank>(world, rank));
    }
    world.run([&](NcclRank& rank) {
      const std::uint32_t number = rank.backend->rank();
      return run_to_its_end(made[number].get(), &program, &run.ranks[number]);
    });
  }
  world.ranks.clear();
  if (world.nccl.live() != 0 || world.cuda.used_bytes() != 0 || world.cuda.live_streams() != 0) {
    run.left_behind = fmt::format("{} communicators, {} bytes, {} streams", world.nccl.live(),
                                  world.cuda.used_bytes(), world.cuda.live_streams());
  }
  for (std::uint32_t rank = 0; rank < ranks && all_well(run); ++rank) {
    EXPECT_EQ(sequences_of(world.nccl.launches(rank)), sequences_of(world.nccl.launches(0)));
    EXPECT_EQ(world.nccl.mismatches(), std::vector<std::string>());
  }
  return run;
}

Backend gpus(std::string name, std::vector<std::uint32_t> worlds, bool own_sums = false) {
  const std::vector<Homes> on_device = {{Home::kDevice, Home::kDevice},
                                        {Home::kAllocated, Home::kDevice},
                                        {Home::kAllocated, Home::kAllocated}};
  return {.name = std::move(name),
          .worlds = std::move(worlds),
          .buffer_bytes = std::size_t{64} << 10,  // of reductions, over the ranks
          .large_bytes = 137'217,
          .large_tiles = 67,
          .seeds = 2,
          .gathers = on_device,
          .reductions = on_device,
          .swaps = on_device,
          .exchanges = {{Home::kOwn, Home::kOwn}},
          .not_promised = {{Promise::kAddsTrees, "devices add ranks one after another"}},
          .run = [own_sums](std::uint32_t ranks, std::uint64_t seed, const Program& program) {
            return run_gpus(ranks, seed, program, own_sums);
          }};
}

}  // namespace

std::vector<Backend> simulated_backends() {
  Backend own_sums = gpus("nccl_with_own_sums", {2, 3}, true);
  own_sums.scattered_sums = own_sums.all_sums = SumOrder::kNcclsOfTheFake;
  Backend fast = hosts_of(2, "hosts_of_two_in_fast_order", {4, 6}, HostsBackend::Order::kFast);
  fast.scattered_sums = SumOrder::kPairByPair;
  fast.not_promised[Promise::kAddsTrees] = "a host's ranks are added first in any case";
  return {hosts_of(1, "hosts_of_one", {2, 3, 4}),
          hosts_of(2, "hosts_of_two", {4, 6}),
          hosts_of(4, "one_host_of_four", {4}),
          std::move(fast),
          gpus("nccl", {1, 2, 3, 4}),
          std::move(own_sums)};
}

}  // namespace tandem::test
