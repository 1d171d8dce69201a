// tests/support/toy/resumed.hpp — runs of the toy model that end and go on: batches follow from the
// step's number, so that a resumed run sees those of one that nothing cut off.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.hpp"
#include "tests/support/toy/training.hpp"

namespace tandem::toy {

inline std::vector<Batch> batches_of(const Engine& engine, const Setting& setting,
                                     std::int64_t step) {
  std::vector<Batch> batches;
  for (int a = 0; a < setting.accumulation; ++a) {
    batches.push_back(toy::batch(
        static_cast<int>((step * setting.accumulation + a) * engine.world_size() + engine.rank())));
  }
  return batches;
}

inline void take_weights(Engine& engine, TrainingRun& run) {
  run.weights.clear();
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    run.weights.emplace_back(values.begin(), values.end());
  });
}

/// Steps up to `last`; `after_step` may save.
template <class AfterStep>
TrainingRun go_on(Engine& engine, const Setting& setting, std::int64_t last, AfterStep after_step) {
  TrainingRun run;
  while (engine.global_steps() < last) {
    const StepResult result = engine.train_step(batches_of(engine, setting, engine.global_steps()));
    run.losses.push_back(result.loss);
    const double norm = result.verdict.norm.value;
    run.norms.push_back(std::isnan(norm) ? -1 : norm);  // NaN is not equal to itself
    run.scales.push_back(result.loss_scale);
    after_step(result);
  }
  take_weights(engine, run);
  return run;
}

inline TrainingRun go_on(Engine& engine, const Setting& setting, std::int64_t last) {
  return go_on(engine, setting, last, [](const StepResult&) {});
}

/// Returns the part of `whole` from step `from` on.
inline TrainingRun rest_of(const TrainingRun& whole, std::int64_t from) {
  TrainingRun rest = whole;
  for (std::vector<double>* list : {&rest.losses, &rest.norms, &rest.scales}) {
    list->erase(list->begin(), list->begin() + from);
  }
  return rest;
}

}  // namespace tandem::toy
