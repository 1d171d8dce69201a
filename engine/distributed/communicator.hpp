// engine/distributed/communicator.hpp — who takes part in a run, and how this rank reaches the
// others.
//
// ProcessGroup is the one for processes that a launcher started; tests bring their own (ranks as
// threads).
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
  std::string name;    // of this group among all that the run has
  int rank = 0;        // this rank's, among them
  int world_size = 1;  // theirs
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// This rank's number among those of its host.
  [[nodiscard]] virtual int local_rank() const { return rank(); }
  /// How many ranks compute on this process's cores, and which of these this one is.
  [[nodiscard]] virtual int cores_shared_by() const { return 1; }
  [[nodiscard]] virtual int place_on_cores() const { return rank() % cores_shared_by(); }
  /// Throws Error(kPeer) on every rank when `value` differs between them. All ranks call it, in the
  /// same order.
  virtual void require_same(std::string_view what, std::string_view value) = 0;
  /// The values that all ranks hand in, in rank order: for facts that ranks measure and must agree
  /// on. All ranks call it, in the same order.
  [[nodiscard]] virtual std::vector<std::string> of_all_ranks(std::string value) = 0;
  /// The value that rank 0 hands in, on every rank; likewise.
  [[nodiscard]] std::string of_first_rank(std::string value) {
    return std::move(of_all_ranks(std::move(value)).front());
  }
  /// The name of each rank's host, in rank order, where they are on several: else empty. Hosts of
  /// one name have numbers behind it.
  [[nodiscard]] virtual std::vector<std::string> hosts() const { return {}; }
  /// The back end of this rank's collectives: it completes on `loop` and works on `pool`, which
  /// outlive it. Called once.
  virtual std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop, CpuPool& pool) = 0;
  /// One more, of the group's ranks alone and for host memory. They all call it, in the same order,
  /// after make_backend().
  virtual std::unique_ptr<CollectiveBackend> make_group_backend(EventLoop& loop, CpuPool& pool,
                                                                const RankGroup& group) = 0;
  /// The same for a rank that computes on `gpu`, whose uuid the ranks compare. A StagedBackend
  /// unless said otherwise.
  virtual std::unique_ptr<CollectiveBackend> make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                              CudaDevice& gpu,
                                                              std::string_view uuid);
  /// One more, for gathers and all-to-alls of the group's ranks alone between their GPUs, where
  /// make_gpu_backend() joined all ranks in that way; else null, as unless said otherwise. They all
  /// call it, in the same order, after that.
  virtual std::unique_ptr<CollectiveBackend> make_gpu_group_backend(EventLoop& loop,
                                                                    CudaDevice& gpu,
                                                                    const RankGroup& group);
};

/// World 1.
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
