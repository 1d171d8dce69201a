// tests/sim/group_rank.hpp — one rank of a rehearsed training in which neighbours share rows: the
// collectives of all ranks and those of its group, both over simulated nets.
//
// The model is plain numbers: of each layer all weights are gathered, its tokens' values times a
// weight go to the group's ranks by heads and, behind a sum along whole rows, back by tokens;
// backward makes these exchanges once more, and each weight's gradient is a sum over tokens. As in
// the product, a lane computes and exchanges; gathers run ahead of it and reductions behind it; and
// no stop reaches a lane that exchanges: what ends it is what its group learns. The same training
// of whole rows in plain loops is group_reference().
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/collectives/group_backend.hpp"
#include "actors/collectives/hosts/hosts_backend.hpp"
#include "actors/collectives/hosts/progress.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "tests/sim/harness.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem::sim_test {

struct GroupsPlan {
  std::uint32_t hosts = 2;
  std::uint32_t per_host = 2;
  std::uint32_t group = 2;  // ranks, neighbours
  std::size_t own = 8;      // tokens of a rank
  std::size_t heads = 1;    // per rank, in attention
  std::size_t layers = 2;
  std::size_t steps = 2;
  std::size_t shard = 5;  // weights of a layer
  Duration group_timeout = std::chrono::milliseconds(800);

  [[nodiscard]] std::uint32_t ranks() const noexcept { return hosts * per_host; }
  [[nodiscard]] std::uint32_t groups() const noexcept { return ranks() / group; }
  [[nodiscard]] std::size_t all_heads() const noexcept { return group * heads; }
  [[nodiscard]] std::size_t weights() const noexcept { return ranks() * shard; }
  [[nodiscard]] std::size_t visits() const noexcept { return 2 * layers; }  // per step
  /// Returns how many of a group's ranks are on one host.
  [[nodiscard]] std::uint32_t group_on_host() const noexcept { return std::min(group, per_host); }
  /// Whether a reduction can add a group's ranks as a tree.
  [[nodiscard]] std::uint32_t tree() const noexcept {
    return per_host % group == 0 || per_host == 1 ? group : 1;
  }
};

/// [layer][weight] at the end.
using Weights = std::vector<std::vector<float>>;
[[nodiscard]] Weights group_reference(const GroupsPlan& plan);

/// The fault of a rank at one of its visits.
enum class Misdeed : std::uint8_t { kNone, kGivesUp, kHangs, kIsStopped };

class GroupRank {
 public:
  static constexpr Duration kTimeout = std::chrono::milliseconds(800);
  static constexpr Duration kHeartbeat = std::chrono::milliseconds(100);
  static constexpr Duration kForEver = std::chrono::seconds(8);

  /// Nets and hosts of the run and of its group.
  struct Places {
    SimNet& links;
    SimHost& host;
    SimNet& group_links;
    SimHost& group_host;
  };
  GroupRank(Run& run, const GroupsPlan& plan, std::uint32_t rank, Places places);

  void start(Misdeed misdeed, std::size_t at_visit);

  std::uint32_t rank;
  Scope scope;
  TimePoint ended_at;
  TimePoint misdeed_at = TimePoint::max();
  std::optional<std::uint32_t> failed_rank;  // that this one names
  std::string failure;
  Weights shards;  // [layer]: this rank's

 private:
  static Task<> collect(GroupRank* self);
  static Task<> compute(GroupRank* self);
  Task<> gather();
  Task<> reduce();
  Task<> visit(std::size_t number, std::vector<std::vector<float>>* inputs);
  Task<> misbehave();
  Task<> exchange(std::vector<float>* from, std::vector<float>* into);
  void failed(std::exception_ptr error);
  void end_task();

  Run& run_;
  const GroupsPlan& plan_;
  Random random_;
  SimPool workers_;
  CpuPool pool_;
  std::shared_ptr<RunWaits> run_waits_;
  std::shared_ptr<GroupWaits> group_waits_;
  Net net_;
  std::unique_ptr<HostLevel> local_;
  HostsBackend backend_;
  Net group_net_;
  std::unique_ptr<HostLevel> group_local_;
  GroupBackend group_;

  Misdeed misdeed_ = Misdeed::kNone;
  std::size_t misdeed_visit_ = 0;
  Scope* collecting_ = nullptr;  // while its collectives go on
  bool collectives_failed_ = false;
  int tasks_ = 2;
  std::vector<std::vector<float>> slots_;      // gathered weights, in turn
  std::vector<std::vector<float>> gradients_;  // [layer]
  Progress gathered_, used_, made_, reduced_;
};

}  // namespace tandem::sim_test
