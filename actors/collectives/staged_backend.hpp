// actors/collectives/staged_backend.hpp — collectives on an accelerator's memory, over a back end
// for host memory.
//
// Slots and whole blocks lie on the device; shards, accumulators and optimizer state on the host.
// So a gather ends with copies to the device, and a reduction begins with copies to the host. Both
// are cut into pieces, which go through the two halves of a transfer buffer (`stage`) in memory of
// the inner back end, where its peers read them in place. While piece i is gathered (reduced),
// piece i - 1 is copied to the device (piece i + 1 to the host). A shard that is the whole block is
// copied straight to it, and a gradient to which nothing is added straight into its accumulator.
// Cutting changes no bit: the additions of an element keep their order, and norms merge exactly.
// With one rank, shard and accumulator may be device memory, too. Then only the norm crosses the
// link, and the device copies or adds: a GPU runs the kernels of use_kernels(); a simulated device,
// whose memory is the host's, runs the host's function. If the inner back end uses the host's
// shared memory, several ranks can share one accelerator.
//
// The place of an operand decides; the back end need not have allocated it. An operation without
// device memory goes to the inner back end unchanged. The copy streams wait on the device for the
// compute stream's work on a block (begin_behind).
// Buffers: operands are lent until the task ends. After a failure, too, the task first waits for
// copies under way. After the start, operations allocate nothing, except in the device's own
// queues.
// Failure: a DeviceError ends the operation and aborts the peers; an error of the inner back end is
// passed on.
// Thread rule: the loop's thread.
// Cancel rule: that of the inner back end; a wait for a copy lasts until the copy has ended.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/collectives/block_fences.hpp"
#include "actors/collectives/collective_backend.hpp"
#include "actors/gpu/sum_kernels.hpp"
#include "runtime/device/device.hpp"

namespace tandem {

class StagedBackend final : public CollectiveBackend {
 public:
  static constexpr std::size_t kStages = 8;  // two sequences, two directions, two halves
  static constexpr std::size_t kUsualStageBytes = std::size_t{4} << 20;

  struct Options {
    std::size_t stage_bytes = kUsualStageBytes;  // of each half; at least 4096 for each rank
  };

  /// `device` outlives the back end. The transfer buffers are allocated from `inner`;
  /// Error(kRefused) if there is no room.
  StagedBackend(Device& device, std::unique_ptr<CollectiveBackend> inner, Options options);
  StagedBackend(Device& device, std::unique_ptr<CollectiveBackend> inner)
      : StagedBackend(device, std::move(inner), Options()) {}
  /// No operation may be under way.
  ~StagedBackend() override;

  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_->world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_->rank(); }
  [[nodiscard]] Device& device() noexcept { return device_; }
  /// Sets the kernels that add on a GPU; they outlive the back end. Call it before the first
  /// operation.
  void use_kernels(const SumKernels& kernels);

  /// Allocates host memory of the inner back end and pins it for the device. If the system refuses
  /// to pin it, a line reports that once.
  std::byte* allocate(std::size_t bytes) override;
  /// Returns the bytes of the transfer buffers in host memory.
  [[nodiscard]] std::size_t staging_bytes() const noexcept { return kStages * stage_bytes_; }

  /// If the block is device memory, the gathered bytes are copied there, and the shard may lie on
  /// either side. If the block is host memory, the shard must be host memory, too.
  Task<> all_gather(GatherArguments arguments) override;
  /// The accumulator is host memory; on one rank it may be device memory, like the block.
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  /// Both operands lie on the same side.
  Task<> exchange(ExchangeArguments arguments) override;
  /// Both operands lie on the same side. If another library owns the device memory, set
  /// in_use_until.
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
  // Each sequence has its own streams, so that the two do not wait for each other.
  struct CopyStreams {
    DeviceStream to_host;
    DeviceStream to_device;
    std::array<std::byte*, 2> from_device;  // halves, by piece % 2
    std::array<std::byte*, 2> for_device;
  };

  // The device's side of one operation: several parts in a row, each cut into the same pieces.
  struct Transfer {
    CopyStreams* copy_streams = nullptr;
    std::size_t part_bytes = 0;
    const std::byte* source = nullptr;  // null: nothing comes from the device
    std::size_t source_parts = 1;
    std::byte* landing = nullptr;  // target of the source's only part; null: the halves
    std::byte* target = nullptr;   // null: nothing goes to the device
    std::size_t target_parts = 1;
    std::optional<std::size_t> part_in_place;  // part of the target that is there already
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
  struct AllToAllStep;
  struct ReduceStep;
  struct ExchangeStep;

  [[nodiscard]] CopyStreams make_copy_streams(Name to_host, Name to_device);
  static void name_copies(CopyStreams& streams, Name name);
  /// Sets the pieces' size, transfers all of them, and leaves no copy under way.
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
  std::vector<std::span<std::byte>> pinned_;
  BlockFences fences_;
  const SumKernels* kernels_ = nullptr;
  DeviceBuffer norm_;               // of the reduction under way
  std::byte* norm_here_ = nullptr;  // its copy in host memory
  CopyStreams gathers_;
  std::optional<DeviceEvent> gather_fence_;  // of the gather under way, or the last one
  CopyStreams reductions_;
};

}  // namespace tandem
