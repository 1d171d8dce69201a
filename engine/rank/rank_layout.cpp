#include "engine/rank/rank_layout.hpp"

#include <algorithm>
#include <utility>

#include "actors/kernels/update/state_memory.hpp"
#include "engine/layout/muon_matrices.hpp"
#include "engine/layout/update_config.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

RankLayout::RankLayout(const Model& model_in, RankShape shape_in, const ZeroConfig& zero,
                       std::uint32_t world, std::uint32_t rank)
    : model(model_in),
      shape(std::move(shape_in)),
      sharding(Sharding::of(model, zero, world, rank)),
      classes(SlotClasses::of(model, sharding)),
      sizes(RankSizes::of(model, shape, sharding, classes)) {
  require_state_layout(shape.update, shape.engine.state_layout, shape.type);
  TANDEM_CHECK(!updates_jointly(shape.update.kind) || !updates_on_device(),
               "what is updated jointly was planned on the host");
  for (const UnitSpec& unit : model.units) {
    parameters.push_back(ParameterLayout::of(unit, sharding));
  }
}

std::int64_t RankLayout::parameter_count() const {
  std::int64_t count = 0;
  for (const UnitSpec& unit : model.units) {
    count += unit.numel();
  }
  return count;
}

bool RankLayout::updates_on_device() const {
  return std::ranges::any_of(
      sizes.units, [](const UnitSizes& unit) { return tandem::updates_on_device(unit.placement); });
}

std::size_t RankLayout::slice_begin(std::size_t unit) const {
  return parameters[unit].block.shard_begin(sharding.slice(model.units[unit]));
}

ParameterShard::Options RankLayout::shard_options(std::size_t unit) const {
  return {.name = "shard " + model.units[unit].name,
          .unit = static_cast<std::uint32_t>(unit),
          .layout = parameters[unit].gathered,
          .type = shape.type};
}

GradientBucket::Options RankLayout::bucket_options(std::size_t unit) const {
  const UnitSpec& spec = model.units[unit];
  return {.name = "bucket " + spec.name,
          .unit = static_cast<std::uint32_t>(unit),
          .layout = parameters[unit].gathered,
          .blocks = static_cast<std::uint32_t>(spec.ep_size),
          .first_element = slice_begin(unit),
          .accumulate_replicated = !sharding.is_sharded(spec),
          .block_type = shape.type,
          .accumulator_type = sizes.accumulator_type};
}

std::uint64_t RankLayout::first_element(std::size_t unit) const {
  auto begin = static_cast<std::uint64_t>(
      parameters[unit].position_of(static_cast<std::int64_t>(slice_begin(unit))));
  for (std::size_t before = 0; before < unit; ++before) {
    const ParameterLayout& layout = parameters[before];
    const auto elements = static_cast<std::uint64_t>(
        layout.position_of(static_cast<std::int64_t>(layout.block.padded_elements)));
    begin += (elements + kScaleGroup - 1) / kScaleGroup * kScaleGroup;
  }
  return begin;
}

bool RankLayout::has_array(const ParameterSpec& parameter, std::uint32_t array) const {
  if (array == 0 || parameter.frozen) {
    return array == 0;
  }
  return array == 1 || shape.update.kind != OptimizerKind::kMuon || !is_orthogonalized(parameter);
}

std::vector<CpuOptimizer::Range> RankLayout::update_ranges(std::size_t unit) const {
  const auto first = static_cast<std::int64_t>(slice_begin(unit));
  const std::int64_t last = first + static_cast<std::int64_t>(slice_elements(unit));
  const OptimizerKind kind = shape.update.kind;
  std::vector<CpuOptimizer::Range> ranges;
  for (std::size_t i = 0; i < model.units[unit].parameters.size(); ++i) {
    const ParameterSpec& parameter = model.units[unit].parameters[i];
    const std::int64_t offset = parameters[unit].offsets[i];
    const std::int64_t begin = std::max(offset, first);
    const std::int64_t end = std::min(offset + parameter.numel(), last);
    if (parameter.frozen || begin >= end) {
      continue;
    }
    const CpuOptimizer::Range range = {.begin = static_cast<std::size_t>(begin - first),
                                       .end = static_cast<std::size_t>(end - first),
                                       .group = kind == OptimizerKind::kLamb ? i
                                                : kind == OptimizerKind::kMuon
                                                    ? muon_group(parameter)
                                                    : parameter.group};
    if (!ranges.empty() && ranges.back().end == range.begin && ranges.back().group == range.group) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  for (const CpuOptimizer::Range& range : ranges) {
    TANDEM_CHECK_LE(range.end, slice_elements(unit), "an update stays in the rank's slice");
    if (shape.engine.state_layout == StateLayout::kInt8 && range.begin % kScaleGroup != 0) {
      throw user_error("engine",
                       "optimizer_state is int8, whose blocks are {} elements, and in unit {} a "
                       "parameter group or what follows a frozen parameter begins at element {}; "
                       "use bf16",
                       kScaleGroup, model.units[unit].name, range.begin);
    }
  }
  return ranges;
}

std::int64_t RankLayout::flat_begin(std::size_t unit) const {
  std::int64_t begin = 0;
  for (std::size_t before = 0; before < unit; ++before) {
    begin += static_cast<std::int64_t>(parameters[before].block.padded_elements);
  }
  return begin;
}

std::string RankLayout::parameter_at_flat(std::int64_t position) const {
  TANDEM_CHECK(position >= 0 && position < flat_begin(parameters.size()),
               "a position lies in one of the units");
  std::size_t unit = 0;
  while (position >= static_cast<std::int64_t>(parameters[unit].block.padded_elements)) {
    position -= static_cast<std::int64_t>(parameters[unit++].block.padded_elements);
  }
  const std::vector<std::int64_t>& offsets = parameters[unit].offsets;
  const auto after = std::ranges::upper_bound(offsets, position);
  return model.units[unit].parameters[static_cast<std::size_t>(after - offsets.begin()) - 1].name;
}

void RankLayout::visit_parameters(
    std::size_t unit, std::span<const float> block,
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const {
  for (std::size_t i = 0; i < model.units[unit].parameters.size(); ++i) {
    const ParameterSpec& parameter = model.units[unit].parameters[i];
    TANDEM_CHECK_LE(static_cast<std::size_t>(parameters[unit].offsets[i] + parameter.numel()),
                    block.size(), "a unit's block holds its parameters");
    visit(parameter, block.subspan(static_cast<std::size_t>(parameters[unit].offsets[i]),
                                   static_cast<std::size_t>(parameter.numel())));
  }
}

}  // namespace tandem
