// actors/collectives/nccl/nccl_backend.hpp — collectives between GPUs, one per rank, through NCCL.
//
// It has two communicators on two streams of high priority, one for gathers and one for reductions;
// a group without reductions (Options::reduces) has only the first. Both are non-blocking: a call
// may return "in progress", and the loop then polls. An operation's event is recorded only after
// NCCL has returned success, because before that the kernel need not be in the stream. Launches of
// both communicators happen in one order on all ranks: rank 0's (nccl_peers.hpp).
// Reductions: each rank receives all ranks' values of its slice and adds them in rank order, with
// the bits of `self` and `shm`. That takes memory for world - 1 slices, which is used piece by
// piece (workspace_bytes). With own_sums, NCCL adds the values in its own order and in the block's
// type, and its result is added to the accumulator. That takes memory for a slice, or for the block
// in an all-reduce.
// Operands: device memory, or memory of allocate() (pinned, which the device can access); those of
// exchange() lie anywhere in host memory. Buffers belong to the back end until the task ends.
// Failure: an error of NCCL, a wait past its deadline, a peer that aborted or whose process ended,
// or ranks at different operations break the back end permanently; the first failure counts. Every
// operation then ends with PeerLost (DeviceError if the device failed) after the communicators are
// aborted, so that nothing writes into its buffers any more. See nccl_watchdog.hpp for an abort
// that hangs. PeerLost::rank() is kUnknownRank if the failed rank is not known.
// Thread rule: the loop's thread.
//
//   auto backend = loop.run(&NcclBackend::connect, &loop, &device, options);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/collectives/block_fences.hpp"
#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/nccl/nccl_api.hpp"
#include "actors/collectives/nccl/nccl_peers.hpp"
#include "actors/collectives/nccl/nccl_watchdog.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "actors/gpu/sum_kernels.hpp"
#include "runtime/device/cuda_device.hpp"
#include "runtime/device/pinned_slab.hpp"
#include "runtime/device/ticking_poller.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

class NcclBackend final : public CollectiveBackend, private TickingPoller {
 public:
  struct Options {
    std::uint32_t rank = 0;
    std::uint32_t world = 1;
    const NcclApi* api = nullptr;  // null at world 1 only
    const SumKernels* kernels = nullptr;
    bool own_sums = false;             // true: NCCL computes the sums
    bool reduces = true;               // false: exchange() and reductions are not called, and
                                       // their communicator takes no memory of the device
    std::shared_ptr<NcclPeers> peers;  // null at world 1
    std::vector<std::string> hosts;    // [rank] its host, for messages; empty: not named
    std::string name = "tandem";       // of its communicators
    /// Returns rank 0's `value` on every rank; blocks. Collective, with the same keys in the same
    /// order.
    std::function<std::string(std::string_view key, std::string value)> from_rank_0;
    // Device memory for the slices of other ranks.
    std::size_t workspace_bytes = std::size_t{64} << 20;
    Duration connect_timeout = std::chrono::seconds(300);
    Duration timeout = std::chrono::seconds(600);  // of an operation
    NcclWatchdog::Options watchdog;
  };

  /// Connects all ranks. Loop, device and the objects to which `options` points outlive the back
  /// end. Throws PeerLost, DeviceError.
  static Task<std::unique_ptr<NcclBackend>> connect(EventLoop* loop, CudaDevice* device,
                                                    Options options);
  /// No operation may be under way.
  ~NcclBackend() override;

