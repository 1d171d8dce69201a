// actors/optimizer/update_runner.hpp — where a slice of an update is carried out: on the pool's
// threads, or on a device.
//
// CpuOptimizer decides what is updated when, and in which pass; a runner only carries it out. One
// queue, one protocol and the same bits for all of them, because each runs run_update_pass() on the
// same elements.
// Contract: at most slices_under_way() slices at a time. A slice's task ends when all it writes is
// in place and visible to every thread; its arrays and its steps are lent until then. An exception
// means that nothing more can be updated.
// Thread rule: the loop's thread.
// Cancel rule: a slice that has begun is carried out.
#pragma once

#include <cstddef>

#include "actors/kernels/update/direction.hpp"
#include "actors/kernels/update/update_pass.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/task.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

/// One pass over the elements [begin, end) of a unit's shard; both lie at chunks' boundaries, or at
/// the shard's end.
struct UpdateSlice {
  Name name = "update";  // in traces
  const UpdatedUnit* unit = nullptr;
  const UpdateStep* steps = nullptr;  // [group]
  UpdatePass pass = UpdatePass::kInPlace;
  std::size_t begin = 0;
  std::size_t end = 0;
  // Not null: instead of the pass, write_direction() with the steps behind it. The pool's only.
  Direction* direction = nullptr;
  const DirectionStep* direction_steps = nullptr;  // [group]
};

class UpdateRunner {
 public:
  UpdateRunner() = default;
  virtual ~UpdateRunner() = default;
  UpdateRunner(const UpdateRunner&) = delete;
  UpdateRunner& operator=(const UpdateRunner&) = delete;

  /// Chunks of CpuOptimizer::Options::chunk_elements that a slice has at most: how long an urgent
  /// unit may have to wait.
  [[nodiscard]] virtual std::size_t slice_chunks() const noexcept = 0;
  /// How many slices keep this runner busy without a gap between two of them.
  [[nodiscard]] virtual std::size_t slices_under_way() const noexcept = 0;
  virtual Task<> run(UpdateSlice slice) = 0;
};

/// On the threads of a pool, chunk by chunk.
class PoolUpdates final : public UpdateRunner {
 public:
  /// `pool` outlives the runner. slice_chunks 0: four for each of its threads.
  PoolUpdates(CpuPool* pool, std::size_t chunk_elements, std::size_t slice_chunks);

  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return slice_chunks_; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return 2; }
  Task<> run(UpdateSlice slice) override;

 private:
  CpuPool* pool_;
  std::size_t chunk_elements_;
  std::size_t slice_chunks_;
};

}  // namespace tandem
