// engine/placement/placement_model.hpp — predicts a step's time with a placement by a small
// simulation of the schedule.
//
// Compute runs the visits of a step in order, each after its gathers. Reductions and gathers run
// one after another, in the plan's order. Updates run by earliest deadline, with separate queues
// for the pool, NVMe, streaming and the device; an update begins when its gradient is reduced (with
// a shadow and --overlap full) or with the verdict. Simultaneous activities share a link, the pool
// or the device's memory equally. A few steps are simulated and the last ones count, because a
// step's updates run under the next one's forward. An update through a transfer buffer ends later
// than its runner's work by the first slice's way in and the last one's way out. Not modelled:
// latencies of single copies, and that the pool and copies share the host's memory (the pool's
// speed is measured as it is alone). tests/core/placement/real_step_test.cpp holds it to TrainStep.
// Some tens of microseconds for a model of 40 units. Pure: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/types/options.hpp"

namespace tandem {

/// Bytes per second.
struct PlacementSpeeds {
  double host_update = 50e9;           // read and written by updates on the pool
  double host_update_speculative = 0;  // by speculative updates; 0: the same
  double to_device = 25e9;
  double to_host = 25e9;
  double device_memory = 2e12;
  double disk = 2e9;  // of state on NVMe, each way, while as much goes the other way
};

/// The traffic of one unit in one step, in bytes.
struct PlacementUnit {
  double weights = 0;      // that a gather copies to the device
  double gradient = 0;     // that a reduction copies from it
  double accumulator = 0;  // that a reduction writes
  double update = 0;       // that an update reads and writes
  double state_in = 0;     // that a streamed update, or one on NVMe, reads and writes back
  // Shares of the unit in a slice of a streamed update, and of one on NVMe; 0: slices are as small
  // as can be, so that none waits for the first to come in and the last to go out.
  double streamed_slice = 0;
  double nvme_slice = 0;
  double optimizer = 0;  // master and moments
  // host memory with the state there; streamed: without the accumulator, on one rank
  double on_host = 0;
  double on_device = 0;      // device memory with all state there
  double when_streamed = 0;  // device memory when streamed
  bool is_movable = true;    // not frozen
  bool has_shadow = true;
  bool has_shadow_on_nvme = false;  // with its state there
  bool is_replicated = false;       // gathered once for each version
};

struct PlacementSegment {
  std::vector<std::size_t> units;
  double forward_s = 0;
  double backward_s = 0;
  // Bytes of its input if that is copied off the device after the last visit and back before
  // backward (boundaries.hpp); 0: it stays.
  double boundary = 0;
};

struct PlacementProblem {
  std::vector<PlacementUnit> units;
  std::vector<PlacementSegment> segments;
  PlacementSpeeds speeds;
  Overlap overlap = Overlap::kFull;
  int micro_steps = 1;
  std::size_t gather_slots = 3;
  bool is_alone = true;            // one rank: what lies on the device stays there
  double device_bytes = 0;         // free for state
  double host_bytes = 1e18;        // likewise
  double device_buffer_bytes = 0;  // of the device's, once anything is streamed
  double host_buffer_bytes = 0;    // of the host's, once anything is updated on the device

  /// Return the memory that a placement takes.
  [[nodiscard]] double device_bytes_of(std::span<const StatePlacement> placements) const;
  [[nodiscard]] double host_bytes_of(std::span<const StatePlacement> placements) const;
  [[nodiscard]] bool fits(std::span<const StatePlacement> placements) const {
    return device_bytes_of(placements) <= device_bytes && host_bytes_of(placements) <= host_bytes;
  }
};

/// Returns the seconds of a step in a long run. `placements`: one for each unit.
[[nodiscard]] double predict_step_s(const PlacementProblem& problem,
                                    std::span<const StatePlacement> placements);

}  // namespace tandem