  [[nodiscard]] std::uint32_t world() const noexcept override { return options_.world; }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return options_.rank; }

  /// Allocates pinned memory. Error(kRefused) also if it cannot be pinned, because the device could
  /// not access it.
  std::byte* allocate(std::size_t bytes) override;
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

  void begin_behind(const std::byte* block, const DeviceEvent& event) override {
    fences_.set(block, event);
  }
  void abort(std::string_view why) noexcept override;
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override;

 private:
  static constexpr std::size_t kGathers = 0;
  static constexpr std::size_t kReductions = 1;
  enum class Wait : unsigned char { kNothing, kTurn, kNccl, kRelease };

  struct CommStream {
    explicit CommStream(DeviceStream of) : stream(of) {}
    DeviceStream stream;
    std::string name;     // the communicator's; NCCL may read it at any time
    ShmHeader operation;  // under way
    TimePoint since;
    std::uint64_t operations = 0;
    bool busy = false;
    bool awaits_operands = false;  // the device still uses them: nothing is launched yet
    Wait wait = Wait::kNothing;
    std::uint64_t came = 0;  // order of arrival, in which turns are taken
    Event woken;
    NcclResult result = NcclResult::kSuccess;  // of the launch under way
    std::byte* payload = nullptr;              // pinned: own payload, then all ranks'
    DeviceBuffer device_payload;               // the same on the device
  };
  // The slices of one reduction. Rank p's slice is [p * slice, (p + 1) * slice) of `elements`; the
  // last slices may be shorter.
  struct Slices {
    const ReduceArguments* arguments;
    std::size_t slice;
    std::size_t elements;
    float* accumulator;  // of this rank's slice
    std::int64_t first_element;

    [[nodiscard]] std::size_t begin(std::uint32_t rank) const noexcept;
    [[nodiscard]] std::size_t length(std::uint32_t rank) const noexcept;
  };
  // Marks a communicator as busy while an operation is under way.
  class Busy {
   public:
    Busy(NcclBackend& backend, std::size_t comm, ShmHeader operation);
    ~Busy();
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    NcclBackend& backend_;
    std::size_t comm_;
  };

  NcclBackend(EventLoop& loop, CudaDevice& device, Options options);
  Task<> initialise(std::size_t comm, const char* what);

  // ---- launching and failing (nccl_launch.cpp) ----
  template <class Calls>
  Task<> launch(CommStream* comm, Calls calls);
  template <class Calls>
  NcclResult call(CommStream& comm, const Calls& calls);
  Task<> take_turn(CommStream* comm);
  [[nodiscard]] bool grant_turn(CommStream& comm);
  void end_turn(CommStream& comm) noexcept;
  Task<> settle(CommStream* comm);
  Task<> finish(CommStream* comm);
  Task<> reach(CommStream* comm, DeviceEvent point);
  Task<> wait_for(CommStream* comm, Wait what);
  bool progress() noexcept override;
  bool end_wait(CommStream& comm) noexcept;
  bool end_waits() noexcept;
  [[nodiscard]] std::size_t index_of(const CommStream& comm) const noexcept {
    return static_cast<std::size_t>(&comm - comms_.data());
  }

  void notice_failures() noexcept;
  [[nodiscard]] NcclLoss loss_by(const NcclWatchdog::Failure& failure) const;
  /// Returns the rank that the operation awaits; nullopt if it waits for NCCL.
  [[nodiscard]] std::optional<std::uint32_t> awaited_by(const CommStream& comm) const noexcept;
  [[nodiscard]] Awaited awaited(Duration at_least) const noexcept;
  Task<> throw_if_broken(CommStream* comm);
  [[nodiscard]] std::string describe_comm(const CommStream& comm) const;

  // ---- the parts of a reduction ----
  Task<> add_slices(CommStream* comm, const Slices* slices);
  Task<> add_own_sum(CommStream* comm, const ReduceArguments* arguments, bool is_all);
  Task<> transfer_piece(CommStream* comm, const Slices* slices, std::size_t at, std::size_t count);
  void add_piece(CommStream& comm, const Slices& slices, std::size_t at, std::size_t count);
  void add(CommStream& comm, const RankOrderSum& sum);
  void clear_norm(CommStream& comm, bool wanted);
  void fetch_norms(CommStream& comm, bool wanted, std::size_t count);
  [[nodiscard]] GradientNorm norm_of(const CommStream& comm, std::size_t count) const;
  [[nodiscard]] std::uint64_t* norm_limbs(const CommStream& comm) const;
  void have_workspace(std::size_t bytes);

  EventLoop& loop_;
  CudaDevice& device_;
  Options options_;
  const NcclApi& api_;
  PinnedSlab slab_;
  NcclWatchdog watchdog_;
  std::array<CommStream, 2> comms_;
  BlockFences fences_;
  DeviceBuffer workspace_;
  std::uint64_t next_turn_ = 0;
  std::uint64_t arrivals_ = 0;
  bool launching_ = false;
  std::optional<NcclLoss> broken_;
  std::exception_ptr device_failed_;  // not null: the reason is the device's error
  StopSource released_;
};

template <class Calls>
NcclResult NcclBackend::call(CommStream& comm, const Calls& calls) {
  void* const communicator = watchdog_.open_calls(index_of(comm));
  NcclResult result = NcclResult::kInvalidUsage;
  if (communicator != nullptr) {
    device_.use();
    result = calls(api_, communicator, device_.native(comm.stream));
  }
  watchdog_.close_calls();
  return result;
}

/// Runs calls(api, communicator, stream), which makes the NCCL calls of one launch, in this rank's
/// next turn.
template <class Calls>
Task<> NcclBackend::launch(CommStream* comm, Calls calls) {
  co_await take_turn(comm);
  comm->result = call(*comm, calls);
  co_await settle(comm);
  end_turn(*comm);
}

}  // namespace tandem
