#include "engine/rank.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/config/config.hpp"
#include "engine/segment_runner.hpp"
#include "runtime/machine.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kLoadChunkElements = 1 << 22;
constexpr std::size_t kGradientSlots = 2;  // one being filled, one being reduced

}  // namespace

/// fp32: the shard that is gathered is the master itself. 16 bits: a weight shard of its own, written by the optimizer.
struct Rank::Memory {
  HostBuffer master;
  HostBuffer exp_avg;
  HostBuffer exp_avg_sq;
  HostBuffer accumulator;
  HostBuffer weight;  // 16 bits only

  [[nodiscard]] std::byte* shard() const {
    return (weight.data() != nullptr ? weight : master).data();
  }
};

RankOptions RankOptions::from(const Config& config, const EngineOptions& options, DType type) {
  const int cores = machine::usable_cpus();
  RankOptions rank{
      .type = type,
      .micro_steps = static_cast<int>(std::max<std::int64_t>(1, config.batch.accumulation_steps)),
      .gather_slots = options.gather_slots};
  rank.compute_threads = options.compute_threads > 0 ? options.compute_threads : cores;
  const double share = config.zero.offload_optimizer.cpuadam_cores_perc;
  rank.optimizer_threads = options.optimizer_threads > 0
                               ? options.optimizer_threads
                               : std::max(1, static_cast<int>(std::lround(share * cores)));
  if (options.pin_optimizer) {
    const std::vector<int> usable = machine::affinity();
    const auto count = std::min(usable.size(), static_cast<std::size_t>(rank.optimizer_threads));
    rank.optimizer_cores.assign(usable.end() - static_cast<std::ptrdiff_t>(count), usable.end());
  }
  rank.optimizer_shares_cores = rank.compute_threads + rank.optimizer_threads > cores;
  return rank;
}

Rank::Rank(Model model, RankOptions options)
    : options_(std::move(options)),
      model_(std::move(model)),
      classes_(SlotClasses::of(model_, world_size())),
      loop_({.name = "rank 0"}),
      lane_(loop_, "compute"),
      optimizer_pool_(loop_, {.threads = options_.optimizer_threads,
                              .cores = options_.optimizer_cores,
                              .name = "adam",
                              .background = options_.optimizer_shares_cores}),
      link_pool_(loop_, {.threads = std::min(2, options_.compute_threads), .name = "link"}),
      data_pool_(loop_, {.threads = 1, .name = "data"}),
      backend_(link_pool_),
      scope_(loop_, "actors") {
  for (const UnitSpec& unit : model_.units) {
    layouts_.push_back(ParameterLayout::of(unit, world_size()));
    parameter_count_ += unit.numel();
  }
  allocate_shards();
  make_slot_pools();
  load_weights();
  make_actors();  // last: from here on there are tasks that stop() must end
}

Rank::~Rank() = default;

DType Rank::accumulator_type() const noexcept {
  return options_.micro_steps == 1 && world_size() == 1 ? options_.type : DType::kF32;
}

HostBuffer Rank::allocate(std::size_t bytes) {
  host_bytes_ += bytes;
  return HostBuffer(bytes);
}

void Rank::allocate_shards() {
  for (const ParameterLayout& layout : layouts_) {
    const std::size_t elements = layout.block.shard_elements;
    Memory& memory = memory_.emplace_back();
    memory.master = allocate(elements * sizeof(float));
    memory.exp_avg = allocate(elements * sizeof(float));
    memory.exp_avg_sq = allocate(elements * sizeof(float));
    memory.accumulator = allocate(elements * bytes_of(accumulator_type()));
    if (options_.type != DType::kF32) {
      memory.weight = allocate(elements * bytes_of(options_.type));
    }
  }
}

