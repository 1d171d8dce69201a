// tests/actors/collectives/contract/backend_world.hpp — a world for each collective back end: it
// makes some ranks in one process, runs a program on all of them at once, and takes them down.
//
// A program is a task of a rank; it may call the operations of both sequences. A world says where
// the operands of its back end may lie, how large its buffers are, and which promises of
// CollectiveBackend it does not make, with the reason.
//
//   for (const Backend& backend : all_backends()) {
//     const WorldRun run = backend.run(3, /*seed=*/0, [](ContractRank* rank) { return
//     program(rank); });
//   }
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/collectives/collective_backend.hpp"

namespace tandem::test {

/// Where an operand lies.
enum class Home : std::uint8_t {
  kOwn,        // host memory of the program's
  kAllocated,  // host memory of allocate()
  kMixed,      // kOwn on rank 1, kAllocated elsewhere
  kDevice,
  kFile,  // a state file
};
inline constexpr std::size_t kHomes = 5;
[[nodiscard]] const char* name_of(Home home);

/// The homes of the operand that an operation reads, and of the one that it writes.
struct Homes {
  Home from;
  Home into;
};

using Operand = Placed<std::byte>;

class ContractRank {
 public:
  /// `backend` outlives this object. A program's operands in one home have together at most
  /// `home_bytes`.
  ContractRank(CollectiveBackend& backend, std::size_t home_bytes)
      : backend_(backend), home_bytes_(home_bytes) {}
  virtual ~ContractRank() = default;
  ContractRank(const ContractRank&) = delete;
  ContractRank& operator=(const ContractRank&) = delete;

  [[nodiscard]] CollectiveBackend& backend() const noexcept { return backend_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return backend_.rank(); }
  [[nodiscard]] std::uint32_t world() const noexcept { return backend_.world(); }

  /// Returns memory for an operand and one byte more, all of it kUnwritten (but not in a file);
  /// valid until free_operands().
  [[nodiscard]] Operand operand(Home home, std::size_t bytes);
  void free_operands() noexcept { used_.fill(0); }
  static constexpr std::byte kUnwritten{0xA5};

  /// Writes an operand; reads it with the byte behind it. A file is written in blocks of 4096
  /// bytes, so that byte counts as kUnwritten there.
  virtual Task<> put(Operand operand, std::vector<std::byte> content) {
    std::ranges::copy(content, operand.memory());
    co_return;
  }
  virtual Task<std::vector<std::byte>> get(Operand operand, std::size_t bytes) {
    co_return std::vector<std::byte>(operand.memory(), operand.memory() + bytes + 1);
  }

  /// The rank's program is about to end, which the others do not expect.
  virtual void leave() {}

 protected:
  /// Returns `home_bytes` of memory that lives as long as the back end or this object.
  [[nodiscard]] virtual std::byte* allocate(Home home, std::size_t bytes);
  /// Operands' addresses are multiples of this.
  [[nodiscard]] virtual std::size_t alignment() const noexcept { return 64; }

