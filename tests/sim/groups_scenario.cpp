// Ranks of groups share rows and exchange around attention, while the collectives of all ranks go
// on, with at most one fault: without one all weights have the bits of whole rows in plain loops;
// with one every surviving rank ends in time and names who was at fault, though most of them wait
// in another group, or for a rank that does.
#include <memory>
#include <vector>

#include "tests/sim/group_rank.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kEndsWithin = milliseconds(500);  // virtual time, after a fault is noticed

enum class Fault {
  kNone,
  kSlow,
  kSlowLinks,
  kGivesUp,
  kDeath,
  kHangs,
  kIsStopped,
  kCount,
};

GroupsPlan draw_groups(Random& random) {
  GroupsPlan plan;
  plan.per_host = 1U << random.below(3);
  plan.hosts = static_cast<std::uint32_t>(plan.per_host == 4 ? 2 : 2 + 2 * random.below(2));
  plan.group = random.chance(0.4) ? 4 : 2;
  plan.group = std::min(plan.group, plan.ranks());
  plan.own = 1 + random.below(30);
  plan.heads = 1 + random.below(3);
  plan.layers = 1 + random.below(3);
  plan.steps = 1 + random.below(3);
  plan.shard = 1 + random.below(200);
  // Waits of the run, or of the group, are overdue first.
  plan.group_timeout = GroupRank::kTimeout * (1 + random.below(3)) / 2;
  return plan;
}

