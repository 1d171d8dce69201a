// bench/collectives/rank_team.hpp — the ranks of a benchmark: processes that carry out batches of
// operations on command.
//
// Forked by a parent without threads. Invariant: all ranks run the same batch at the same time; a
// batch begins when all are there, and its time is that of the slowest rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/types.h>

namespace tandem::bench {

enum class Work : std::uint32_t {
  kAllGather,
  kReduceScatter,
  kGatherBound,  // memcpy of as many bytes as the all-gather reads and writes, and nothing else
  kReduceBound,  // the same for the reduce-scatter
};

class RankTeam {
 public:
  /// Blocks of at most `most_bytes`.
  RankTeam(std::uint32_t world, std::size_t most_bytes);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  [[nodiscard]] std::uint32_t world() const noexcept {
    return static_cast<std::uint32_t>(ranks_.size());
  }
  /// Seconds of `times` operations on blocks of `bytes`. Throws when a rank is gone.
  double run(Work work, std::size_t bytes, std::uint32_t times);

 private:
  struct Rank {
    pid_t process = -1;
    int socket = -1;
  };
  std::vector<Rank> ranks_;
};

}  // namespace tandem::bench
