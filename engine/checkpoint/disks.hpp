// engine/checkpoint/disks.hpp — finds out which ranks see the same disk, before a checkpoint is
// saved or loaded.
//
// Device and inode numbers do not tell whether hosts share a file system. So the first rank of each
// host creates an empty file with a random name in the folder, and every rank looks for all of
// them. If the folder does not exist or is not writable, its nearest parent that exists is used. A
// host that can write nowhere counts as having a disk of its own, unless it sees another host's
// file.
// Invariant: all ranks get the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/task.hpp"

namespace tandem {

class Communicator;

struct Disks {
  std::vector<std::uint32_t> of_rank;  // [rank] the number of its disk
  std::vector<std::string> hosts;      // [disk] a host that has it, by its first rank

  /// One disk that all ranks share.
  static Disks shared(std::size_t world);

  [[nodiscard]] std::uint32_t count() const noexcept {
    return static_cast<std::uint32_t>(hosts.size());
  }
  [[nodiscard]] bool are_several() const noexcept { return hosts.size() > 1; }
  [[nodiscard]] std::vector<std::uint32_t> ranks_of(std::uint32_t disk) const;
  [[nodiscard]] std::uint32_t first_rank_of(std::uint32_t disk) const;
  [[nodiscard]] bool is_first_of_its_disk(std::uint32_t rank) const {
    return first_rank_of(of_rank[rank]) == rank;
  }

  bool operator==(const Disks&) const = default;
};

/// A text of every rank, in rank order.
using TextExchange = std::function<Task<std::vector<std::string>>(std::string mine)>;

/// Collective. `hosts`: Communicator::hosts(). Takes a few exchanges if there are several hosts,
/// else none.
Task<Disks> find_disks(TextExchange exchange, std::vector<std::string> hosts, std::size_t rank,
                       std::size_t world, std::string folder);
/// The same before training starts; blocks.
Disks find_disks(Communicator& ranks, const std::string& folder);

}  // namespace tandem
