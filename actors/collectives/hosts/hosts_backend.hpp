// actors/collectives/hosts/hosts_backend.hpp — collectives of ranks on several hosts, in two
// levels: memory inside of a host, a Net between hosts.
//
// All hosts have the same number of ranks, and a host's ranks are neighbours in the order of all
// ranks. A rank exchanges with the ranks that have its local rank on the other hosts, so a host's
// traffic is spread evenly over its ranks; inside of the host they share the received data.
//   all-gather      a shard is sent to each other host once; the host's ranks share it
//   reductions      a sum goes from host to host, and each host adds its ranks' values in rank
//                   order: the bits are those of one host with all the ranks
//                   (hosts_reductions.cpp). Hosts with one rank each send straight to the owners
//                   (hosts_direct.cpp)
//   all-to-all      pieces for one rank are collected on the host and sent as one frame
//   exchange        there are log2(hosts) rounds, each with one frame to one host; then the ranks
//                   of the host share the bytes
// All are pipelines of stages: while one piece is on its way, the host works on another one.
// Failure: a PeerLost on either level is reported on the other one, so that all ranks name the same
// rank. If this rank is stopped in the middle of an operation, it counts as the failed rank. Every
// wait for another host has a deadline, which names the rank at fault (net_waits.hpp). The back end
// uses the net's channels first_channel to first_channel + 3; no other traffic may use them.
// Thread rule: the loop's thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/hosts/host_level.hpp"
#include "actors/collectives/hosts/net_waits.hpp"
#include "actors/collectives/hosts/progress.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/net.hpp"
#include "runtime/scope.hpp"
#include "runtime/thread.hpp"

namespace tandem {

class HostsBackend : public CollectiveBackend {
 public:
  /// The order of a reduce-scatter's additions: kExact, rank by rank; kFast, the ranks of a host
  /// first and then the hosts, for less traffic between two hosts, with bits that depend on the
  /// number of hosts.
  enum class Order : std::uint8_t { kExact, kFast };
  struct Options {
    std::uint32_t first_channel = 0;
    Order order = Order::kExact;
    std::size_t piece_bytes = std::size_t{1} << 20;  // a multiple of kNormTile fp32 numbers
    std::size_t frame_bytes = piece_bytes;           // the longest frame; the same on all ranks
    NetWaits::Options waits{};                       // for other hosts
  };
  /// `net` connects all ranks, `local` those of this host; `pool` runs long copies and sums. All of
  /// them outlive this object.
  HostsBackend(HostLevel& local, Net& net, CpuPool& pool, Options options);

  [[nodiscard]] std::uint32_t world() const noexcept override { return net_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return net_.rank(); }

  std::byte* allocate(std::size_t bytes) override { return local_.allocate(bytes); }
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

  void abort(std::string_view why) noexcept override { fail(rank(), why); }
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override;

 private:
  enum Channel : std::uint32_t { kMoves, kForward, kStart, kBack };
  static constexpr std::size_t kSlots = 4;  // the most pieces that wait or are worked on
  // The loop copies or adds up to this size itself, in some ten microseconds; a hand-over to the
  // pool and back takes twice as long.
  static constexpr std::size_t kInlineBytes = std::size_t{128} << 10;

  // Operations under way, with the data that their stages share.
  struct Gathering;
  struct Collecting;
  struct Reduction;
  struct DirectReduction;
  // A piece of a reduction, in elements.
  struct Piece {
    std::size_t block = 0;     // position in the block of the values for local rank 0
    std::size_t stride = 0;    // distance to the values for the next local rank
    std::size_t elements = 0;  // for each local rank
    std::size_t at = 0;        // position of its sum in the owner's accumulator
    bool is_here = false;      // this rank is the owner
    std::uint32_t owner = 0;   // the owner's host; the owner has this local rank
  };
  template <class Op>
  using Stage = Task<> (HostsBackend::*)(Op* op);

  [[nodiscard]] std::uint32_t local_world() const noexcept { return local_.world(); }
  [[nodiscard]] std::uint32_t local_rank() const noexcept { return local_.rank(); }
  [[nodiscard]] std::uint32_t hosts() const noexcept { return world() / local_world(); }
  [[nodiscard]] std::uint32_t host() const noexcept { return rank() / local_world(); }
  /// Returns the host that is `steps` after this one in a circle; hosts() - n stands for n before
  /// it.
  [[nodiscard]] std::uint32_t host_after(std::uint32_t steps) const noexcept {
    return (host() + steps) % hosts();
  }

