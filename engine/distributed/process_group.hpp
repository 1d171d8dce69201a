// engine/distributed/process_group.hpp — the ranks of a run find each other, agree on what must be
// the same, and get a back end for their collectives.
//
// Rank 0 hosts a small key-value store; the others come to it. It listens on the loopback unless
// MASTER_ADDR names another address, until the ranks have met, and a run of one process listens
// nowhere. A process that connects has to prove that it knows this start's secret (run_secret.hpp).
// Blocking calls before training starts; any thread, one at a time.
//
//   auto ranks = ProcessGroup::from_environment();
//   ranks->require_same("config", resolved_config);
//   auto backend = ranks->make_backend(loop, pool);
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/distributed/backend_choice.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/distributed/environment.hpp"
#include "engine/distributed/reduction.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

class CudaDevice;
class GroupWaits;
class NcclPeers;
class RunWaits;

class ProcessGroup final : public Communicator {
 public:
  /// Joins the ranks that the launcher's variables speak of, within TANDEM_RENDEZVOUS_TIMEOUT_S
  /// (300 s). Throws a user error for variables that cannot be, Error(kPeer) when a rank does not
  /// come, is there twice, or differs in world size. The ranks compare their `order` when they make
  /// a back end, which throws a user error where that one cannot add so.
  [[nodiscard]] static std::unique_ptr<ProcessGroup> from_environment(
      ReductionOrder order = ReductionOrder::kExact);
  [[nodiscard]] static std::unique_ptr<ProcessGroup> join(
      const Environment& environment, std::chrono::milliseconds timeout,
      ReductionOrder order = ReductionOrder::kExact);
  ~ProcessGroup() override;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const noexcept override { return environment_.rank; }
  [[nodiscard]] int world_size() const noexcept override { return environment_.world; }
  [[nodiscard]] int local_rank() const noexcept override { return environment_.local_rank; }
  [[nodiscard]] int local_world_size() const noexcept { return environment_.local_world; }
  /// By the affinity masks, which the ranks of a host compare when they meet: what launchers bind,
  /// and whether they do, is the site's choice.
  [[nodiscard]] int cores_shared_by() const noexcept override { return cores_shared_by_; }
  [[nodiscard]] int place_on_cores() const noexcept override { return place_on_cores_; }

  /// The back end of this rank: `self` at world 1, else shared memory, and a net where the ranks
  /// are on several hosts. Once. All ranks call it; loop and pool outlive it. Throws a user error
  /// when the hosts have different numbers of ranks, Error(kPeer) when a rank is not reached.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop,
                                                                CpuPool& pool) override;
  /// A back end of ranks of one host, or of as many on each of several. All ranks of the run call
  /// it, each for its group.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_group_backend(
      EventLoop& loop, CpuPool& pool, const RankGroup& group) override;
  /// The same for ranks whose operands lie on GPUs: `uuid` is that of this rank's (gpu_probe.hpp).
  /// NCCL where each of several ranks has a GPU of its own, else through host memory
  /// (backend_choice.hpp). Runs the loop, which is idle; blocks until all ranks are connected.
  /// Throws a user error when their places do not fit together, Error(kRefused) when the build or
  /// the machine has no NCCL.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                                    CudaDevice& gpu,
                                                                    std::string_view uuid) override;

  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_gpu_group_backend(
      EventLoop& loop, CudaDevice& gpu, const RankGroup& group) override;

  /// By what ranks with a GPU each agree beside NCCL; make_gpu_backend() connects them itself.
  /// Their last owner lets go while the loop does not run.
  [[nodiscard]] std::shared_ptr<NcclPeers> connect_nccl_peers(EventLoop& loop) {
    return connect_nccl_peers(loop, all_ranks());
  }
  /// The same of a group, as make_gpu_group_backend() does.
  [[nodiscard]] std::shared_ptr<NcclPeers> connect_nccl_peers(EventLoop& loop,
                                                              const RankGroup& group) {
    return connect_nccl_peers(loop, members(group));
  }

  /// Throws Error(kPeer) on every rank, with both values, when `value` differs between ranks. All
  /// ranks call it, with the same `what`.
  void require_same(std::string_view what, std::string_view value) override;
  [[nodiscard]] std::vector<std::string> of_all_ranks(std::string value) override;
  [[nodiscard]] std::vector<std::string> hosts() const override;

 private:
  class Store;
  ProcessGroup(const Environment& environment, std::chrono::milliseconds timeout,
               ReductionOrder order);

  void meet();
  void compare_cores();
  [[nodiscard]] std::vector<RankPlace> places(std::string_view gpu);
  /// The back end for the ranks' places, which can add in their order.
  [[nodiscard]] BackendKind choose_kind(std::string_view gpu);
  /// Some of the ranks, in their order, by their numbers among all.
  struct Members {
    std::string name;  // empty: of all ranks
    std::vector<int> ranks;
    std::shared_ptr<RunWaits> run_waits{};      // of all ranks
    std::shared_ptr<GroupWaits> group_waits{};  // of a group
  };
  [[nodiscard]] Members all_ranks() const;
  [[nodiscard]] Members members(const RankGroup& group);
  /// connect(), whose PeerLost counts members from `first` on; the flight recorder learns of it.
  template <class Connect>
  [[nodiscard]] static auto blaming(const Members& members, std::size_t first, Connect connect);
  /// For operands in host memory.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_for_host(EventLoop& loop, CpuPool& pool,
                                                                 const Members& members);
  [[nodiscard]] std::unique_ptr<CollectiveBackend> join_hosts(EventLoop& loop, CpuPool& pool,
                                                              const Members& members, int rank,
                                                              int per_host);
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_nccl(EventLoop& loop, CudaDevice& device,
                                                             const Members& members);
  [[nodiscard]] std::shared_ptr<NcclPeers> connect_nccl_peers(EventLoop& loop, Members members);
  /// Between the members, of which this is `rank`.
  [[nodiscard]] std::unique_ptr<NetBackend> connect_net(EventLoop& loop, const Members& members,
                                                        int rank);
  [[nodiscard]] bool orders_by_beginnings(const CudaDevice& gpu);
  /// The place of this rank.
  [[nodiscard]] int place_in(const Members& members) const;
  /// Options of the net that joins the members' hosts: how long it waits, and their names.
  template <class Options>
  [[nodiscard]] Options over_hosts(const Members& members, int per_host) const;
  [[nodiscard]] std::uint32_t outside_ranks(const Members& members) const noexcept;
  [[nodiscard]] std::vector<std::string> hosts_of(const Members& members) const;
  void throw_first_difference(std::string_view what, const std::vector<std::string>& values) const;

  Environment environment_;
  std::chrono::milliseconds timeout_;
  ReductionOrder order_;
  std::unique_ptr<Store> store_;    // none at world 1
  std::vector<std::string> hosts_;  // by rank
  int cores_shared_by_ = 1;
  int place_on_cores_ = 0;
  std::shared_ptr<RunWaits> run_waits_;
  std::string job_;                  // the text of a Secret, of all ranks
  int questions_ = 0;                // require_same() and of_all_ranks() so far
  std::optional<BackendKind> kind_;  // of the back end that was made
};

}  // namespace tandem
