// actors/collectives/shm/shm_backend.hpp — collectives of the processes of one host (or of threads
// of one process), through shared memory.
//
// All ranks map every rank's arena. Peers read an operand in memory of allocate() in place: a
// gather copies each shard once, a reduction reads each block once. Other operands go through a
// transfer buffer in the arena, piece by piece. Exchanges, and gathers and all-to-alls of at most
// kExchangeBytes, are sent with the headers. Copies and additions run on the pool in chunks; small
// ones run on the loop, because a hand-over would take longer. Reductions add rank by rank into the
// accumulator, so the bits are those of `self` fed with the ranks' blocks in turn. An all-reduce is
// a reduction of one slice per rank, then a gather of the slices. HostsBackend uses this class, as
// a HostLevel, inside of a host.
// Failure: see shm_sync.hpp; PeerLost names the rank at fault and the operation.
// Thread rule: the loop's thread, except connect(), which blocks and is called before the loop
// runs.
//
//   auto backend = ShmBackend::connect(
//       loop, pool, {.rank = 1, .world = 4, .job = name_that_all_ranks_share});
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/hosts/host_level.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "actors/collectives/shm/shm_arena.hpp"
#include "actors/collectives/shm/shm_sync.hpp"

namespace tandem {

class ShmBackend final : public CollectiveBackend, public HostLevel {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    std::string job;  // as in ShmBootstrapOptions
    // With several hosts, failures name ranks by their numbers among all ranks.
    std::uint32_t first_rank = 0;  // of this host
    std::uint32_t all_ranks = 0;   // 0: there is one host
    // For a group: the number of ranks of the run. A failure may name these by numbers after those
    // of the group.
    std::uint32_t outside_ranks = 0;
    std::shared_ptr<RunWaits> run_waits{};  // as in ShmSync
    std::shared_ptr<GroupWaits> group_waits{};
    // Address space for allocate(). 0: twice the rank's share of the machine's memory.
    std::size_t arena_bytes = 0;
    Duration connect_timeout = std::chrono::seconds(300);
    Duration timeout = default_timeout();  // of each wait for the peers
    Duration heartbeat = default_heartbeat();
  };
  /// Returns TANDEM_COLLECTIVE_TIMEOUT_S, else 600 s. Throws a user error if it is not a positive
  /// number.
  [[nodiscard]] static Duration default_timeout();
  /// Returns TANDEM_HEARTBEAT_S, else 5 s. Throws as default_timeout() does.
  [[nodiscard]] static Duration default_heartbeat();

  /// Blocks until all ranks of the job are connected. Loop and pool outlive the back end. Throws
  /// Error(kPeer), which names the missing rank, or Error(kRefused) if there is no address space.
  [[nodiscard]] static std::unique_ptr<ShmBackend> connect(EventLoop& loop, CpuPool& pool,
                                                           Options options);

  [[nodiscard]] std::uint32_t world() const noexcept override { return sync_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return sync_.rank(); }

  std::byte* allocate(std::size_t bytes) override { return arena_->allocate(bytes); }
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

  void abort(std::string_view why) noexcept override;

  Task<> gather(Sequence sequence, Gather what) override;
  Task<> reduce(Reduce what) override;
  void say_awaited(std::uint32_t rank, Awaited awaited) noexcept override {
    sync_.say_awaited(rank, awaited);
  }
  [[nodiscard]] Awaited awaited(std::uint32_t rank) const noexcept override {
    return sync_.awaited(rank);
  }
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override {
    sync_.fail(failed_rank, std::string(why));
  }

 private:
  static constexpr std::size_t kGathers = 0;
  static constexpr std::size_t kReductions = 1;

  // The bytes that move in one operation. Rank p's part is [p * part_bytes, (p + 1) * part_bytes)
  // of total_bytes; the last parts may be shorter. Either every rank gives one part to all ranks (a
  // gather), or it gives part p to rank p (`scatters`).
  struct Operation {
    std::size_t channel = kGathers;
    ShmHeader header;
    const std::byte* source = nullptr;  // the bytes that this rank gives
    bool scatters = false;
    std::size_t part_bytes = 0;
    std::size_t total_bytes = 0;
    // Distances from a rank's part to the next rank's: where parts are scattered from, and where
    // they are gathered.
    std::size_t from_stride = 0;
    std::size_t into_stride = 0;
    std::byte* into = nullptr;                // of copies: the address of the first part
    const ReduceArguments* reduce = nullptr;  // not null: it adds instead of copying
    float* accumulator = nullptr;             // of this rank's part
    std::int64_t first_element = 0;           // of this rank's part, for bad elements of norms
    Name name = "collective";
    GradientNorm norm;
    // Set while the operation runs:
    std::uint64_t first_step = 0;
    std::size_t steps = 1;
    std::size_t step_bytes = 0;  // of each part

    [[nodiscard]] std::size_t part_begin(std::uint32_t rank) const noexcept;
    [[nodiscard]] std::size_t part_length(std::uint32_t rank) const noexcept;
    /// Returns the size of the memory in which the parts given by `rank` lie.
    [[nodiscard]] std::size_t given_bytes(std::uint32_t rank, std::uint32_t world) const noexcept;
  };

  ShmBackend(EventLoop& loop, CpuPool& pool, std::unique_ptr<ShmArena> arena, ShmControl& control,
             std::vector<ShmPeer> peers, const Options& options);

  Task<> carry_out(Operation* op);
  Task<> begin(Operation* op);
  Task<> stage(const Operation* op, std::size_t step);
  void stage_now(const Operation& op, std::size_t step) const;
  Task<> copy(const Operation* op, std::size_t step);
  void copy_chunk(const Operation& op, std::size_t step, std::size_t chunk,
                  std::size_t chunks_per_rank) const;
  Task<> reduce(Operation* op, std::size_t step);
  void reduce_chunk(const Operation& op, std::size_t step, std::size_t chunk,
                    GradientNorm& norm) const;
  Task<GradientNorm> reduce_parts(ReduceArguments arguments, std::size_t from_stride);
  Task<GradientNorm> merge(GradientNorm norm, ShmHeader header);
  Task<> exchange_small(std::size_t channel, ExchangeArguments arguments, ShmHeader header);
  /// Exchanges at most kExchangeBytes of every rank, and calls take(rank, payload) for each rank.
  template <class Take>
  Task<> exchange_payload(std::size_t channel, std::span<const std::byte> mine, ShmHeader header,
                          Take take);
  /// Throws PeerLost if a peer's operand does not lie in its arena.
  void check_operands(const Operation& op);
  [[nodiscard]] const std::byte* part_of(const Operation& op, std::uint32_t from, std::size_t step,
                                         std::size_t at) const;
  [[nodiscard]] std::byte* stage_of(std::size_t channel, std::size_t step) const noexcept;

  CpuPool& pool_;
  std::unique_ptr<ShmArena> arena_;
  ShmSync sync_;
  std::byte* stage_;
  std::uint64_t numbers_[2] = {};  // of operations asked for, by channel
  std::uint64_t steps_[2] = {};    // done, by channel
  // Kept, so that nothing is allocated:
  std::vector<GradientNorm> norms_;   // of the chunks of a reduction
  std::vector<NormLimbs> all_norms_;  // of the ranks
};

}  // namespace tandem
