#include "engine/run/bad_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "actors/kernels/finite.hpp"

namespace tandem {
namespace {

constexpr std::uint64_t kNowhere = std::numeric_limits<std::uint64_t>::max();

/// The place of the activation among all that the step computes, in the order of computing.
std::uint64_t place_of(const TrainStep::Bad& bad, std::size_t segments) {
  const auto& [segment, phase] = bad.activation;
  const bool forward = phase == Phase::kForward;
  return (bad.micro_step * 2 + (forward ? 0 : 1)) * segments +
         (forward ? segment : segments - 1 - segment);
}

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

/// Where the first activation of all ranks' that is not finite is, in the order of computing;
/// empty: nowhere, or the step did not look for it.
Task<std::string> bad_activation(const RankLayout* layout, const TrainStep* step, AllRanks* ranks,
                                 std::size_t micro_batches) {
  const std::vector<SegmentSpec>& segments = layout->model.segments;
  const auto& bad = step->bad_activation();
  const std::vector<std::uint64_t> of_ranks =
      co_await ranks->values(std::vector{bad ? place_of(*bad, segments.size()) : kNowhere});
  const auto first = std::ranges::min_element(of_ranks);
  if (*first == kNowhere) {
    co_return "";
  }
  const std::size_t place = *first % segments.size();
  const std::size_t pass = *first / segments.size();
  const bool forward = pass % 2 == 0;
  const std::string& name = segments[forward ? place : segments.size() - 1 - place].name;
  co_return fmt::format("{} {}, in the {} of micro-batch {} of {} on rank {}",
                        forward ? "the output of" : "the gradient of the input of", name,
                        forward ? "forward" : "backward", pass / 2 + 1, micro_batches,
                        first - of_ranks.begin());
}

}  // namespace

Task<std::string> cause_of_bad_state(const Rank* rank, TrainStep* step, AllRanks* ranks,
                                     BadStep bad) {
  const std::string weight = co_await bad_weight(&rank->layout(), step);
  const std::string activation =
      co_await bad_activation(&rank->layout(), step, ranks, bad.micro_batches);
  if (!weight.empty()) {
    co_return fmt::format("the weights of {} are not finite", weight);
  }
  if (!activation.empty()) {
    co_return fmt::format("all weights are finite, and what first is not is {}", activation);
  }
  if (!std::isfinite(bad.loss)) {
    co_return fmt::format("all weights are finite, and a forward with them gives the loss {}",
                          bad.loss);
  }
  co_return fmt::format(
      "all weights and the loss, {}, are finite; of the gradients that of {} is the first, in the "
      "model's order, that is not",
      bad.loss, bad.gradient);
}

}  // namespace tandem