 private:
  CollectiveBackend& backend_;
  std::size_t home_bytes_;
  std::array<std::byte*, kHomes> base_{};
  std::array<std::size_t, kHomes> used_{};
  std::vector<HostBuffer> own_;
};

using Program = std::function<Task<>(ContractRank*)>;

/// How a rank's program ended.
struct Ending {
  std::string text = {};  // of the error; empty: there was none
  int code = 0;
  std::optional<std::uint32_t> lost = {};  // the rank at fault
};
/// Runs a program to its end; never throws.
[[nodiscard]] Task<> run_to_its_end(ContractRank* rank, const Program* program, Ending* ending);

struct WorldRun {
  std::vector<Ending> ranks = {};
  std::string left_behind = {};  // what was not given back; empty: nothing
};

/// What CollectiveBackend promises beside the results of its operations.
enum class Promise : std::uint8_t {
  // Several ranks promise:
  kFailsTogether,       // a rank that aborts ends every rank's operations, which name it
  kNoticesLeaving,      // ... and so does one that leaves
  kComparesOperations,  // ranks at different operations of one size end with an error
  kSaysWhy,             // errors have an aborting rank's reason, and name the operation
  kAddsTrees,           // ReduceArguments::tree
  // A single rank promises:
  kKeepsTypes,  // an accumulator may have the type of the block
  // Any number of ranks promises:
  kMovesAnySize,  // operands of all-gathers and reductions have any number of bytes
};
[[nodiscard]] const char* sentence_of(Promise promise);

/// The promises that a back end does not make, each with its reason.
using NotPromised = std::map<Promise, std::string>;
/// Returns those that back ends for several hosts do not make.
[[nodiscard]] inline NotPromised not_over_nets() {
  return {{Promise::kSaysWhy, "between hosts only the number of the failed rank travels"},
          {Promise::kComparesOperations, "frames have no header: only their sizes are compared"}};
}

/// In which order values are added.
enum class SumOrder : std::uint8_t {
  kRankByRank,
  kPairByPair,      // the ranks 0 and 1, then 2 and 3 ...; the pairs' sums one after another
  kNcclsOfTheFake,  // from the last rank to the first, then rounded to the values' type
};

struct Backend {
  std::string name = {};  // as in a test's name
  std::vector<std::uint32_t> worlds = {};
  std::size_t buffer_bytes = 0;  // the longest piece of an operand that moves at a time
  std::size_t large_bytes = 0;   // more than several of these
  std::size_t large_tiles = 0;   // norm tiles of a shard that is reduced in several pieces
  std::uint64_t seeds = 1;       // executions that differ
  std::uint32_t first_name = 0;  // failures name rank r by first_name + r
  std::vector<Homes> gathers = {};
  std::vector<Homes> reductions = {};
  std::vector<Homes> swaps = {};
  std::vector<Homes> exchanges = {};
  SumOrder scattered_sums = SumOrder::kRankByRank;
  SumOrder all_sums = SumOrder::kRankByRank;
  NotPromised not_promised;
  std::function<std::string()> missing = [] { return std::string(); };  // why it cannot run here
  std::function<WorldRun(std::uint32_t ranks, std::uint64_t seed, const Program& program)> run = {};
};

[[nodiscard]] const std::vector<Backend>& all_backends();
/// The back ends of: one loop, threads that share memory, the simulator.
[[nodiscard]] std::vector<Backend> loop_backends();
[[nodiscard]] std::vector<Backend> thread_backends();
[[nodiscard]] std::vector<Backend> simulated_backends();

// ---- arguments: the only place that knows their fields ----
struct Reduction {
  DType type = DType::kF32;
  std::size_t elements = 0;  // of the accumulator
  AccumulateMode mode = AccumulateMode::kOverwrite;
  bool want_norm = true;
  std::uint32_t tree = 1;
  DType accumulator_type = DType::kF32;
};
[[nodiscard]] inline GatherArguments gather_of(Operand shard, Operand block, std::size_t bytes,
                                               bool is_replicated = false) {
  return {.shard = shard, .block = block, .shard_bytes = bytes, .is_replicated = is_replicated};
}
[[nodiscard]] inline ReduceArguments reduction_of(Operand block, Operand accumulator,
                                                  const Reduction& what) {
  return {.block = block,
          .block_type = what.type,
          .accumulator = accumulator,
          .accumulator_type = what.accumulator_type,
          .shard_elements = what.elements,
          .mode = what.mode,
          .want_norm = what.want_norm,
          .tree = what.tree};
}
[[nodiscard]] inline AllToAllArguments swap_of(Operand from, Operand into, std::size_t bytes) {
  return {.from = from, .into = into, .bytes = bytes};
}
[[nodiscard]] inline ExchangeArguments exchange_of(Placed<const std::byte> mine, Operand all,
                                                   std::size_t bytes) {
  return {.mine = mine, .all = all, .bytes = bytes};
}

}  // namespace tandem::test
