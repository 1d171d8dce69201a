// tests/sim/training_plan.hpp — a training that is rehearsed: its model, its settings and, in plain
// loops, its results.
//
// The model is plain numbers. Segment 0 uses unit 0, segment k unit k, and the last one unit 0 once
// more (as tied embeddings do) and a unit of its own; there may be a unit that no segment uses. A
// gradient is a function of the weight, the
// micro-batch and the segment; a boundary between segments is a function of the micro-batch alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/disks.hpp"
#include "engine/config/config.hpp"
#include "engine/step/train_step.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"
#include "runtime/util/random.hpp"

namespace tandem::sim_test {

struct Plan {
  std::uint32_t hosts = 2;
  std::uint32_t ranks = 2;   // on all hosts together
  std::uint32_t layers = 2;  // segments with a unit of their own
  bool has_unused = false;   // a last unit that no segment uses
  std::uint64_t steps = 3;
  std::uint64_t micro_steps = 1;
  int stage = 3;
  bool on_device = false;
  std::vector<std::size_t> elements;  // by unit
  EngineOptions engine;
  double clipping = 0;  // 0: off
  double loss_scale = 1;
  /// A gradient that is not finite: the step that has it is skipped.
  struct BadGradient {
    std::uint64_t step = 0;
    std::uint64_t micro_batch = 0;  // of the step, on all ranks
    std::size_t unit = 0;
    std::size_t element = 0;
  };
  std::optional<BadGradient> bad;
  bool shares_early = true;  // ranks exchange ahead of the verdict, as the engine does
  std::uint64_t save_every = 1;
  std::uint64_t save_steps = 0;  // that a save is beside, after the next one
  int keep = 2;                  // checkpoints that stay
  bool own_disks = false;        // each host has a disk of its own

  [[nodiscard]] std::uint32_t units() const noexcept { return layers + 2 + (has_unused ? 1 : 0); }
  [[nodiscard]] std::size_t segments() const noexcept { return layers + 2; }
  [[nodiscard]] std::uint64_t micro_batches() const noexcept { return micro_steps * ranks; }
  [[nodiscard]] bool saves_after(std::uint64_t step) const noexcept {
    return step % save_every == 0;
  }
  /// Returns the number of disks on which the ranks' checkpoints lie.
  [[nodiscard]] std::uint32_t disk_count() const noexcept { return own_disks ? hosts : 1; }
  [[nodiscard]] std::uint32_t disk_of(std::uint32_t rank) const noexcept {
    return own_disks ? rank / (ranks / hosts) : 0;
  }
  [[nodiscard]] Disks disks() const;
  /// Returns the host of each rank; none if there is one host.
  [[nodiscard]] std::vector<std::string> host_names() const;
  [[nodiscard]] Model model() const;
  [[nodiscard]] Config config() const;
  /// d(objective)/d(loss) of a micro-batch.
  [[nodiscard]] double loss_gradient() const noexcept {
    return loss_scale / static_cast<double>(micro_batches());
  }
  /// The constants of the step that follows `applied` ones.
  [[nodiscard]] TrainStep::Update update_after(std::int64_t applied) const;
};

Plan draw_plan(Random& random);

/// A micro-batch of a step.
struct MicroBatchId {
  std::uint64_t step = 0;
  std::uint64_t number = 0;  // of the step's, on all ranks
};

/// The batch of a rank's micro-batch, counted over all steps: what its data file says.
int batch_of(std::uint64_t number);
float initial_weight(std::size_t unit, std::int64_t i);
/// The gradient of an element that segment `s` adds.
float gradient_of(const Plan& plan, MicroBatchId id, std::size_t s, std::size_t unit,
                  std::size_t element, float weight);
float loss_of(MicroBatchId id);
/// Element `i` of the input of segment `b`.
float boundary_value(MicroBatchId id, std::size_t b, std::size_t i);
[[nodiscard]] std::size_t boundary_elements(MicroBatchId id, std::size_t b);
/// The segments that use a unit, in the order in which backward comes to them.
[[nodiscard]] std::vector<std::size_t> users_of(const Plan& plan, std::size_t unit);

/// The results, in plain loops.
struct Reference {
  explicit Reference(const Plan& plan);

  using Arrays = std::array<std::vector<float>, 3>;  // master and moments, [element]
  std::vector<std::vector<Arrays>> after;            // [steps done][unit]
  std::vector<std::int64_t> applied;                 // [steps done] of them
  std::vector<double> norms;                         // [step]; NaN: it is skipped

 private:
  void make_step(const Plan& plan, std::uint64_t step);
};

}  // namespace tandem::sim_test
