// actors/collectives/state_file_backend.hpp — collectives on shards and accumulators in a state
// file, over a back end for memory.
//
// A gather begins with a read of this rank's shard. A reduction ends with a write of its
// accumulator and, if it adds, begins with a read of it. Gathers are requested in the plan's order,
// as far ahead as there are slots, so reads also run ahead of compute.
//   one rank, whole blocks in host memory: the shard is read straight into the block, and a
//     gradient to which nothing is added is written straight from its slot
//   else: through a transfer buffer of a shard's size, one for each sequence, in memory of the
//     inner back end
// The inner back end computes, so the bits are the same as with memory.
//
// An operation without an operand in the file goes to the inner back end unchanged.
// Buffers: operands in the file are lent until the task ends; a slot that is read or written
// directly has room for a multiple of the file's alignment.
// Failure: an Error that names the unit, after which the peers are aborted; an error of the inner
// back end is passed on.
// Thread rule: the loop's thread.
// Cancel rule: that of the inner back end; reads and writes under way run to their end.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "actors/collectives/collective_backend.hpp"
#include "actors/memory/state_file.hpp"

namespace tandem {

class StateFileBackend final : public CollectiveBackend {
 public:
  struct Options {
    CollectiveBackend* inner = nullptr;  // outlives this one
    StateFile* file = nullptr;           // open before the first operation; outlives this one
    // Memory of `inner`, aligned for StateFile::Transfer: room for the largest shard, and for the
    // largest accumulator. Null: blocks are read and written directly.
    std::byte* shard_buffer = nullptr;
    std::byte* accumulator_buffer = nullptr;
    /// Returns the name of an array in the file: "weights of "block 3"".
    std::function<std::string(Placed<const std::byte> array)> name_of;
  };

  explicit StateFileBackend(Options options);

  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_.rank(); }
  std::byte* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }

  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

  void begin_behind(const std::byte* block, const DeviceEvent& event) override {
    inner_.begin_behind(block, event);
  }
  [[nodiscard]] std::optional<DeviceEvent> gathers_queued() override {
    return inner_.gathers_queued();
  }
  void abort(std::string_view why) noexcept override { inner_.abort(why); }
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override {
    inner_.fail(failed_rank, why);
  }

 private:
  using Reduce = Task<GradientNorm> (CollectiveBackend::*)(ReduceArguments);

  Task<GradientNorm> reduce(ReduceArguments arguments, Reduce operation);
  Task<> read(StateFile::Transfer transfer, Name what);
  Task<> write(StateFile::Transfer transfer, Name what);
  [[nodiscard]] Error failed(std::string_view done, Placed<const std::byte> array,
                             const FileError& error);

  Options options_;
  CollectiveBackend& inner_;
  StateFile& file_;
};

}  // namespace tandem
