#include "engine/step/directions.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

Directions::Directions(Rank& rank, Gatherer& gatherer, CommunicatorOrders& reductions,
                       std::vector<std::uint32_t> order)
    : rank_(rank),
      layout_(rank.layout()),
      gatherer_(gatherer),
      reductions_(reductions),
      kind_(layout_.shape.update.kind) {
  if (!of_any()) {
    return;
  }
  const std::size_t units = layout_.model.units.size();
  deadlines_.resize(units);
  for (std::size_t at = 0; at < order.size(); ++at) {
    deadlines_[order[at]] = at;
  }
  for (std::size_t unit = 0; unit < units; ++unit) {
    ranges_.push_back(layout_.update_ranges(unit));
    directions_.push_back(Direction::of(
        ranges_.back(), reinterpret_cast<float*>(rank.memory().unit(unit).accumulator.host()),
        CpuOptimizer::Options().chunk_elements));
    const std::size_t parameters = layout_.model.units[unit].parameters.size();
    direction_steps_.emplace_back(of_lamb() ? parameters : 0);
    lamb_steps_.emplace_back(of_lamb() ? parameters : 0);
  }
  // Another rank's slice of a unit may have a range where this one's has none: what is asked of all
  // ranks goes by the unit.
  std::erase_if(order, [this](std::uint32_t unit) { return layout_.model.units[unit].frozen(); });
  order_ = std::move(order);
  matrices_.resize(units);
  if (of_muon()) {
    deal_out_matrices();
  }
}

void Directions::deal_out_matrices() {
  std::vector<double> load(layout_.sharding.world);
  for (const std::uint32_t unit : order_) {
    std::vector<Matrix>& all = matrices_[unit];
    const UnitSpec& spec = layout_.model.units[unit];
    for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
      if (!is_orthogonalized(spec.parameters[i])) {
        continue;
      }
      const MuonMatrices matrices = matrices_of(spec.parameters[i]);
      const auto offset = static_cast<std::size_t>(layout_.parameters[unit].offsets[i]);
      for (std::size_t k = 0; k < matrices.count; ++k) {
        all.push_back({.offset = offset + k * matrices.shape.elements(),
                       .shape = matrices.shape,
                       .owner = 0});
      }
    }
    std::ranges::stable_sort(all, std::ranges::greater(),
                             [](const Matrix& matrix) { return matrix.shape.cost(); });
    for (Matrix& matrix : all) {
      const auto least = std::ranges::min_element(load);
      *least += matrix.shape.cost();
      matrix.owner = static_cast<std::uint32_t>(least - load.begin());
    }
    std::ranges::sort(all, {}, &Matrix::offset);
  }
}

Task<> Directions::direct(std::uint32_t unit, const DirectionStep* steps) {
  if (!ranges_[unit].empty()) {
    co_await rank_.optimizer().address().ask(DirectUnit{.unit = unit,
                                                        .steps = steps,
                                                        .direction = &directions_[unit],
                                                        .deadline = deadlines_[unit]});
  }
}

// ---- LAMB ----

Task<> Directions::find_lamb(std::vector<UpdateConfig> groups, std::int64_t applied_step,
                             double gradient_scale) {
  std::vector<ExactSum> sums;      // of each parameter: of the weights, of the direction
  std::vector<ExactSum> of_slice;  // those of units of which this rank has a slice
  for (const std::uint32_t unit : order_) {
    const std::vector<ParameterSpec>& parameters = layout_.model.units[unit].parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      direction_steps_[unit][i] = direction_step(groups[parameters[i].group], gradient_scale);
    }
    co_await direct(unit, direction_steps_[unit].data());
    std::vector<ExactSum>& into = is_divided(unit) ? of_slice : sums;
    const std::size_t first = into.size();
    into.resize(first + 2 * parameters.size());
    for (const DirectionPiece& piece : directions_[unit].pieces) {
      const std::size_t parameter = ranges_[unit][piece.range].group;
      into[first + 2 * parameter].merge(piece.weights);
      into[first + 2 * parameter + 1].merge(piece.directions);
    }
  }
  co_await add_over_ranks(&of_slice);
  const ExactSum* next_whole = sums.data();
  const ExactSum* next_of_slice = of_slice.data();
  for (const std::uint32_t unit : order_) {
    const std::vector<ParameterSpec>& parameters = layout_.model.units[unit].parameters;
    const ExactSum*& next = is_divided(unit) ? next_of_slice : next_whole;
    for (std::size_t i = 0; i < parameters.size(); ++i, next += 2) {
      const UpdateConfig& group = groups[parameters[i].group];
      lamb_steps_[unit][i] =
          UpdateStep::make(group, applied_step, trust_ratio(group, next[0], next[1]));
    }
  }
}

