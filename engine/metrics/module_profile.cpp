#include "engine/metrics/module_profile.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "engine/metrics/flops.hpp"

namespace tandem {
namespace {

using Path = std::vector<std::string_view>;

/// The modules that a parameter lies in: all parts of its name but the last.
Path modules_of(std::string_view parameter) {
  Path path;
  for (std::size_t dot; (dot = parameter.find('.')) != std::string_view::npos;) {
    path.push_back(parameter.substr(0, dot));
    parameter.remove_prefix(dot + 1);
  }
  return path;
}

std::size_t common_length(const std::vector<Path>& paths) {
  std::size_t length = paths.empty() ? 0 : paths.front().size();
  for (const Path& path : paths) {
    const auto differs = std::ranges::mismatch(paths.front(), path).in1;
    length = std::min(length, static_cast<std::size_t>(differs - paths.front().begin()));
  }
  return length;
}

double forward_of(const SegmentShape& shape, std::span<const BatchExtents> batches) {
  double flops = 0;
  for (const BatchExtents& batch : batches) {
    flops += batch.share * forward_flops(shape, batch.rows, batch.length);
  }
  return flops;
}

ModuleProfile& part_of(ModuleProfile& whole, std::string_view name) {
  const auto found = std::ranges::find(whole.parts, name, &ModuleProfile::name);
  return found != whole.parts.end()
             ? *found
             : whole.parts.emplace_back(ModuleProfile{.name = std::string(name)});
}

/// Adds to the module at `path` below `root` and to all between them; not to `root` itself.
void add(ModuleProfile& root, std::span<const std::string_view> path, std::int64_t parameters,
         double flops) {
  ModuleProfile* at = &root;
  for (const std::string_view name : path) {
    at = &part_of(*at, name);
    at->parameters += parameters;
    at->forward_flops += flops;
  }
}

/// A module whose only content is one other is written as one: "model.norm".
void join_chains(ModuleProfile& module) {
  for (ModuleProfile& part : module.parts) {
    while (part.parts.size() == 1 && part.parts[0].parameters == part.parameters &&
           part.parts[0].forward_flops == part.forward_flops) {
      ModuleProfile inner = std::move(part.parts[0]);
      inner.name = part.name + "." + inner.name;
      part = std::move(inner);
    }
    join_chains(part);
  }
}

class SegmentProfiler {
 public:
  SegmentProfiler(const Model& model, std::size_t segment, std::span<const BatchExtents> batches)
      : model_(model), spec_(model.segments[segment]), segment_(segment), batches_(batches) {
    for (const WeightRef& ref : spec_.weights) {
      paths_.push_back(modules_of(model.units[ref.unit].parameters[ref.parameter].name));
    }
    common_ = common_length(paths_);
    for (std::size_t weight = 0; weight < paths_.size(); ++weight) {
      if (is_expert(weight)) {
        expert_elements_ += multiplied_elements(model, segment, weight);
      }
    }
  }

  /// `seen`: parameters of segments before.
  ModuleProfile profile(std::set<std::pair<std::size_t, std::size_t>>& seen) {
    const SegmentShape shape = segment_shape(model_, segment_);
    ModuleProfile made{.name = spec_.name, .forward_flops = forward_of(shape, batches_)};
    bool attends = shape.attention_width > 0;
    for (std::size_t weight = 0; weight < paths_.size(); ++weight) {
      const WeightRef& ref = spec_.weights[weight];
      const std::int64_t parameters = seen.emplace(ref.unit, ref.parameter).second
                                          ? model_.units[ref.unit].parameters[ref.parameter].numel()
                                          : 0;
      made.parameters += parameters;
      const auto inside = std::span(paths_[weight]).subspan(common_);
      add(made, inside, parameters,
          share(weight) *
              forward_of({.weights = multiplied_elements(model_, segment_, weight)}, batches_));
      const auto attention = std::ranges::find(inside, spec_.cost.attention_module);
      if (attends && attention != inside.end()) {
        attends = false;
        add(made, inside.first(static_cast<std::size_t>(attention - inside.begin()) + 1), 0,
            forward_of({.attention_width = shape.attention_width,
                        .attention_window = shape.attention_window},
                       batches_));
      }
    }
    join_chains(made);
    return made;
  }

 private:
  [[nodiscard]] bool is_expert(std::size_t weight) const {
    return std::ranges::find(paths_[weight], spec_.cost.experts_module) != paths_[weight].end();
  }
  /// The part of an expert's weight that a token is multiplied with, on the mean.
  [[nodiscard]] double share(std::size_t weight) const {
    return is_expert(weight) && expert_elements_ > 0
               ? static_cast<double>(expert_elements_ - spec_.cost.idle_weights) /
                     static_cast<double>(expert_elements_)
               : 1;
  }

  const Model& model_;
  const SegmentSpec& spec_;
  std::size_t segment_;
  std::span<const BatchExtents> batches_;
  std::vector<Path> paths_;  // [weight]
  std::size_t common_ = 0;   // modules that all of its parameters lie in
  std::int64_t expert_elements_ = 0;
};

}  // namespace

ModuleProfile profile_modules(const Model& model, std::span<const BatchExtents> batches,
                              std::span<const SegmentSeconds> seconds, bool recomputes) {
  ModuleProfile whole{.name = "model", .forward_s = 0, .backward_s = 0};
  std::set<std::pair<std::size_t, std::size_t>> seen;
  for (const UnitSpec& unit : model.units) {
    whole.parameters += unit.numel();  // also what no segment uses
  }
  for (std::size_t s = 0; s < model.segments.size(); ++s) {
    ModuleProfile segment = SegmentProfiler(model, s, batches).profile(seen);
    segment.forward_s = seconds[s].forward;
    segment.backward_s = seconds[s].backward;
    const bool again = recomputes && s + 1 < model.segments.size();
    for (const BatchExtents& batch : batches) {
      segment.backward_flops +=
          batch.share * backward_flops(segment_shape(model, s), batch.rows, batch.length, again);
    }
    whole.forward_flops += segment.forward_flops;
    whole.backward_flops += segment.backward_flops;
    *whole.forward_s += *segment.forward_s;
    *whole.backward_s += *segment.backward_s;
    whole.parts.push_back(std::move(segment));
  }
  return whole;
}

}  // namespace tandem
