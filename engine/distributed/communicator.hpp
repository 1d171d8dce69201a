// engine/distributed/communicator.hpp — the ranks of a run, and this rank's connections to the
// others.
//
// ProcessGroup is the communicator of processes that a launcher started; tests have their own,
// whose ranks are threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

class CollectiveBackend;
class CpuPool;
class CudaDevice;
class EventLoop;

/// Some of the ranks of a run.
struct RankGroup {
  std::string name;    // unique among the run's groups
  int rank = 0;        // this rank's number in the group
  int world_size = 1;  // ranks in the group
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// Returns this rank's number among the ranks of its host.
  [[nodiscard]] virtual int local_rank() const { return rank(); }
  /// Returns the number of ranks that compute on this process's cores, and this rank's number among
  /// them.
  [[nodiscard]] virtual int cores_shared_by() const { return 1; }
  [[nodiscard]] virtual int place_on_cores() const { return rank() % cores_shared_by(); }
  /// Throws Error(kPeer) on every rank if `value` differs between ranks. Collective: all ranks call
  /// it, in the same order.
  virtual void require_same(std::string_view what, std::string_view value) = 0;
  /// Returns the values of all ranks, in rank order: for facts that ranks measure and must agree
  /// on. Collective: all ranks call it, in the same order.
  [[nodiscard]] virtual std::vector<std::string> of_all_ranks(std::string value) = 0;
  /// Returns rank 0's value on every rank. Collective.
  [[nodiscard]] std::string of_first_rank(std::string value) {
    return std::move(of_all_ranks(std::move(value)).front());
  }
  /// Returns the name of each rank's host, in rank order; empty if all are on one host. Hosts with
  /// the same name get numbers after it.
  [[nodiscard]] virtual std::vector<std::string> hosts() const { return {}; }
  /// Makes the back end of this rank's collectives, which completes on `loop` and works on `pool`;
  /// both outlive it. Call it once.
  virtual std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop, CpuPool& pool) = 0;
  /// Makes a back end for host memory among the group's ranks. All of them call it, in the same
  /// order, after make_backend().
  virtual std::unique_ptr<CollectiveBackend> make_group_backend(EventLoop& loop, CpuPool& pool,
                                                                const RankGroup& group) = 0;
  /// The same for a rank that computes on `gpu`, whose uuid the ranks compare. The default makes a
  /// StagedBackend.
  virtual std::unique_ptr<CollectiveBackend> make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                              CudaDevice& gpu,
                                                              std::string_view uuid);
  /// Makes a back end for gathers and all-to-alls between the GPUs of the group's ranks, if
  /// make_gpu_backend() connected all ranks' GPUs; else returns null, as the default does. All
  /// ranks of the group call it, in the same order, after make_gpu_backend().
  virtual std::unique_ptr<CollectiveBackend> make_gpu_group_backend(EventLoop& loop,
                                                                    CudaDevice& gpu,
                                                                    const RankGroup& group);
};

/// A run of one rank.
class Alone final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  void require_same(std::string_view /*what*/, std::string_view /*value*/) override {}
  [[nodiscard]] std::vector<std::string> of_all_ranks(std::string value) override {
    return {std::move(value)};
  }
  std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop, CpuPool& pool) override;
  std::unique_ptr<CollectiveBackend> make_group_backend(EventLoop& loop, CpuPool& pool,
                                                        const RankGroup& group) override;
};

}  // namespace tandem
