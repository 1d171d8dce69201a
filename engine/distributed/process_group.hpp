// engine/distributed/process_group.hpp — connects the ranks of a run, checks that their settings
// agree, and makes the back end of their collectives.
//
// Rank 0 hosts a small key-value store, to which the others connect. It listens on the loopback
// unless MASTER_ADDR names another address, and only until all ranks have connected; a run of one
// process does not listen. A process that connects has to prove that it knows this run's secret
// (run_secret.hpp). Blocking calls before training starts; any thread, one at a time.
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
  /// Connects the ranks that the launcher's variables describe, within TANDEM_RENDEZVOUS_TIMEOUT_S
  /// (300 s). Throws a user error for impossible variables, Error(kPeer) if a rank is missing,
  /// connects twice, or has another world size. The ranks compare `order` when they make a back
  /// end; that throws a user error if the back end cannot add in this order.
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
  /// Computed from the affinity masks, which the ranks of a host compare at the rendezvous, because
  /// only some launchers bind ranks.
  [[nodiscard]] int cores_shared_by() const noexcept override { return cores_shared_by_; }
  [[nodiscard]] int place_on_cores() const noexcept override { return place_on_cores_; }

  /// Makes the back end of this rank: `self` for one rank, else shared memory, with a net if the
  /// ranks are on several hosts. Collective, once; loop and pool outlive it. Throws a user error if
  /// the hosts have different numbers of ranks, Error(kPeer) if a rank cannot be reached.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop,
                                                                CpuPool& pool) override;
  /// Makes the back end of a group with ranks on one host, or equally many on each of several. All
  /// ranks of the run call it, each for its group.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_group_backend(
      EventLoop& loop, CpuPool& pool, const RankGroup& group) override;
  /// Makes the back end for operands on GPUs; `uuid` identifies this rank's GPU (gpu_probe.hpp). It
  /// is NCCL if each of several ranks has a GPU of its own, else a back end through host memory
  /// (backend_choice.hpp). Runs the loop, which must be idle, and blocks until all ranks are
  /// connected. Throws a user error if the ranks' hosts and GPUs do not fit together,
  /// Error(kRefused) if the build or the machine has no NCCL.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                                    CudaDevice& gpu,
                                                                    std::string_view uuid) override;

  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_gpu_group_backend(
      EventLoop& loop, CudaDevice& gpu, const RankGroup& group) override;

  /// Connects the channel beside NCCL on which ranks with a GPU each agree; make_gpu_backend()
  /// calls it itself. The last owner must release it while the loop does not run.
  [[nodiscard]] std::shared_ptr<NcclPeers> connect_nccl_peers(EventLoop& loop) {
    return connect_nccl_peers(loop, all_ranks());
  }
  /// The same for a group; make_gpu_group_backend() calls it.
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
  /// Chooses the back end for the ranks' hosts and GPUs; it can add in the ranks' order.
  [[nodiscard]] BackendKind choose_kind(std::string_view gpu);
  /// A group of ranks, in the group's order, by their numbers in the run.
  struct Members {
    std::string name;  // empty: of all ranks
    std::vector<int> ranks;
    std::shared_ptr<RunWaits> run_waits{};      // of all ranks
    std::shared_ptr<GroupWaits> group_waits{};  // of a group
  };
  [[nodiscard]] Members all_ranks() const;
  [[nodiscard]] Members members(const RankGroup& group);
  /// Calls connect() and records a PeerLost in the flight recorder; PeerLost counts members from
  /// `first` on.
  template <class Connect>
  [[nodiscard]] static auto blaming(const Members& members, std::size_t first, Connect connect);
  /// Makes the back end for operands in host memory.
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_for_host(EventLoop& loop, CpuPool& pool,
                                                                 const Members& members);
  [[nodiscard]] std::unique_ptr<CollectiveBackend> join_hosts(EventLoop& loop, CpuPool& pool,
                                                              const Members& members, int rank,
                                                              int per_host);
  [[nodiscard]] std::unique_ptr<CollectiveBackend> make_nccl(EventLoop& loop, CudaDevice& device,
                                                             const Members& members);
  [[nodiscard]] std::shared_ptr<NcclPeers> connect_nccl_peers(EventLoop& loop, Members members);
  /// Connects the net between the members; `rank`: this rank's index among them.
  [[nodiscard]] std::unique_ptr<NetBackend> connect_net(EventLoop& loop, const Members& members,
                                                        int rank);
  [[nodiscard]] bool orders_by_beginnings(const CudaDevice& gpu);
  /// Returns this rank's index among the members.
  [[nodiscard]] int place_in(const Members& members) const;
  /// Returns the options of the net that joins the members' hosts: its timeout, and their names.
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
  std::string job_;                  // the text of a secret that all ranks share
  int questions_ = 0;                // require_same() and of_all_ranks() so far
  std::optional<BackendKind> kind_;  // the back end that was made
};

}  // namespace tandem
