// engine/step/timed_work.hpp — the work of a step in virtual time: visits and updates that last for
// a given time and access no memory.
//
// With them a Rank and its TrainStep run their schedule in the simulator (runtime/sim) for any
// model. The bench of thousands of ranks and the test of the placement model use them.
// Thread rule: as MicroBatch and UpdateRunner.
#pragma once

#include <cstddef>
#include <span>

#include "actors/optimizer/update_runner.hpp"
#include "engine/rank/micro_batch.hpp"
#include "runtime/clock.hpp"

namespace tandem {

/// A micro-batch whose visits do nothing: the lane that runs them takes their time
/// (SimLane::Options::time_of). Its boundaries have no bytes.
class TimedBatch : public MicroBatch {
 public:
  explicit TimedBatch(BatchExtents extents) : extents_(extents) {}

  [[nodiscard]] BatchExtents extents() const override { return extents_; }
  void forward(std::size_t, const VisitMemory&) override {}
  void read_loss(float* to) override { *to = 0; }
  void backward(std::size_t, const VisitMemory&, double) override {}
  void infer(std::size_t, const VisitMemory&) override {}
  [[nodiscard]] std::size_t boundary_bytes(std::size_t) const override { return 0; }
  [[nodiscard]] std::span<std::byte> keep_boundary(std::size_t) override { return {}; }
  void free_boundary(std::size_t) override {}
  [[nodiscard]] std::span<std::byte> make_boundary(std::size_t, std::byte*) override { return {}; }
  void take_boundary(std::size_t) override {}

 private:
  BatchExtents extents_;
};

/// Updates on the host that take the time of their bytes at `bytes_per_s`, one slice after another.
class TimedUpdates final : public UpdateRunner {
 public:
  explicit TimedUpdates(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return 16; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return 2; }
  Task<> run(UpdateSlice slice) override;

 private:
  double bytes_per_s_;
  TimePoint free_at_;
};

}  // namespace tandem
