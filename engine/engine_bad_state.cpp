// Why a run whose steps are all skipped ends: the weight, the activation or the gradient that is
// not finite.
//
// A gradient that is not finite makes those of all units before it so, too; what was computed first
// is nearer to the cause. Only the last step that may be skipped looks for it.
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/kernels/finite.hpp"
#include "engine/engine_impl.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

/// The first parameter, in the model's order, with a weight that is NaN or infinite; empty: none.
Task<std::string> bad_weight(const RankLayout* layout, TrainStep* step) {
  std::string name;
  const auto look = [&](const ParameterSpec& parameter, std::span<const float> values) {
    if (name.empty() &&
        first_not_finite(values.data(), DType::kF32, values.size()) < values.size()) {
      name = parameter.name;
    }
  };
  co_await step->drain();
  for (std::size_t unit = 0; unit < layout->model.units.size(); ++unit) {
    layout->visit_parameters(unit, co_await step->whole_master(unit), look);
  }
  co_return name;
}

}  // namespace

/// Where the first activation of all ranks' that is not finite is, in the order of computing;
/// empty: nowhere, or the step did not look for it.
Task<std::string> Engine::Impl::bad_activation() {
  const std::vector<SegmentSpec>& segments = rank.layout().model.segments;
  // The segment that is computed first has the lowest number.
  std::uint64_t mine = std::numeric_limits<std::uint64_t>::max();
  if (const auto& bad = step.bad_activation()) {
    const auto& [segment, phase] = bad->activation;
    const bool forward = phase == Phase::kForward;
    mine = (bad->micro_step * 2 + (forward ? 0 : 1)) * segments.size() +
           (forward ? segment : segments.size() - 1 - segment);
  }
  std::vector<std::byte> bytes(sizeof(mine));
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  const std::vector<std::byte> all = co_await of_all_ranks(std::move(bytes));
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  std::size_t on_rank = 0;
  for (std::size_t r = 0; r * sizeof(first) < all.size(); ++r) {
    std::uint64_t there = 0;
    std::memcpy(&there, all.data() + r * sizeof(there), sizeof(there));
    if (there < first) {
      first = there;
      on_rank = r;
    }
  }
  if (first == std::numeric_limits<std::uint64_t>::max()) {
    co_return "";
  }
  const std::size_t place = first % segments.size();
  const std::size_t pass = first / segments.size();
  const bool forward = pass % 2 == 0;
  const std::string& name = segments[forward ? place : segments.size() - 1 - place].name;
  co_return fmt::format("{} {}, in the {} of micro-batch {} of {} on rank {}",
                        forward ? "the output of" : "the gradient of the input of", name,
                        forward ? "forward" : "backward", pass / 2 + 1, step_micro_batches,
                        on_rank);
}

Task<Error> Engine::Impl::bad_state(double loss, std::string bad_gradient) {
  const std::string weight = co_await bad_weight(&rank.layout(), &step);
  const std::string activation = co_await bad_activation();
  const std::string cause =
      !weight.empty() ? fmt::format("the weights of {} are not finite", weight)
      : !activation.empty()
          ? fmt::format("all weights are finite, and what first is not is {}", activation)
      : !std::isfinite(loss)
          ? fmt::format("all weights are finite, and a forward with them gives the loss {}", loss)
          : fmt::format(
                "all weights and the loss, {}, are finite; of the gradients that of {} is "
                "the first, in the model's order, that is not",
                loss, bad_gradient);
  co_return failure(ExitCode::kBadState, "train",
                    "the gradient was not finite for {} steps in a row (limit {}): {}; lower the "
                    "learning rate, or look at the data",
                    skipped_in_a_row, skips_allowed(), cause);
}

}  // namespace tandem
