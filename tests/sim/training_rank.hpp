// tests/sim/training_rank.hpp — one rank of a rehearsed training: the Rank, the TrainStep and the
// Checkpointer that ship, on simulated net, disk, device, pools and lane.
//
// main() stands in for the engine around them: it loads, makes step after step of micro-batches of
// numbers (number_batch.hpp), and compares each verdict with the reference's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "actors/data_prefetch.hpp"
#include "engine/rank/rank.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sim/sim_lane.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "tests/sim/harness.hpp"
#include "tests/sim/number_batch.hpp"
#include "tests/sim/operations.hpp"
#include "tests/sim/rank_checkpoints.hpp"
#include "tests/sim/training_plan.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem::sim_test {

/// Writes down what a rank issues, and fails at the begin or the end of one operation.
class RecordingBackend final : public CollectiveBackend {
 public:
  explicit RecordingBackend(CollectiveBackend& inner) : inner_(inner) {}
  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_.rank(); }
  Task<> all_gather(GatherArguments a) override {
    note(gathers, a.shard_bytes);
    co_await inner_.all_gather(a);
    count_edge();
  }
  Task<GradientNorm> reduce_scatter_add(ReduceArguments a) override {
    note(reductions, a.shard_elements);
    const GradientNorm norm = co_await inner_.reduce_scatter_add(a);
    count_edge();
    co_return norm;
  }
  Task<GradientNorm> all_reduce_add(ReduceArguments a) override {
    note(reductions, a.shard_elements);
    const GradientNorm norm = co_await inner_.all_reduce_add(a);
    count_edge();
    co_return norm;
  }
  Task<> exchange(ExchangeArguments a) override {
    note(reductions, a.bytes);
    co_await inner_.exchange(a);
    count_edge();
  }
  Task<> all_to_all(AllToAllArguments a) override {
    note(gathers, a.bytes);
    co_await inner_.all_to_all(a);
    count_edge();
  }
  std::byte* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }

  std::vector<std::size_t> gathers;
  std::vector<std::size_t> reductions;
  std::uint64_t edges = 0;  // begins and ends of operations so far
  std::uint64_t breaks_at = UINT64_MAX;

 private:
  void note(std::vector<std::size_t>& sequence, std::size_t size) {
    sequence.push_back(size);
    count_edge();
  }
  void count_edge() {
    if (edges++ == breaks_at) {
      throw failure(ExitCode::kFailure, "collectives", "a collective failed");
    }
  }

  CollectiveBackend& inner_;
};

/// The faults of a rank's two ways to the disk.
struct DiskFaults {
  SimFiles::Faults of_files;  // data and checkpoints
  SimFiles::Faults of_nvme;   // state, weights and boundaries
};

class TrainingRank {
 public:
  TrainingRank(Run& run, const Plan& plan, const Reference& reference, std::uint32_t rank,
               SimNet& links, SimHost& host, SimDisk& disk, DiskFaults faults,
               CheckpointMeeting& meeting);

  void start();
  [[nodiscard]] bool ended() const noexcept {
    return main_scope.running() == 0 && training->scope().running() == 0;
  }
  /// Returns the error that ended the rank; empty: it had none.
  [[nodiscard]] std::string failure() const;
  /// The rank that its failure names.
  [[nodiscard]] std::uint32_t failed_rank() const;
  /// Returns the number of its operations of that kind so far.
  [[nodiscard]] std::uint64_t count_of(Operation operation);
  /// Makes its n-th operation of that kind fail, counted from 0. Calls of files fail by DiskFaults.
  void fail(Operation operation, std::uint64_t n);
  /// Nothing of it is under way any more: no call of a file, no function of the lane, no message,
  /// no copy or kernel.
  [[nodiscard]] bool is_quiet();
  /// Its device; null: the CPU computes.
  [[nodiscard]] SimDevice* device() noexcept {
    return accelerator ? static_cast<SimDevice*>(&accelerator->device()) : nullptr;
  }
  /// All ranks' bytes, in rank order. A collective.
  Task<std::vector<std::byte>> of_all_ranks(std::vector<std::byte> mine);

  Run& run;
  const Plan& plan;
  const Reference& reference;
  std::uint32_t rank;
  SimNet& links;
  Random random;
  EventLoop& loop;
  Scope main_scope;
  SimPool optimizer_workers;
  SimPool copy_workers;
  CpuPool optimizer_pool;
  CpuPool copy_pool;
  SimLane lane;
  Net net;
  SimFiles* files = nullptr;       // behind `io`
  SimFiles* nvme_files = nullptr;  // behind the rank's own; null: it has not opened it
  FileIo io;
  std::unique_ptr<HostLevel> local;
  HostsBackend over_hosts;
  std::unique_ptr<Accelerator> accelerator;  // null: the CPU computes
  std::unique_ptr<CollectiveBackend> backend;
  RecordingBackend* recorded = nullptr;  // in it
  Model model;
  Config config;
  RankOptions options;
  RankLayout layout;
  std::optional<Rank> training;
  std::optional<TrainStep> step;  // from the end of loading on
  std::vector<std::byte> data;    // the batches'
  DataPrefetch<int> prefetch;
  RankCheckpoints checkpoints;
  std::uint64_t first_step = 0;  // that this start makes
  std::uint64_t steps_done = 0;
  VisitCounter visits;
  // [unit][array] of this rank's slice; of a rank that failed only if its updates went to their end
  std::vector<std::vector<std::vector<float>>> end_state;
  std::exception_ptr cause;  // the cause of its end, if it failed
  TimePoint ended_at;

 private:
  static Task<> main(TrainingRank* self);
  Task<> train();
  Task<> train_step();
  void check_verdict(const Verdict& verdict);
  Task<> read_data();
  Task<> take_end_state();
  Task<> take_state_after_failure();
};

}  // namespace tandem::sim_test