struct Groups {
  Groups(std::uint64_t seed, const GroupsPlan& plan_in, Fault fault_in, Random& random)
      : plan(plan_in), run("groups", seed, plan.ranks()), fault(fault_in), links(run.world, {}) {
    victim = static_cast<std::uint32_t>(random.below(plan.ranks()));
    for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
      if (rank % plan.per_host == 0) {
        hosts.push_back(make_host(rank, plan.per_host, {.timeout = GroupRank::kTimeout}));
      }
      const std::uint32_t first = rank / plan.group * plan.group;
      if (rank == first) {
        group_links.push_back(std::make_unique<SimNet>(
            run.world, SimNet::Options{.first = first, .ranks = plan.group}));
      }
      if ((rank - first) % plan.group_on_host() == 0) {
        group_hosts.push_back(make_host(
            rank - first, plan.group_on_host(),
            {.timeout = plan.group_timeout, .group_first = first, .group_ranks = plan.group}));
      }
      ranks.push_back(std::make_unique<GroupRank>(
          run, plan, rank,
          GroupRank::Places{links, *hosts.back(), *group_links.back(), *group_hosts.back()}));
    }
    const std::size_t at_visit = random.below(plan.steps * plan.visits());
    for (const auto& rank : ranks) {
      rank->start(rank->rank == victim ? misdeed() : Misdeed::kNone, at_visit);
    }
    strike(random);
  }

  std::unique_ptr<SimHost> make_host(std::uint32_t first, std::uint32_t count,
                                     SimHost::Options options) {
    options.silent_after = Awaited::kSilentAfter * GroupRank::kHeartbeat;
    return std::make_unique<SimHost>(run.world, first, count, options);
  }

  [[nodiscard]] Misdeed misdeed() const {
    return fault == Fault::kGivesUp     ? Misdeed::kGivesUp
           : fault == Fault::kHangs     ? Misdeed::kHangs
           : fault == Fault::kIsStopped ? Misdeed::kIsStopped
                                        : Misdeed::kNone;
  }

  void strike(Random& random) {
    if (fault == Fault::kSlow) {
      run.world.slow_down(victim, 3 + 10 * random.uniform());
    } else if (fault == Fault::kDeath) {
      run.world.after(microseconds(random.between(10, 600)), (victim + 1) % plan.ranks(), [this] {
        if (!all_ended()) {
          struck_at = run.world.now();
          run.world.kill(victim);
        }
      });
    } else if (fault == Fault::kSlowLinks) {
      for (int i = 0; i < 8; ++i) {
        const auto from = static_cast<std::uint32_t>(random.below(plan.ranks()));
        const auto to = static_cast<std::uint32_t>(random.below(plan.ranks()));
        run.world.after(microseconds(random.between(10, 2000)), 0, [this, from, to] {
          links.clog(from, to, milliseconds(1));
          group_links[from / plan.group]->clog(from % plan.group, to % plan.group, milliseconds(2));
        });
      }
    }
  }

  [[nodiscard]] bool all_ended() const {
    return std::ranges::all_of(ranks, [this](const auto& rank) {
      return !run.world.alive(rank->rank) || rank->scope.running() == 0;
    });
  }

  void check_end() {
    bool any = false;
    TimePoint first = std::min(struck_at, ranks[victim]->misdeed_at);
    TimePoint last;
    for (const auto& rank : ranks) {
      if (!run.world.alive(rank->rank) || !rank->failed_rank.has_value()) {
        any = any || !run.world.alive(rank->rank);
        continue;
      }
      any = true;
      run.require(fault >= Fault::kGivesUp, "rank {} failed though nothing was at fault: {}",
                  rank->rank, rank->failure);
      if (fault >= Fault::kHangs && rank->rank == victim) {
        continue;
      }
      run.require(*rank->failed_rank == victim, "rank {} blames rank {} instead of {}: {}",
                  rank->rank, *rank->failed_rank, victim, rank->failure);
      last = std::max(last, rank->ended_at);
    }
    if (any) {
      const Duration overdue =
          fault >= Fault::kHangs
              ? std::max(GroupRank::kTimeout, plan.group_timeout) + kDeadlineGrace
              : Duration(0);
      run.require(last < first + overdue + kEndsWithin, "a rank ended {} ns after the fault",
                  (last - first).count());
    } else {
      check_result();
    }
  }

  void check_result() {
    const Weights expected = group_reference(plan);
    for (const auto& rank : ranks) {
      for (std::size_t l = 0; l < plan.layers; ++l) {
        run.require(
            std::equal(rank->shards[l].begin(), rank->shards[l].end(),
                       expected[l].begin() + static_cast<std::ptrdiff_t>(rank->rank * plan.shard)),
            "rank {}, layer {}: weights differ from those without groups", rank->rank, l);
      }
    }
    std::size_t frames = links.frames_under_way();
    for (const auto& net : group_links) {
      frames += net->frames_under_way();
    }
    run.require(frames == 0, "{} frames were sent and not received", frames);
  }

  void bury_the_dead() {
    for (const auto& rank : ranks) {
      if (!run.world.alive(rank->rank)) {
        const std::uint32_t place = rank->rank % plan.group;
        links.cut(rank->rank);
        hosts[rank->rank / plan.per_host]->cut(rank->rank);
        group_links[rank->rank / plan.group]->cut(place);
        group_hosts[rank->rank / plan.group_on_host()]->cut(place);
        run.world.bury(rank->rank);
      }
    }
    run.until("the dead are buried", [this] { return all_ended(); });
  }

  const GroupsPlan& plan;
  mutable Run run;
  Fault fault;
  SimNet links;
  std::uint32_t victim = 0;
  TimePoint struck_at = TimePoint::max();
  std::vector<std::unique_ptr<SimHost>> hosts;
  std::vector<std::unique_ptr<SimNet>> group_links;   // [group]
  std::vector<std::unique_ptr<SimHost>> group_hosts;  // each group's, in the order of ranks
  std::vector<std::unique_ptr<GroupRank>> ranks;
};

}  // namespace

std::uint64_t rehearse_groups(std::uint64_t seed) {
  Random random = Random(seed).fork("groups plan");
  const GroupsPlan plan = draw_groups(random);
  const Fault fault =
      random.chance(0.2)
          ? Fault::kNone
          : static_cast<Fault>(random.below(static_cast<std::uint64_t>(Fault::kCount)));
  Groups groups(seed, plan, fault, random);
  groups.run.until("every rank ends", [&] { return groups.all_ended(); });
  groups.check_end();
  groups.bury_the_dead();
  return groups.run.world.log().hash();
}

}  // namespace tandem::sim_test
