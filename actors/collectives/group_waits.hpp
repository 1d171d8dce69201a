// actors/collectives/group_waits.hpp — shares what is known about waits between the back ends of
// one rank: the back end of all ranks, and those of groups.
//
// A rank that is awaited in a group may take part in no operation of the group, because it waits
// for a rank outside of it. A group whose loop runs only while it exchanges has no heartbeat of its
// own. So a group uses the heartbeats of the back end of all ranks: it reports here which ranks it
// awaits; the back end of all ranks publishes those together with its own waits, and stores here
// the waits of every rank. In this way a deadline follows waits through all groups. A failure of
// the back end of all ranks also ends the waits in groups, at their next tick.
// Thread rule: any; back ends may be on loops of different threads. Answers may be half a heartbeat
// period old.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/collectives/awaited.hpp"

namespace tandem {

class GroupWaits;

/// The waits that one rank knows about. Ranks have their numbers in the run.
class RunWaits {
 public:
  struct Failure {
    std::uint32_t rank;
    std::string why;
  };

  // ---- called by the back end of all ranks ----
  /// Called at each tick: stores the ranks that each rank awaits, by rank.
  void know(std::span<const Awaited> by_rank);
  /// Returns the ranks that this rank awaits in groups.
  [[nodiscard]] Awaited in_groups() const;
  /// Reports that the back end of all ranks has failed. The first cause counts.
  void fail(std::uint32_t failed_rank, std::string_view why);

 private:
  friend class GroupWaits;

  mutable std::mutex mutex_;
  std::vector<Awaited> known_;  // by rank
  std::map<const GroupWaits*, Awaited> said_;
  std::optional<Failure> failure_;
};

/// The waits in one of the rank's groups. Members are numbered in the group's order. The number of
/// a rank outside of the group is the number of members plus its number in the run.
class GroupWaits {
 public:
  /// `members` are given by their numbers in the run, in the group's order.
  GroupWaits(std::shared_ptr<RunWaits> run, std::vector<std::uint32_t> members);
  ~GroupWaits() { say({}); }
  GroupWaits(const GroupWaits&) = delete;
  GroupWaits& operator=(const GroupWaits&) = delete;

  [[nodiscard]] std::span<const std::uint32_t> members() const noexcept { return members_; }
  /// Convert a rank's number in the group to that in the run, and back; kUnknownRank stays
  /// unchanged.
  [[nodiscard]] std::uint32_t in_run(std::uint32_t rank) const noexcept;
  [[nodiscard]] std::uint32_t in_group(std::uint32_t rank) const noexcept;

  // ---- called by the group's back end; ranks have their numbers in the group ----
  /// Called at each tick: sets the ranks that this rank awaits in the group; none when an operation
  /// ends.
  void say(Awaited awaited);
  /// Returns the ranks that `rank` awaits, as far as this rank knows.
  [[nodiscard]] Awaited of(std::uint32_t rank) const;
  /// Follows waits through all groups, beginning with the wait of `waiter` for `awaited`.
  [[nodiscard]] EndOfWaits end_of(std::uint32_t waiter, std::uint32_t awaited) const;
  /// Returns why the back end of all ranks has failed; nullopt if it has not.
  [[nodiscard]] std::optional<RunWaits::Failure> failure() const;

 private:
  std::shared_ptr<RunWaits> run_;
  std::vector<std::uint32_t> members_;
};

}  // namespace tandem
