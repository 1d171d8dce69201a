#include "engine/layout/parameter_layout.hpp"

#include "runtime/util/check.hpp"

namespace tandem {

ParameterLayout ParameterLayout::of(const UnitSpec& unit, const Sharding& sharding) {
  ParameterLayout layout{.block = sharding.layout_of(unit),
                         .gathered = sharding.gathered_layout_of(unit)};
  const std::int64_t stride = expert_stride(unit);
  const std::int64_t runs = unit.experts / unit.ep_size;  // of a slice
  layout.part_elements = unit.experts == 1 ? unit.numel() : runs * stride;
  const auto part_stride = static_cast<std::int64_t>(layout.gathered.padded_elements);
  TANDEM_CHECK_EQ(unit.parameters.size() % static_cast<std::size_t>(unit.experts), std::size_t{0},
                  "every expert has the same parameters");
  const std::size_t of_run = unit.parameters.size() / static_cast<std::size_t>(unit.experts);
  std::int64_t next = 0;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    if (i % of_run == 0) {
      const auto run = static_cast<std::int64_t>(i / of_run);
      next = run / runs * part_stride + run % runs * stride;
    }
    layout.offsets.push_back(next);
    next += unit.parameters[i].numel();
    TANDEM_CHECK_LE(next, static_cast<std::int64_t>(layout.block.padded_elements),
                    "a parameter lies in its unit's block");
  }
  return layout;
}

std::int64_t ParameterLayout::position_of(std::int64_t element) const noexcept {
  const auto part_stride = static_cast<std::int64_t>(gathered.padded_elements);
  return part_stride == 0 ? 0 : element / part_stride * part_elements + element % part_stride;
}

}  // namespace tandem
