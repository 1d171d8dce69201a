// tests/support/sim_host.hpp — the shared memory of one simulated host's ranks: what HostsBackend
// uses inside of a host, in virtual time.
//
// An operand is copied into the host when its rank arrives at the operation; when all ranks have,
// each of them takes what it needs. When a rank dies, the others of its host notice after
// detect_after. A wait may have a deadline, and a rank that said nothing for silent_after is
// silent; six times in that time a rank that waits looks at its clock. The ranks of a group, which
// are neighbours in the world, are numbered from 0. Lives as long as the world runs.
//
//   SimHost host(world, 4, 2);   std::unique_ptr<HostLevel> local = host.attach(5, pool);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/collectives/group_waits.hpp"
#include "actors/collectives/hosts/host_level.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

/// How many ranks stand on how many hosts.
struct HostShape {
  std::uint32_t hosts;
  std::uint32_t per_host;
  [[nodiscard]] std::uint32_t ranks() const noexcept { return hosts * per_host; }
};
inline constexpr std::array<HostShape, 4> kHostShapes = {{{2, 1}, {2, 2}, {4, 1}, {3, 2}}};

class SimHost {
 public:
  struct Options {
    Duration detect_after = std::chrono::milliseconds(50);
    Duration timeout{0};  // for each wait; 0: none
    Duration silent_after = std::chrono::seconds(15);
    std::uint32_t group_first = 0;  // the world's rank that is number 0 here
    std::uint32_t group_ranks = 0;  // 0: all from that one on
  };
  /// The same options as ShmSync has.
  struct Elsewhere {
    std::shared_ptr<RunWaits> run{};
    std::shared_ptr<GroupWaits> group{};
  };
  /// Has the ranks [first, first + ranks).
  SimHost(SimWorld& world, std::uint32_t first, std::uint32_t ranks, Options options);
  SimHost(SimWorld& world, std::uint32_t first, std::uint32_t ranks)
      : SimHost(world, first, ranks, Options()) {}
  SimHost(const SimHost&) = delete;
  SimHost& operator=(const SimHost&) = delete;

  /// The pool adds.
  [[nodiscard]] std::unique_ptr<HostLevel> attach(std::uint32_t rank, CpuPool& pool,
                                                  Elsewhere elsewhere);
  [[nodiscard]] std::unique_ptr<HostLevel> attach(std::uint32_t rank, CpuPool& pool) {
    return attach(rank, pool, Elsewhere());
  }
  /// Every operation of the rank fails from now on (before a dead rank is buried).
  void cut(std::uint32_t rank);

 private:
  class Member;
  /// A rank's part of an operation: the n-th or the next one of a sequence.
  struct Place {
    std::string header;  // the same at all ranks
    std::vector<std::byte> operand;
  };
  struct Sequence {
    std::vector<std::uint64_t> arrived;  // operations, by rank
    std::array<std::vector<Place>, 2> places;
  };

  void tell(std::uint32_t failed_rank, const std::string& why, std::uint32_t except);
  /// For a rank of this host.
  void after(Duration delay, std::uint32_t local, std::function<void()> event) {
    world_.after(delay, options_.group_first + first_ + local, std::move(event));
  }
  [[nodiscard]] std::uint32_t all_ranks() const noexcept {
    return options_.group_ranks > 0 ? options_.group_ranks : world_.ranks() - options_.group_first;
  }

  SimWorld& world_;
  std::uint32_t first_;
  Random random_;
  Options options_;
  std::array<Sequence, 2> sequences_;
  std::map<std::uint32_t, Awaited> awaited_;  // by rank among all, as its ranks said
  std::vector<Member*> members_;              // by rank of this host
};

}  // namespace tandem
