// actors/collectives/group_waits.hpp — what the back ends of one rank tell each other of waits: the
// one of all ranks, and those of groups.
//
// The rank that is awaited in a group may be in no operation of the group, because it waits for a
// rank that the group does not have; and where a group's loop runs only while it exchanges, its
// heart says nothing. So a group judges by what the back end of all ranks knows, whose heart always
// beats and whose words reach all: it says here for whom it waits, the back end of all ranks says
// that to the others with its own waits, and writes down here what it hears of each rank. A
// deadline follows waits through all groups in this way. A cause that ends the back end of all
// ranks ends waits in groups, too, at their next look. Thread rule: any; back ends may be on loops
// of different threads. The answers may be half a heartbeat old.
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

/// The waits of one rank; ranks have their numbers in the run.
class RunWaits {
 public:
  struct Failure {
    std::uint32_t rank;
    std::string why;
  };

  // ---- of the back end of all ranks ----
  /// At a look: for whom each rank waits, by rank.
  void know(std::span<const Awaited> by_rank);
  /// For whom this rank waits in groups.
  [[nodiscard]] Awaited in_groups() const;
  /// It is broken. The first cause counts.
  void fail(std::uint32_t failed_rank, std::string_view why);

 private:
  friend class GroupWaits;

  mutable std::mutex mutex_;
  std::vector<Awaited> known_;  // by rank
  std::map<const GroupWaits*, Awaited> said_;
  std::optional<Failure> failure_;
};

/// The waits of one of its groups, whose members have numbers of their own, in their order. A rank
/// outside of the group has the number behind the members' that its own one makes.
class GroupWaits {
 public:
  /// `members`: by their numbers in the run.
  GroupWaits(std::shared_ptr<RunWaits> run, std::vector<std::uint32_t> members);
  ~GroupWaits() { say({}); }
  GroupWaits(const GroupWaits&) = delete;
  GroupWaits& operator=(const GroupWaits&) = delete;

  [[nodiscard]] std::span<const std::uint32_t> members() const noexcept { return members_; }
  /// From the group's count to the run's, and back; kUnknownRank stays so.
  [[nodiscard]] std::uint32_t in_run(std::uint32_t rank) const noexcept;
  [[nodiscard]] std::uint32_t in_group(std::uint32_t rank) const noexcept;

  // ---- of the group's back end; ranks as the group counts ----
  /// At a look, and none when an operation ends: for whom this rank waits in the group.
  void say(Awaited awaited);
  /// The known wait of a rank.
  [[nodiscard]] Awaited of(std::uint32_t rank) const;
  /// Follows waits through all groups, of which the first is `waiter`'s for `awaited`.
  [[nodiscard]] EndOfWaits end_of(std::uint32_t waiter, std::uint32_t awaited) const;
  /// Why the back end of all ranks is broken.
  [[nodiscard]] std::optional<RunWaits::Failure> failure() const;

 private:
  std::shared_ptr<RunWaits> run_;
  std::vector<std::uint32_t> members_;
};

}  // namespace tandem
