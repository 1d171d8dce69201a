// actors/optimizer/update_runner.hpp — executes slices of updates: on the pool's threads, on a
// device, or through a file.
//
// CpuOptimizer decides which unit is updated when, and in which pass; a runner only executes the
// slices. All runners have the same queue, protocol and bits, because each runs run_update_pass()
// on the same elements.
// Contract: at most slices_under_way() slices are under way at a time. A slice's task ends when its
// results are in place and visible to every thread; its arrays and steps are lent until then. After
// an exception nothing can be updated.
// Thread rule: the loop's thread.
// Cancel rule: a slice that has begun is finished.
#pragma once

#include <cstddef>
#include <vector>

#include "actors/kernels/update/direction.hpp"
#include "actors/optimizer/placed_state.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/task.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

/// One pass over the elements [begin, end) of a unit's shard; both are chunk boundaries, or the
/// shard's end.
struct UpdateSlice {
  Name name = "update";  // in traces
  const PlacedState* unit = nullptr;
  const UpdateStep* steps = nullptr;  // [group]
  UpdatePass pass = UpdatePass::kInPlace;
  std::size_t begin = 0;
  std::size_t end = 0;
  // If not null, the runner calls write_direction() with direction_steps instead of the pass. Only
  // the pool can do that.
  Direction* direction = nullptr;
  const DirectionStep* direction_steps = nullptr;  // [group]
};

class UpdateRunner {
 public:
  UpdateRunner() = default;
  virtual ~UpdateRunner() = default;
  UpdateRunner(const UpdateRunner&) = delete;
  UpdateRunner& operator=(const UpdateRunner&) = delete;

  /// Returns the greatest number of chunks (CpuOptimizer::Options::chunk_elements) in a slice. It
  /// limits how long an urgent unit waits.
  [[nodiscard]] virtual std::size_t slice_chunks() const noexcept = 0;
  /// Returns the number of slices that keep this runner busy without gaps.
  [[nodiscard]] virtual std::size_t slices_under_way() const noexcept = 0;
  virtual Task<> run(UpdateSlice slice) = 0;
};

/// Runs updates of units in host memory on the threads of a pool, chunk by chunk.
class PoolUpdates final : public UpdateRunner {
 public:
  /// `pool` outlives the runner. If slice_chunks is 0, a slice has four chunks for each of the
  /// pool's threads.
  PoolUpdates(CpuPool* pool, std::size_t chunk_elements, std::size_t slice_chunks);

  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return slice_chunks_; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return 2; }
  Task<> run(UpdateSlice slice) override;
  /// The same on `unit` instead of slice.unit; it is lent until the task ends.
  Task<> run_on(const UpdatedUnit* unit, UpdateSlice slice);

 private:
  CpuPool* pool_;
  std::size_t chunk_elements_;
  std::size_t slice_chunks_;
  std::vector<UpdatedUnit> unused_;  // kept, so that slices allocate nothing
};

}  // namespace tandem