  /// Returns whether the loop copies or adds this size itself, because a hand-over to the pool
  /// would take longer or the pool would only take the loop's CPU.
  [[nodiscard]] static bool stays_on_loop(std::size_t bytes) noexcept {
    return bytes <= kInlineBytes || thread::spare_cpus() <= 0;
  }
  /// Send to, and receive from, the rank with this local rank on another host, frame by frame.
  Task<> send(std::uint32_t to, Channel channel, std::span<const std::byte> bytes);
  Task<> receive(std::uint32_t from, Channel channel, std::span<std::byte> into);

  /// Throws the failure with the host of the failed rank.
  [[noreturn]] void throw_with_host(const PeerLost& lost) const;
  template <class Op, std::size_t kStages>
  Task<> run(Op* op, std::array<Stage<Op>, kStages> stages);
  template <class Op>
  Task<> guarded(Stage<Op> stage, Op* op, std::size_t* ended);

  Task<> send_shards(Gathering* op);
  Task<> receive_shards(Gathering* op);
  Task<> share_shards(Gathering* op);
  Task<> keep_shard(Gathering* op);
  Task<> collect(Collecting* op);
  Task<> send_collected(Collecting* op);
  Task<> receive_collected(Collecting* op);
  Task<> trade_rounds(ExchangeArguments* arguments);

  Task<GradientNorm> reduce(ReduceArguments arguments, bool is_all);
  void cut(const ReduceArguments& arguments, bool is_all);
  Task<> begin_sums(Reduction* op);
  Task<> receive_sums(Reduction* op);
  Task<> add_here(Reduction* op);
  Task<> send_sums(Reduction* op);
  Task<> finish_sums(Reduction* op);
  Task<> add_norm_of(Reduction* op, const Piece* piece);
  Task<> add_host(Reduction* op);
  Task<> send_host_sums(Reduction* op);
  Task<> add_hosts(Reduction* op);
  Task<GradientNorm> merge(GradientNorm norm);
  Task<GradientNorm> reduce_directly(ReduceArguments arguments, bool is_all);
  Task<> send_values(DirectReduction* op);
  Task<> receive_values(DirectReduction* op);
  Task<> add_values(DirectReduction* op);
  Task<> send_own_sums(DirectReduction* op);
  Task<> receive_other_sums(DirectReduction* op);
  void add_piece(DirectReduction& op, std::size_t piece, std::size_t begin);
  [[nodiscard]] std::byte* place_of(const DirectReduction& op, std::size_t piece,
                                    std::uint32_t from) noexcept;
  [[nodiscard]] std::span<std::byte> place_of(const Reduction& op, std::size_t piece) noexcept;
  [[nodiscard]] std::span<std::byte> slot_of(std::size_t piece) noexcept;

  HostLevel& local_;
  Net& net_;
  CpuPool& pool_;
  Options options_;
  bool is_broken_ = false;
  std::string overdue_;  // why a wait for another host was given up here
  NetWaits waits_;
  // Kept, so that operations do not allocate; of the operation under way in each sequence:
  std::vector<std::byte> collected_;  // frames of an all-to-all
  std::vector<float> sums_;           // kSlots pieces of a reduction, and one that arrives; or
                                      // the frames of a direct reduction
  std::vector<Piece> pieces_;
  std::vector<std::byte> rounds_;  // of an exchange: from this local rank of every host
  std::vector<std::byte> shared_;  // of an exchange: from all ranks
  std::vector<NormLimbs> norms_;
};

/// Runs all stages of an operation at once, to their ends.
template <class Op, std::size_t kStages>
Task<> HostsBackend::run(Op* op, std::array<Stage<Op>, kStages> stages) {
  std::size_t ended = 0;
  co_await with_scope(
      // with_scope() keeps the scope until this has ended.
      // NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters)
      [](Scope& scope, HostsBackend* self, Op* what, std::array<Stage<Op>, kStages> each,
         std::size_t* count) -> Task<> {
        for (const Stage<Op> stage : each) {
          scope.spawn("stage", &HostsBackend::guarded<Op>, self, stage, what, count);
        }
        co_return;
      },
      this, op, stages, &ended);
  if (ended < kStages) {
    throw Stopped();
  }
}

// The other stages may wait for ranks of this host, and a stop does not end such waits. So a
// failing stage first reports its failure on both levels. An error that a stage gets because this
// rank was stopped counts as the stop.
template <class Op>
Task<> HostsBackend::guarded(Stage<Op> stage, Op* op, std::size_t* ended) {
  const StopToken stop = co_await current_stop_token();
  try {
    co_await (this->*stage)(op);
    ++*ended;
  } catch (const PeerLost& lost) {
    fail(lost.rank(), lost.what());
    if (lost.rank() == rank()) {
      stop.throw_if_stopped();
    }
    throw_with_host(lost);
  } catch (const std::exception& error) {
    fail(rank(), error.what());
    throw;
  }
}

}  // namespace tandem
