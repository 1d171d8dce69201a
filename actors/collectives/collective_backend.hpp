// actors/collectives/collective_backend.hpp — the interface through which Collectives issues
// operations, and its implementation for one rank, `self`. Other files implement it for processes
// of one host, for several hosts, and for NCCL.
//
// Operations form two sequences, which are independent of each other: gathers (all_gather,
// all_to_all) and reductions (reduce_scatter_add, all_reduce_add, exchange).
// Contract: Collectives calls from the loop thread, and never has more than one operation of each
// sequence under way. A returned task ends when the result is in place; until then the arguments'
// memory is lent to the back end. Every rank calls the same operations with the same sizes in the
// same order within a sequence. Long work runs off the loop. After an exception the communicator is
// unusable.
// Operands say where they lie (Placed), on the same side on all ranks. A back end for host memory
// takes no others; each decorator for another place (staged_backend.hpp, state_file_backend.hpp)
// moves what lies there, and passes on what does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string_view>
#include <vector>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/reduce.hpp"
#include "actors/memory/arena.hpp"
#include "actors/memory/placed.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/device/device.hpp"
#include "runtime/task.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

/// Copies every rank's shard, in rank order, into the whole block of each rank.
struct GatherArguments {
  // This rank's slice, read until the task ends. It may lie in `block` at its final position; then
  // it is not copied.
  Placed<const std::byte> shard;
  Placed<std::byte> block;  // world * shard_bytes, written until the task ends
  std::size_t shard_bytes = 0;
  // The shard is the whole block, with the same bytes on every rank: the gather is a local copy,
  // and the block has shard_bytes. The value must be the same on every rank.
  bool is_replicated = false;
  Name name = "all-gather";  // in traces
};

/// Sets `accumulator` to the sum over ranks, or adds the ranks' values to it, in rank order:
/// ((accumulator + rank 0's) + rank 1's) + ... reduce_scatter_add() sums this rank's slice of every
/// rank's block. all_reduce_add() sums the whole block; the accumulators of all ranks have the same
/// bits before and after. With `tree` above 1, the values of `tree` neighbouring ranks are first
/// added to each other, as a balanced tree in fp32: (accumulator + (rank 0's + rank 1's)) + (rank
/// 2's + rank 3's).
struct ReduceArguments {
  // reduce-scatter: world * shard_elements; all-reduce: shard_elements; read until the task ends
  Placed<const std::byte> block;
  DType block_type = DType::kF32;
  Placed<void> accumulator;  // shard_elements, written until the task ends
  // A 16-bit type is allowed only if nothing is added: at world 1, in the block's type, with
  // kOverwrite. The accumulator then gets the gradient's own values, at half the memory traffic of
  // fp32.
  DType accumulator_type = DType::kF32;
  // At world 1, in one type and with kOverwrite, block and accumulator may be the same memory: then
  // nothing is moved, and only the norm is computed.
  std::size_t shard_elements = 0;  // a multiple of kNormTile
  AccumulateMode mode = AccumulateMode::kOverwrite;
  // Also returns the norm of the result; bad elements are indices into the shard.
  bool want_norm = false;
  // Number of ranks in a tree: a power of two that divides the number of ranks of a host (or, with
  // one rank on each host, the number of hosts). Otherwise, and on devices, ranks are added one
  // after another.
  std::uint32_t tree = 1;
  Name name = "reduction";
};

/// Carries out the reduction of a single rank for the elements [begin, end) of the shard. `begin`
/// is a multiple of kNormTile. The operands are memory that the host can access. Any thread;
/// disjoint ranges may run at the same time, each with its own norm.
void reduce_alone(const ReduceArguments& arguments, std::size_t begin, std::size_t end,
                  GradientNorm& norm);

/// Copies `bytes` bytes of every rank to every rank, in rank order.
struct ExchangeArguments {
  Placed<const std::byte> mine;
  Placed<std::byte> all;  // world * bytes
  std::size_t bytes = 0;  // at most kExchangeBytes; 0: only waits for all ranks
};
inline constexpr std::size_t kExchangeBytes = 4096;

/// Sends piece p of `from` to rank p; piece p of `into` comes from rank p.
struct AllToAllArguments {
  Placed<const std::byte> from;  // world * bytes
  Placed<std::byte> into;        // world * bytes, not overlapping
  std::size_t bytes = 0;         // of a piece
  // Not null: both are device memory, and in use until this event.
  const DeviceEvent* in_use_until = nullptr;
};

class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;

  [[nodiscard]] virtual std::uint32_t world() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;

  /// Allocates host memory that operations access without an extra copy: zeroed, page aligned,
  /// living as long as the back end. Call it before the first operation. Error(kRefused) if there
  /// is no room.
  virtual std::byte* allocate(std::size_t bytes) = 0;

  virtual Task<> all_gather(GatherArguments arguments) = 0;
  virtual Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) = 0;
  /// Returns the norm of the whole result, the same bits on all ranks.
  virtual Task<GradientNorm> all_reduce_add(ReduceArguments arguments) = 0;
  virtual Task<> exchange(ExchangeArguments arguments) = 0;
  virtual Task<> all_to_all(AllToAllArguments arguments) = 0;

  /// Marks `block`, an operand in device memory, as in use until `event`: later operations on it
  /// wait on the device. Back ends for host memory have no such operands. Loop thread.
  virtual void begin_behind(const std::byte* block, const DeviceEvent& event) {
    (void)block;
    (void)event;
  }

  /// Returns an event that follows all copies to the device that gathers have queued. A copy that
  /// waits for it lets weights use the link first. Returns nullopt if no such copies are queued.
  /// Loop thread.
  [[nodiscard]] virtual std::optional<DeviceEvent> gathers_queued() { return std::nullopt; }

  /// Aborts this rank: every operation, here and at its peers, fails at once and names this rank
  /// and `why`. Loop thread.
  virtual void abort(std::string_view why) noexcept {}
  /// As abort(), but the failure names `failed_rank`. Numbers from world() on stand for ranks
  /// outside of this communicator. The first cause counts.
  virtual void fail(std::uint32_t failed_rank, std::string_view why) noexcept {}
  /// Reports that `cause` has ended this rank's work: calls fail() if it is a PeerLost, else
  /// abort().
  void give_up(const std::exception& cause) noexcept;
};

/// The back end of a single rank (world 1). Gathers are copies and reductions are accumulations;
/// both run on `pool` in chunks, so that all of its threads help.
class SelfBackend final : public CollectiveBackend {
 public:
  explicit SelfBackend(CpuPool& pool) : pool_(&pool) {}

  [[nodiscard]] std::uint32_t world() const noexcept override { return 1; }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return 0; }

  std::byte* allocate(std::size_t bytes) override;
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

 private:
  Task<> copy(const std::byte* from, std::byte* into, std::size_t bytes, Name name);

  CpuPool* pool_;
  std::vector<HostBuffer> allocated_;
  // The norms of the chunks of the reduction under way. They are kept, so that operations do not
  // allocate.
  std::vector<GradientNorm> parts_;
};

}  // namespace tandem