void Rank::make_slot_pools() {
  const auto shared_units = static_cast<std::size_t>(std::ranges::count(classes_.pool_of, 0U));
  if (options_.gather_slots > 0 &&
      static_cast<std::size_t>(options_.gather_slots) < classes_.min_shared_slots) {
    throw user_error(
        "engine",
        "gather_slots is {}, and a segment of this model holds {} units at a time; use "
        "at least {}",
        options_.gather_slots, classes_.min_shared_slots, classes_.min_shared_slots);
  }
  // Chosen: what one segment holds, and as much again gathered ahead of it.
  gather_slots_ = options_.gather_slots > 0 ? static_cast<std::size_t>(options_.gather_slots)
                                            : 2 * classes_.min_shared_slots + 1;
  gather_slots_ = std::max<std::size_t>(1, std::min(gather_slots_, shared_units));

  const auto add_pool = [&](std::vector<std::unique_ptr<SlotPool>>& pools, Name name,
                            std::size_t pool, std::size_t slots) {
    const std::size_t slot_bytes = classes_.slot_elements[pool] * bytes_of(options_.type);
    slot_memory_.push_back(allocate(slots * slot_bytes));
    pools.push_back(std::make_unique<SlotPool>(
        SlotPool::Options{.name = name,
                          .memory = slot_memory_.back().data(),
                          .slot_bytes = slot_bytes,
                          .plan = {.slots = slots, .max_in_flight = slots}}));
  };
  const std::size_t gradient_slots = std::max(kGradientSlots, classes_.min_shared_slots + 1);
  for (std::size_t pool = 0; pool < classes_.pools(); ++pool) {
    add_pool(gather_pools_, "gather slots", pool, pool == 0 ? gather_slots_ : 1);
    add_pool(gradient_pools_, "gradient slots", pool, pool == 0 ? gradient_slots : 1);
  }
}

void Rank::make_actors() {
  collectives_ = std::make_unique<Collectives>(Collectives::Options{.backend = &backend_});
  std::vector<CpuOptimizer::Unit> optimized;
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    const UnitLayout& block = layouts_[unit].block;
    const Memory& memory = memory_[unit];
    const std::size_t pool = classes_.pool_of[unit];
    units_.push_back(std::make_unique<Unit>(model_.units[unit], layouts_[unit], options_.type));
    shards_.push_back(std::make_unique<ParameterShard>(
        ParameterShard::Options{.name = "shard " + model_.units[unit].name,
                                .unit = static_cast<std::uint32_t>(unit),
                                .layout = block,
                                .type = options_.type,
                                .shard = memory.shard(),
                                .slots = gather_pools_[pool]->address(),
                                .collectives = collectives_->address()}));
    shard_list_.push_back(shards_.back().get());
    buckets_.push_back(std::make_unique<GradientBucket>(
        GradientBucket::Options{.name = "bucket " + model_.units[unit].name,
                                .layout = block,
                                .rank = static_cast<std::uint32_t>(rank()),
                                .block_type = options_.type,
                                .accumulator = memory.accumulator.data(),
                                .accumulator_type = accumulator_type(),
                                .slots = gradient_pools_[pool]->address(),
                                .collectives = collectives_->address()}));
    const bool casts_out = memory.weight.data() != nullptr;
    optimized.push_back({.buffers = {.master = memory.master.as<float>(),
                                     .exp_avg = memory.exp_avg.as<float>(),
                                     .exp_avg_sq = memory.exp_avg_sq.as<float>(),
                                     .gradient = memory.accumulator.data(),
                                     .gradient_type = accumulator_type(),
                                     .weight = casts_out ? memory.weight.data() : nullptr,
                                     .weight_type = options_.type},
                         .elements = block.shard_elements,
                         .shard = shards_.back()->address()});
  }
  optimizer_ = std::make_unique<CpuOptimizer>(
      CpuOptimizer::Options{.pool = &optimizer_pool_, .units = std::move(optimized)});

  for (std::size_t pool = 0; pool < classes_.pools(); ++pool) {
    gather_pools_[pool]->start(scope_);
    gradient_pools_[pool]->start(scope_);
  }
  collectives_->start(scope_);
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    shards_[unit]->start(scope_);
    buckets_[unit]->start(scope_);
  }
  optimizer_->start(scope_);
}

void Rank::load_weights() {
  struct Piece {
    const ParameterSpec* parameter;
    std::int64_t begin;
    std::int64_t end;
    float* out;
  };
  std::vector<Piece> pieces;
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    for (std::size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
      const ParameterSpec& parameter = model_.units[unit].parameters[i];
      float* base = memory_[unit].master.as<float>() + layouts_[unit].offsets[i];
      for (std::int64_t begin = 0; begin < parameter.numel(); begin += kLoadChunkElements) {
        const std::int64_t end = std::min(begin + kLoadChunkElements, parameter.numel());
        pieces.push_back({&parameter, begin, end, base + begin});
      }
    }
  }
  const auto load = [&](std::size_t i) {
    model_.source(*pieces[i].parameter, pieces[i].begin, pieces[i].end, pieces[i].out);
  };
  const auto cast_out = [&](std::size_t unit) {
    if (memory_[unit].weight.data() != nullptr) {
      cast(memory_[unit].master.data(), DType::kF32, memory_[unit].weight.data(), options_.type, 0,
           layouts_[unit].block.shard_elements);
    }
  };
  const auto prepare = [&] { prepare_compute_thread(options_.compute_threads); };
  loop_.run(
      [](Rank* self, std::size_t count, const decltype(load)* load_piece,
         const decltype(cast_out)* cast_unit, const decltype(prepare)* prepare_lane) -> Task<> {
        co_await self->lane_.run(*prepare_lane);
        co_await self->link_pool_.for_chunks(count, *load_piece);
        co_await self->link_pool_.for_chunks(self->model_.units.size(), *cast_unit);
      },
      this, pieces.size(), &load, &cast_out, &prepare);
}