Task<> Directions::add_over_ranks(std::vector<ExactSum>* sums) {
  const std::size_t world = layout_.sharding.world;
  if (world == 1) {
    co_return;
  }
  constexpr std::size_t kAtOnce = kExchangeBytes / (ExactSum::kLimbs * sizeof(std::uint64_t));
  for (std::size_t first = 0; first < sums->size(); first += kAtOnce) {
    const std::span<ExactSum> some =
        std::span(*sums).subspan(first, std::min(kAtOnce, sums->size() - first));
    std::vector<std::byte> mine;
    for (ExactSum& sum : some) {
      const auto limbs = sum.limbs();
      const auto bytes = std::as_bytes(std::span(limbs));
      mine.insert(mine.end(), bytes.begin(), bytes.end());
    }
    const std::vector<std::byte> all = co_await rank_.collectives().address().ask(
        Exchange{reductions_[kWorld]++, std::move(mine)});
    TANDEM_CHECK_EQ(all.size(), world * some.size() * ExactSum::kLimbs * sizeof(std::uint64_t),
                    "each rank tells all of its sums");
    for (std::size_t i = 0; i < some.size(); ++i) {
      some[i] = {};
      for (std::size_t r = 0; r < world; ++r) {
        std::array<std::uint64_t, ExactSum::kLimbs> limbs;
        std::memcpy(limbs.data(), all.data() + (r * some.size() + i) * sizeof(limbs),
                    sizeof(limbs));
        some[i].merge(ExactSum::from_limbs(limbs));
      }
    }
  }
}

// ---- Muon ----

Task<double> Directions::find_muon(std::vector<UpdateConfig> groups, double gradient_scale) {
  muon_steps_.resize(groups.size());
  std::ranges::transform(groups, muon_steps_.begin(), [gradient_scale](const UpdateConfig& group) {
    return direction_step(group, gradient_scale);
  });
  for (const std::uint32_t unit : order_) {
    if (!matrices_[unit].empty()) {
      co_await direct(unit, muon_steps_.data());
      co_await orthogonalize_unit(unit);
    }
  }
  co_return co_await muon_norm(gradient_scale);
}

// Each element of the block has its result on one rank, and is -0 on the others: x + -0 is x, in
// every bit and any order of additions.
Task<> Directions::orthogonalize_unit(std::size_t unit) {
  float* const values = directions_[unit].values;
  const bool is_alone = layout_.sharding.world == 1;
  float* const block = is_alone ? values : rank_.memory().direction_block();
  const std::size_t elements = layout_.slice_elements(unit);
  const auto number = static_cast<std::uint32_t>(unit);
  const auto collectives = rank_.collectives().address();
  TANDEM_CHECK(block != nullptr, "the plan has room for the directions of a whole unit");
  if (!is_alone) {
    co_await collectives.ask(AllGather{gatherer_.take_order(),
                                       {.shard = reinterpret_cast<const std::byte*>(values),
                                        .block = reinterpret_cast<std::byte*>(block),
                                        .shard_bytes = elements * sizeof(float),
                                        .is_replicated = !is_divided(unit)},
                                       number});
  }
  for (const Matrix& matrix : matrices_[unit]) {
    if (matrix.owner == layout_.sharding.rank) {
      co_await orthogonalize(&rank_.optimizer_pool(), block + matrix.offset, matrix.shape,
                             rank_.memory().direction_scratch());
    }
  }
  if (is_alone) {
    co_return;
  }
  co_await clear_others_part(unit, block);
  const ReduceArguments sum{.block = reinterpret_cast<const std::byte*>(block),
                            .accumulator = values,
                            .shard_elements = elements};
  if (const std::uint64_t order = reductions_[kWorld]++; is_divided(unit)) {
    co_await collectives.ask(ReduceScatterAdd{order, sum, number});
  } else {
    co_await collectives.ask(AllReduceAdd{order, sum, number});
  }
}

// Elements outside of every matrix are the same on all ranks; rank 0 keeps them.
Task<> Directions::clear_others_part(std::size_t unit, float* block) {
  const std::vector<Matrix>* matrices = &matrices_[unit];
  const std::uint32_t rank = layout_.sharding.rank;
  const std::size_t chunk = CpuOptimizer::Options().chunk_elements;
  const std::size_t elements =
      (is_divided(unit) ? layout_.sharding.world : 1) * layout_.slice_elements(unit);
  const auto clear_chunk = [=](std::size_t i) {
    const std::size_t end = std::min((i + 1) * chunk, elements);
    std::size_t at = i * chunk;
    const auto clear_to = [&](std::size_t to, std::uint32_t owner) {
      to = std::clamp(to, at, end);
      std::fill(block + at, owner == rank ? block + at : block + to, -0.0F);
      at = to;
    };
    for (const Matrix& matrix : *matrices) {
      clear_to(matrix.offset, 0);
      clear_to(matrix.offset + matrix.shape.elements(), matrix.owner);
    }
    clear_to(end, 0);
  };
  co_await rank_.optimizer_pool().for_chunks((elements + chunk - 1) / chunk, clear_chunk,
                                             {.name = "Muon: clear others' part"});
}

Task<double> Directions::muon_norm(double gradient_scale) {
  std::vector<ExactSum> sums(2);  // of what is orthogonalized, and of the other gradients
  bool is_shared = false;
  for (const std::uint32_t unit : order_) {
    is_shared = is_shared || is_divided(unit);
  }
  for (const std::uint32_t unit : order_) {
    if (is_shared && !is_divided(unit) && layout_.sharding.rank != 0) {
      continue;  // the same on all ranks, and counted once
    }
    Direction& direction = directions_[unit];
    co_await rank_.optimizer_pool().for_chunks(
        direction.pieces.size(),
        [&direction](std::size_t i) { add_squares(direction, direction.pieces[i]); },
        {.name = "Muon: squares"});
    for (const DirectionPiece& piece : direction.pieces) {
      sums[ranges_[unit][piece.range].group % 2].merge(piece.directions);
    }
  }
  if (is_shared) {
    co_await add_over_ranks(&sums);
  }
  co_return std::sqrt(sums[0].value() + sums[1].value() * (gradient_scale * gradient_scale));
}

}  // namespace tandem
