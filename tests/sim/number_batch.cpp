#include "tests/sim/number_batch.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/util/error.hpp"

namespace tandem::sim_test {

NumberBatch::NumberBatch(Run& run, const Plan& plan, const Reference& reference, MicroBatchId id,
                         VisitCounter& visits)
    : run_(run),
      plan_(plan),
      reference_(reference),
      id_(id),
      visits_(visits),
      boundaries_(plan.segments()),
      rooms_(plan.segments()) {}

void NumberBatch::break_here() {
  if (visits_.made++ == visits_.breaks_at) {
    throw failure(ExitCode::kFailure, "model", "a visit failed");
  }
}

void NumberBatch::look_at_weights(std::size_t s, const VisitMemory& memory) {
  for (std::size_t i = 0; i < memory.uses.size(); ++i) {
    const std::size_t unit = memory.uses[i].unit;
    const std::vector<float>& expected = reference_.after[id_.step][unit][0];
    const auto* seen = reinterpret_cast<const float*>(memory.weights[i]);
    const auto differs = std::ranges::mismatch(expected, std::span(seen, expected.size())).in1;
    run_.require(differs == expected.end(),
                 "segment {} of step {}, micro-batch {}: element {} of unit {} is not the weight "
                 "after {} steps",
                 s, id_.step, id_.number, differs - expected.begin(), unit, id_.step);
  }
}

void NumberBatch::look_at_boundary(std::size_t b) {
  const std::size_t elements = boundary_elements(id_, b);
  const float* values = rooms_[b] != nullptr ? rooms_[b] : boundaries_[b].data();
  run_.require(rooms_[b] != nullptr || boundaries_[b].size() == elements,
               "boundary {} of step {}, micro-batch {} is not there", b, id_.step, id_.number);
  for (std::size_t i = 0; i < elements; ++i) {
    run_.require(values[i] == boundary_value(id_, b, i),
                 "element {} of boundary {} of step {}, micro-batch {} is another one", i, b,
                 id_.step, id_.number);
  }
}

void NumberBatch::forward(std::size_t s, const VisitMemory& memory) {
  break_here();
  look_at_weights(s, memory);
  if (s > 0) {
    look_at_boundary(s);
  }
  if (const std::size_t b = s + 1; b < plan_.segments()) {
    boundaries_[b].resize(boundary_elements(id_, b));
    for (std::size_t i = 0; i < boundaries_[b].size(); ++i) {
      boundaries_[b][i] = boundary_value(id_, b, i);
    }
  }
}

void NumberBatch::backward(std::size_t s, const VisitMemory& memory, double loss_gradient) {
  break_here();
  run_.require(loss_gradient == plan_.loss_gradient(), "the loss has another gradient");
  look_at_weights(s, memory);
  if (s > 0) {
    look_at_boundary(s);
    boundaries_[s].clear();
    rooms_[s] = nullptr;
  }
  for (std::size_t i = 0; i < memory.uses.size(); ++i) {
    const UnitUse& use = memory.uses[i];
    const auto* weights = reinterpret_cast<const float*>(memory.weights[i]);
    auto* gradient = reinterpret_cast<float*>(memory.gradients[use.unit]);
    for (std::size_t e = 0; e < plan_.elements[use.unit]; ++e) {
      const float own = gradient_of(plan_, id_, s, use.unit, e, weights[e]);
      gradient[e] = use.first_gradient ? own : gradient[e] + own;
    }
  }
}

void NumberBatch::free_boundary(std::size_t b) {
  std::ranges::fill(boundaries_[b], std::numeric_limits<float>::quiet_NaN());
  boundaries_[b].clear();
  boundaries_[b].shrink_to_fit();
}

std::span<std::byte> NumberBatch::make_boundary(std::size_t b, std::byte* room) {
  const std::size_t elements = boundary_elements(id_, b);
  if (room != nullptr) {
    rooms_[b] = reinterpret_cast<float*>(room);
    return {room, elements * sizeof(float)};
  }
  boundaries_[b].assign(elements, std::numeric_limits<float>::quiet_NaN());
  return std::as_writable_bytes(std::span(boundaries_[b]));
}

void NumberBatch::take_boundary(std::size_t b) { look_at_boundary(b); }

}  // namespace tandem::sim_test
