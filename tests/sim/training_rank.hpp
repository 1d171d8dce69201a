// tests/sim/training_rank.hpp — one rank of a rehearsed training: the real actors on simulated net,
// disk, device and pool.
//
// The model is plain numbers: forward looks at the weights, "backward" makes gradients of them and
// of the rank's batch on the device. The same training in plain loops is Reference.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "actors/data_prefetch.hpp"
#include "actors/gradient_bucket.hpp"
#include "actors/memory/arena.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/sim/sim_files.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "tests/sim/harness.hpp"
#include "tests/sim/rank_arrays.hpp"
#include "tests/sim/rank_checkpoints.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem::sim_test {

/// Where a unit lies: all of it in memory; master and moments in the rank's file; weights and
/// gradients, too.
enum class Home : std::uint8_t { kMemory, kStateInFile, kAllInFile };

struct Plan {
  std::uint32_t hosts = 2;
  std::uint32_t ranks = 2;  // on all hosts together
  std::uint32_t units = 3;
  std::uint64_t steps = 3;
  std::size_t slots = 2;
  std::vector<std::size_t> elements;  // by unit
  std::vector<Home> homes;            // likewise
  std::uint64_t save_every = 1;
  std::uint64_t save_steps = 0;  // that a save is beside, after the next one

  [[nodiscard]] UnitLayout layout(std::uint32_t unit) const {
    return UnitLayout::make(elements[unit], ranks);
  }
  [[nodiscard]] bool saves_after(std::uint64_t step) const noexcept {
    return step % save_every == 0;
  }
  [[nodiscard]] std::uint64_t visits() const { return 2 * std::uint64_t{units}; }  // per step
};

float initial_weight(std::uint32_t unit, std::size_t i);
float gradient_of(float weight, int batch, std::uint32_t rank);
int batch_of(std::uint64_t step, std::uint32_t rank);
/// `norm`: null for the constants without clipping.
UpdateStep update_step(std::uint64_t step, const GradientNorm* norm, const Plan& plan);

/// The state after each step, in plain loops.
struct Reference {
  explicit Reference(const Plan& plan);
  using Arrays = std::array<std::vector<float>, 3>;  // master and moments, [element]
  std::vector<std::vector<Arrays>> after;            // [steps done][unit]
};

/// Writes down what a rank issues.
class RecordingBackend final : public CollectiveBackend {
 public:
  explicit RecordingBackend(CollectiveBackend& inner) : inner_(inner) {}
  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_.world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_.rank(); }
  Task<> all_gather(GatherArguments a) override {
    gathers.push_back(a.shard_bytes);
    co_await inner_.all_gather(a);
  }
  Task<GradientNorm> reduce_scatter_add(ReduceArguments a) override {
    reductions.push_back(a.shard_elements);
    co_return co_await inner_.reduce_scatter_add(a);
  }
  Task<GradientNorm> all_reduce_add(ReduceArguments a) override {
    reductions.push_back(a.shard_elements);
    co_return co_await inner_.all_reduce_add(a);
  }
  Task<> exchange(ExchangeArguments a) override {
    reductions.push_back(a.bytes);
    co_await inner_.exchange(a);
  }
  Task<> broadcast(BroadcastArguments a) override {
    gathers.push_back(a.bytes);
    co_await inner_.broadcast(a);
  }
  Task<> all_to_all(AllToAllArguments a) override {
    gathers.push_back(a.bytes);
    co_await inner_.all_to_all(a);
  }
  std::byte* allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  std::vector<std::size_t> gathers;
  std::vector<std::size_t> reductions;

 private:
  CollectiveBackend& inner_;
};

class TrainingRank {
 public:
  TrainingRank(Run& run, const Plan& plan, std::uint32_t rank, SimNet& links, SimHost& host,
               SimDisk& disk, SimFiles::Faults faults, CheckpointMeeting& meeting);

  void start();
  [[nodiscard]] bool ended() const noexcept {
    return main_scope.running() == 0 && actors_scope.running() == 0;
  }
  /// Returns the error that ended the rank; empty: it had none.
  [[nodiscard]] std::string failure() const;
  /// The rank that its failure names.
  [[nodiscard]] std::uint32_t failed_rank() const;

  Run& run;
  const Plan& plan;
  std::uint32_t rank;
  Random random;
  Scope actors_scope;
  Scope main_scope;
  SimPool workers;
  CpuPool pool;
  Net net;
  SimDevice device;
  FileIo io;
  std::unique_ptr<HostLevel> local;
  HostsBackend over_hosts;
  RankArrays arrays;
  RecordingBackend backend;
  Collectives collectives;
  HostBuffer gather_memory, gradient_memory;
  std::unique_ptr<SlotPool> gather_slots, gradient_slots;
  std::vector<HostBuffer> shadows;
  std::vector<std::unique_ptr<ParameterShard>> shards;
  std::vector<std::unique_ptr<GradientBucket>> buckets;
  std::unique_ptr<CpuOptimizer> optimizer;
  std::vector<std::byte> data;  // the batches'
  DataPrefetch<int> prefetch;
  DeviceStream copies, compute, results;
  RankCheckpoints checkpoints;
  std::uint64_t first_step = 0;  // that this start makes
  std::uint64_t step = 0;
  UpdateStep update;
  UpdateStep ahead;          // ahead of the verdict, which may differ
  std::exception_ptr cause;  // the cause of its end, if it failed
  TimePoint ended_at;

  /// Returns the master, or a moment, of this rank's slice once the rank has ended.
  [[nodiscard]] std::span<const float> array_of(std::uint32_t unit, std::uint32_t array) const;
  /// Returns how many steps this start has made.
  [[nodiscard]] std::uint64_t steps_here() const noexcept { return step - first_step; }
  /// Returns the sequence number of the step's first collective.
  [[nodiscard]] std::uint64_t first_sequence() const noexcept {
    return steps_here() * (plan.units + 1) + checkpoints.agreements();
  }

 private:
  static Task<> main(TrainingRank* self);
  Task<> train();
  Task<> train_step();
  Task<> forward(std::uint32_t unit);
  Task<> backward(std::uint32_t unit, std::uint32_t visit, int batch, GradientNorm* norm);
  Task<> gradient_on_device(const std::byte* block, std::byte* gradient, std::uint32_t unit,
                            int batch);
  Task<> read_data();
  CpuOptimizer::Unit make_unit(std::uint32_t unit);
};

}  // namespace tandem::sim_test
