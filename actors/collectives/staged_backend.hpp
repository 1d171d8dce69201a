// actors/collectives/staged_backend.hpp — collectives on memory of an accelerator, over a back end
// that knows host memory alone.
//
// Slots and whole blocks lie on the device; shards, accumulators and optimizer state on the host.
// So a gather ends with copies to the device, and a reduction begins with copies to the host. Both
// go by pieces through two halves of a stage in memory of the inner back end (its peers read it in
// place): while piece i is gathered (reduced), piece i - 1 is on its way to the device (piece i + 1
// to the host). A shard that is the whole block goes straight to it, and a gradient to which
// nothing is added straight into its accumulator. Cutting changes no bit: the additions of an
// element keep their order, and norms merge exactly.
// On one rank shard and accumulator may be device memory, too: then nothing crosses the link but
// the norm, and the device copies or adds: a GPU by the kernels of use_kernels(), a simulated one,
// whose memory is the host's, by the host's own function.
// This is also how several ranks share one accelerator: the inner back end is the host's shared
// memory.
//
// Device memory is what allocate_on_device() of this back end gave, and what its options say;
// everything else is the host's. An operand lies on the same side on all ranks. An operation
// without device memory is the inner back end's, untouched. The streams of the copies wait on the
// device for the compute stream's work on a block (begin_behind).
// Buffers: operands are lent until the task ends, by whatever end: copies under way are waited for
// first. Nothing is allocated per operation after the start, but for what the device's own queues
// take.
// Failure: a DeviceError ends the operation with it and aborts the peers; an error of the inner
// back end passes through.
// Thread rule: the loop's thread.
// Cancel rule: as the inner back end; a wait for a copy lasts until the device is done.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/collectives/block_fences.hpp"
#include "actors/collectives/collective_backend.hpp"
#include "actors/gpu/sum_kernels.hpp"
#include "actors/memory/device_buffers.hpp"
#include "runtime/device/device.hpp"

namespace tandem {

class StagedBackend final : public CollectiveBackend {
 public:
  static constexpr std::size_t kStages = 8;  // two sequences, two directions, two halves
  static constexpr std::size_t kUsualStageBytes = std::size_t{4} << 20;

  struct Options {
    std::size_t stage_bytes = kUsualStageBytes;  // of each half; at least 4096 for each rank
    /// Device memory that is not of this back end; empty: there is none.
    std::function<bool(const void* memory)> is_on_device;
  };

  /// `device` outlives the back end. Takes its stage from `inner`: Error(kRefused) when there is no
  /// room for it.
  StagedBackend(Device& device, std::unique_ptr<CollectiveBackend> inner, Options options);
  StagedBackend(Device& device, std::unique_ptr<CollectiveBackend> inner)
      : StagedBackend(device, std::move(inner), Options()) {}
  /// No operation is under way.
  ~StagedBackend() override;

  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_->world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_->rank(); }
  [[nodiscard]] Device& device() noexcept { return device_; }
  /// Sets the kernels that add on a GPU; they outlive the back end. Before the first operation.
  void use_kernels(const SumKernels& kernels);

  /// Host memory of the inner back end, pinned for the device where the system lets us: else that
  /// is said once.
  std::byte* allocate(std::size_t bytes) override;
  /// Device memory for operands, living as long as the back end; its content is undefined. Throws
  /// DeviceOutOfMemory.
  std::byte* allocate_on_device(std::size_t bytes);
  [[nodiscard]] bool is_on_device(const void* memory) const noexcept;
  /// Host memory that the stage takes.
  [[nodiscard]] std::size_t staging_bytes() const noexcept { return kStages * stage_bytes_; }

  /// The block decides: on the device (the shard anywhere) it is staged; on the host the shard has
  /// to be there, too.
  Task<> all_gather(GatherArguments arguments) override;
  /// The accumulator is host memory; on one rank it may be the device's, as the block.
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  /// Both operands on one side.
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> broadcast(BroadcastArguments arguments) override;
  /// Both operands on one side, which in_use_until says where the memory is another library's.
  Task<> all_to_all(AllToAllArguments arguments) override;

  void begin_behind(const std::byte* block, const DeviceEvent& event) override {
    fences_.set(block, event);
  }
  [[nodiscard]] std::optional<DeviceEvent> gathers_queued() override;
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override {
    inner_->fail(failed_rank, why);
  }

 private:
  // One for each sequence, so that the two do not wait for each other.
  struct CopyStreams {
    DeviceStream to_host;
    DeviceStream to_device;
    std::array<std::byte*, 2> from_device;  // halves, by piece % 2
    std::array<std::byte*, 2> for_device;
  };

  // The device's side of one operation: a number of parts one after another, each cut into the same
  // pieces.
  struct Transfer {
    CopyStreams* copy_streams = nullptr;
    std::size_t part_bytes = 0;
    const std::byte* source = nullptr;  // null: nothing comes from the device
    std::size_t source_parts = 1;
    std::byte* landing = nullptr;  // of the source's only part; null: the halves of the stage
    std::byte* target = nullptr;   // null: nothing goes to the device
    std::size_t target_parts = 1;
    std::optional<std::size_t> part_in_place;  // of the target, that is there already
    std::size_t piece_bytes = 0;               // of each part

    [[nodiscard]] std::size_t pieces() const noexcept;
    [[nodiscard]] std::size_t length(std::size_t piece) const noexcept;
  };

  // The inner back end's view of a piece; parts lie `bytes` apart.
  struct Piece {
    std::size_t begin = 0;  // in each part
    std::size_t bytes = 0;
    std::byte* from_device = nullptr;
    std::byte* for_device = nullptr;
  };
  struct GatherStep;
  struct BroadcastStep;
  struct AllToAllStep;
  struct ReduceStep;
  struct ExchangeStep;

  [[nodiscard]] CopyStreams make_copy_streams(Name to_host, Name to_device);
  static void name_copies(CopyStreams& streams, Name name);
  /// Fills in the size of the pieces, carries all of them out, and leaves no copy under way.
  template <class Step>
  Task<> carry_out(Transfer transfer, Step* step);
  template <class Step>
  Task<> run_pieces(const Transfer* transfer, Step* step);
  [[nodiscard]] static std::byte* landing_of(const Transfer& transfer, std::size_t piece) noexcept;
  DeviceEvent copy_in(const Transfer& transfer, std::size_t piece);
  DeviceEvent copy_out(const Transfer& transfer, std::size_t piece);
  static Task<> until_idle(CopyStreams* copy_streams);
  Task<> straight(GatherArguments arguments);
  Task<GradientNorm> reduce_on_device(ReduceArguments arguments);
  void add_on_device(const ReduceArguments& arguments, GradientNorm* norm);
  void add_by_kernels(const ReduceArguments& arguments);
  Task<GradientNorm> reduce(ReduceArguments arguments, bool is_all_reduce);

  Device& device_;
  std::unique_ptr<CollectiveBackend> inner_;
  std::size_t stage_bytes_;
  std::function<bool(const void* memory)> is_elsewhere_on_device_;
  DeviceBuffers allocated_;
  std::vector<std::span<std::byte>> pinned_;
  BlockFences fences_;
  const SumKernels* kernels_ = nullptr;
  DeviceBuffer norm_;               // of the reduction under way
  std::byte* norm_here_ = nullptr;  // where it comes to the host
  CopyStreams gathers_;
  std::optional<DeviceEvent> gather_fence_;  // of the gather under way, or the last one
  CopyStreams reductions_;
};

}  // namespace tandem
