#include "engine/model/model_check.hpp"

#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

void check_segment(const Model& model, const SegmentSpec& segment) {
  if (segment.run == nullptr) {
    throw user_error("model", "segment {} has nothing to run; set SegmentSpec::run", segment.name);
  }
  if (segment.weights.empty()) {
    throw user_error("model",
                     "segment {} has no weights; make it a part of the one before or "
                     "behind it",
                     segment.name);
  }
  for (const WeightRef& ref : segment.weights) {
    if (ref.unit >= model.units.size()) {
      throw user_error("model",
                       "segment {} uses a weight of unit {}, and the last unit is {}; "
                       "correct its WeightRef",
                       segment.name, ref.unit, static_cast<std::int64_t>(model.units.size()) - 1);
    }
    const UnitSpec& unit = model.units[ref.unit];
    if (ref.parameter >= unit.parameters.size()) {
      throw user_error("model",
                       "segment {} uses parameter {} of unit {}, whose last one is {}; "
                       "correct its WeightRef",
                       segment.name, ref.parameter, unit.name,
                       static_cast<std::int64_t>(unit.parameters.size()) - 1);
    }
  }
}

}  // namespace

void check_model(const Model& model) {
  if (model.segments.empty()) {
    throw user_error("model",
                     "the model has no segments; Sequential (engine/model/sequential.hpp) "
                     "makes one of layers");
  }
  std::set<std::string_view> names;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (!names.insert(parameter.name).second) {
        throw user_error("model", "two parameters are called {}; give each its own name",
                         parameter.name);
      }
      if (parameter.numel() < 1) {
        throw user_error("model", "parameter {} has the shape [{}], without elements",
                         parameter.name, fmt::join(parameter.shape, ", "));
      }
    }
  }
  for (const SegmentSpec& segment : model.segments) {
    check_segment(model, segment);
  }
  if (!model.source) {
    throw user_error("model",
                     "the model has no source of initial values; set Model::source "
                     "(initial_values() of engine/model/initializers.hpp)");
  }
}

}  // namespace tandem
