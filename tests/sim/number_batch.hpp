// tests/sim/number_batch.hpp — a micro-batch of a rehearsed training: visits that look at
// everything they are given, and compute plain numbers of it.
//
// A visit requires that the gathered weights are those after the steps so far, element by element,
// and that its input is what the segment before made. So a schedule that awaits too little is found
// in the visit that it harms.
// Thread rule: as MicroBatch.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/rank/micro_batch.hpp"
#include "tests/sim/harness.hpp"
#include "tests/sim/training_plan.hpp"

namespace tandem::sim_test {

/// Visits of a rank so far, and the one that throws.
struct VisitCounter {
  std::uint64_t made = 0;
  std::uint64_t breaks_at = UINT64_MAX;
};

class NumberBatch final : public MicroBatch {
 public:
  /// All but `id` outlive it.
  NumberBatch(Run& run, const Plan& plan, const Reference& reference, MicroBatchId id,
              VisitCounter& visits);

  [[nodiscard]] BatchExtents extents() const override { return {.rows = 1, .length = 1}; }
  void forward(std::size_t s, const VisitMemory& memory) override;
  void read_loss(float* to) override { *to = loss_of(id_); }
  void backward(std::size_t s, const VisitMemory& memory, double loss_gradient) override;
  void infer(std::size_t s, const VisitMemory& memory) override { look_at_weights(s, memory); }

  [[nodiscard]] std::size_t boundary_bytes(std::size_t b) const override {
    return boundary_elements(id_, b) * sizeof(float);
  }
  [[nodiscard]] std::span<std::byte> keep_boundary(std::size_t b) override {
    return std::as_writable_bytes(std::span(boundaries_[b]));
  }
  void free_boundary(std::size_t b) override;
  [[nodiscard]] std::span<std::byte> make_boundary(std::size_t b, std::byte* room) override;
  void take_boundary(std::size_t b) override;

 private:
  void look_at_weights(std::size_t s, const VisitMemory& memory);
  void look_at_boundary(std::size_t b);
  void break_here();

  Run& run_;
  const Plan& plan_;
  const Reference& reference_;
  MicroBatchId id_;
  VisitCounter& visits_;
  std::vector<std::vector<float>> boundaries_;  // [b] here
  std::vector<float*> rooms_;                   // [b] where it comes back to, if that is elsewhere
};

}  // namespace tandem::sim_test