void Rank::stop() {
  loop_.run(
      [](Rank* self) -> Task<> {
        try {
          co_await self->optimizer_->address().ask(DrainOptimizer{});
        } catch (const ActorClosed&) {
          // It failed, and said so to whoever awaited it then.
        }
        self->optimizer_->close();
        for (std::size_t unit = 0; unit < self->shards_.size(); ++unit) {
          self->shards_[unit]->close();
          self->buckets_[unit]->close();
        }
        self->collectives_->close();
        for (std::size_t pool = 0; pool < self->classes_.pools(); ++pool) {
          self->gather_pools_[pool]->close();
          self->gradient_pools_[pool]->close();
        }
        self->scope_.request_stop();
        co_await self->scope_.empty();
      },
      this);
}

std::vector<Unit*> Rank::units() {
  std::vector<Unit*> list;
  for (const auto& unit : units_) {
    list.push_back(unit.get());
  }
  return list;
}

Busy Rank::busy() const {
  return {.compute_s = lane_.busy_s(),
          .optimizer_s = optimizer_pool_.busy_s() / optimizer_pool_.threads(),
          .link_s = link_pool_.busy_s() / link_pool_.threads()};
}

std::string Rank::parameter_at(std::size_t unit, std::int64_t index) const {
  const std::vector<std::int64_t>& offsets = layouts_[unit].offsets;
  const auto after = std::ranges::upper_bound(offsets, index);
  return model_.units[unit].parameters[static_cast<std::size_t>(after - offsets.begin()) - 1].name;
}

void Rank::visit_parameters(
    const std::function<std::span<const float>(std::size_t unit)>& block_of,
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const {
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    const std::span<const float> block = block_of(unit);
    for (std::size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
      const ParameterSpec& parameter = model_.units[unit].parameters[i];
      visit(parameter, block.subspan(static_cast<std::size_t>(layouts_[unit].offsets[i]),
                                     static_cast<std::size_t>(parameter.numel())));
    }
  }
}

void Rank::for_each_master(
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const {
  visit_parameters(
      [&](std::size_t unit) {
        return std::span<const float>(memory_[unit].master.as<float>(),
                                      layouts_[unit].block.shard_elements);
      },
      visit);
}

void Rank::for_each_gradient(
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const {
  std::vector<float> values;
  visit_parameters(
      [&](std::size_t unit) {
        values.resize(layouts_[unit].block.shard_elements);
        cast(memory_[unit].accumulator.data(), accumulator_type(), values.data(), DType::kF32, 0,
             values.size());
        return std::span<const float>(values);
      },
      visit);
}

// ---- compute lane --------------------------------------------------------------------------------

void Rank::bind_values(std::span<const UnitUse> uses, std::span<std::byte* const> slots) {
  for (std::size_t i = 0; i < uses.size(); ++i) {
    units_[uses[i].unit]->bind_values(slots[i]);
  }
}

void Rank::unbind_values(std::span<const UnitUse> uses) {
  for (const UnitUse& use : uses) {
    units_[use.unit]->unbind_values();
  }
}

void Rank::bind_gradients(std::span<const UnitUse> uses, std::span<std::byte* const> slot_of_unit) {
  for (const UnitUse& use : uses) {
    units_[use.unit]->bind_gradients(slot_of_unit[use.unit], use.first_gradient);
  }
}

void Rank::complete_gradients(std::span<const UnitUse> uses) {
  for (const UnitUse& use : uses) {
    if (use.last_gradient) {
      units_[use.unit]->complete_gradients();
    } else {
      units_[use.unit]->unbind_gradients();
    }
  }
}

}  // namespace tandem
