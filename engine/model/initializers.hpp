// engine/model/initializers.hpp — the first values of parameters, as pure functions of a seed, a
// name and an element's index.
//
// So each rank draws only the elements that it owns, and a model starts with the same bits on any
// number of ranks. Any thread.
//
//   model.source = initial_values(1, [](const ParameterSpec& parameter) {
//     return parameter.shape.size() == 1 ? init::zeros() : init::kaiming_uniform();
//   });
#pragma once

#include <cstdint>
#include <functional>

#include "engine/types/model.hpp"

namespace tandem {

/// Fills out[0, end - begin) with the elements [begin, end) of a parameter.
using Initializer = std::function<void(const ParameterSpec& parameter, std::uint64_t seed,
                                       std::int64_t begin, std::int64_t end, float* out)>;

namespace init {

[[nodiscard]] Initializer constant(float value);
[[nodiscard]] Initializer zeros();
[[nodiscard]] Initializer ones();
/// In [low, high).
[[nodiscard]] Initializer uniform(double low, double high);
[[nodiscard]] Initializer normal(double deviation, double mean = 0);

// For matrices [out, in] and kernels [out, in, ...], by torch.nn.init's formulas. `gain` is sqrt(2)
// before a ReLU; kaiming_uniform(1 / sqrt(3)) is within 1 / sqrt(fan-in), as torch's layers start.
[[nodiscard]] Initializer kaiming_uniform(double gain = 1.4142135623730951);
[[nodiscard]] Initializer kaiming_normal(double gain = 1.4142135623730951);
[[nodiscard]] Initializer xavier_uniform(double gain = 1);
[[nodiscard]] Initializer xavier_normal(double gain = 1);

}  // namespace init

/// Returns a model's source, which fills each parameter with the initializer that `of` returns for
/// it.
[[nodiscard]] ParameterSource initial_values(
    std::uint64_t seed, std::function<Initializer(const ParameterSpec& parameter)> of);

}  // namespace tandem
