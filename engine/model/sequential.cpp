#include "engine/model/sequential.hpp"

#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

class LayersOfSegment : public Segment {
 public:
  LayersOfSegment(std::vector<Layer> layers, bool first, LossFunction loss)
      : layers_(std::move(layers)), first_(first), loss_(std::move(loss)) {}

  at::Tensor forward(const SegmentContext& context, const at::Tensor& input) const override {
    at::Tensor x = first_ ? context.batch.inputs : input;
    if (first_ && x.is_floating_point()) {
      x = x.to(context.weights.front()->value.scalar_type());
    }
    std::span<Weight* const> left = context.weights;
    for (const Layer& layer : layers_) {
      const std::size_t own = layer.parameters.size();
      x = layer.forward({.batch = context.batch, .weights = left.first(own)}, x);
      left = left.subspan(own);
    }
    if (!loss_) {
      return x;
    }
    x = x.to(at::kFloat);
    return context.head_output == HeadOutput::kLogits ? x : loss_(x, context.batch);
  }

 private:
  std::vector<Layer> layers_;
  bool first_;
  LossFunction loss_;  // the last segment's
};

struct Known {
  WeightRef at;
  const LayerParameter* parameter;
};
using KnownByName = std::map<std::string, Known>;

/// The parameter that this one is.
WeightRef tied(const KnownByName& known, const LayerParameter& parameter, const std::string& name) {
  const auto other = known.find(parameter.same_as);
  if (other == known.end()) {
    throw user_error("model",
                     "{} is to be the same as {}, and no segment before it has that one; "
                     "give the full name, SEGMENT.PARAMETER",
                     name, parameter.same_as);
  }
  if (other->second.parameter->shape != parameter.shape) {
    throw user_error("model", "{} is to be the same as {}, and their shapes are [{}] and [{}]",
                     name, parameter.same_as, fmt::join(parameter.shape, ", "),
                     fmt::join(other->second.parameter->shape, ", "));
  }
  return other->second.at;
}

}  // namespace

Sequential& Sequential::add(std::string segment, std::vector<Layer> layers) {
  parts_.push_back({std::move(segment), std::move(layers)});
  return *this;
}

Model Sequential::build(LossFunction loss) const {
  Model model;
  KnownByName known;
  auto initial = std::make_shared<std::map<std::string, Initializer>>();
  for (const Part& part : parts_) {
    UnitSpec unit{.name = part.name};
    SegmentSpec segment{.name = part.name};
    const std::size_t number = model.units.size();
    for (const Layer& layer : part.layers) {
      for (const LayerParameter& parameter : layer.parameters) {
        const std::string name =
            layer.name.empty() ? fmt::format("{}.{}", part.name, parameter.name)
                               : fmt::format("{}.{}.{}", part.name, layer.name, parameter.name);
        segment.cost.uses.push_back(layer.uses);
        if (!parameter.same_as.empty()) {
          segment.weights.push_back(tied(known, parameter, name));
          continue;
        }
        const WeightRef at{.unit = number, .parameter = unit.parameters.size()};
        if (!known.emplace(name, Known{at, &parameter}).second) {
          throw user_error("model",
                           "two parameters are called {}; name the layers of segment {}: "
                           "linear(...).named(\"up\")",
                           name, part.name);
        }
        unit.parameters.push_back({.name = name,
                                   .shape = parameter.shape,
                                   .group = parameter.group,
                                   .frozen = parameter.frozen});
        segment.weights.push_back(at);
        initial->emplace(name, parameter.initial ? parameter.initial : init::zeros());
      }
    }
    if (segment.weights.empty()) {
      throw user_error("model",
                       "segment {} has no parameters; put its layers into the one before "
                       "or behind it",
                       part.name);
    }
    const bool last = &part == &parts_.back();
    segment.run = std::make_shared<LayersOfSegment>(part.layers, &part == &parts_.front(),
                                                    last ? loss : LossFunction());
    if (!unit.parameters.empty()) {
      model.units.push_back(std::move(unit));
    }
    model.segments.push_back(std::move(segment));
  }
  model.source = initial_values(
      seed_, [initial](const ParameterSpec& parameter) { return initial->at(parameter.name); });
  return model;
}

}  // namespace tandem
