#include "engine/rank/rank.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "actors/kernels/update/state_memory.hpp"
#include "engine/layout/update_config.hpp"
#include "engine/rank/segment_runner.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

RankOptions RankOptions::from(const Config& config, const EngineOptions& options, DType type,
                              const CorePlan& cores) {
  RankOptions rank{
      .device = options.device,
      .sim = options.sim,
      .open_gpu = options.open_gpu,
      .type = type,
      .zero = config.zero,
      .micro_steps = static_cast<int>(std::max<std::int64_t>(1, config.batch.accumulation_steps)),
      .gather_slots = options.gather_slots,
      .update = update_config(config.optimizer),
      .state_layout = options.state_layout,
      .placements = options.placements,
      .recomputes = options.activation_checkpointing};
  rank.compute_threads = cores.compute_threads;
  rank.optimizer_threads = cores.optimizer_threads;
  rank.copy_threads = cores.copy_threads;
  rank.optimizer_shares_cores = cores.optimizer_shares_cores;
  if (options.pin_cores) {
    rank.compute_cores = cores.compute;
    rank.optimizer_cores = cores.optimizer;
    rank.service_cores = cores.service;
  }
  rank.shadows = ShadowBudget::of(options, config.world_size);
  return rank;
}

Rank::Rank(Model model, RankOptions options, Communicator& communicator)
    : options_(std::move(options)),
      model_(std::move(model)),
      sharding_(Sharding::of(model_, options_.zero,
                             static_cast<std::uint32_t>(communicator.world_size()),
                             static_cast<std::uint32_t>(communicator.rank()))),
      classes_(SlotClasses::of(model_, sharding_)),
      loop_({.name = fmt::format("rank {}", communicator.rank())}),
      lane_(loop_, "compute"),
      optimizer_pool_(loop_, {.threads = options_.optimizer_threads,
                              .cores = options_.optimizer_cores,
                              .name = "adam",
                              .background = options_.optimizer_shares_cores}),
      copy_pool_(
          loop_,
          {.threads = options_.copy_threads, .cores = options_.service_cores, .name = "copy"}),
      scope_(loop_, "actors") {
  open_device(communicator);
  sizes_ = RankSizes::of(
      model_,
      {.type = options_.type,
       .micro_steps = options_.micro_steps,
       .gather_slots = options_.gather_slots,
       .update = options_.update,
       .layout = options_.state_layout,
       .shadows = options_.shadows,
       .placements = options_.placements,
       .device_bytes = accelerator_ ? accelerator_->device().memory_bytes() : std::size_t{0}},
      sharding_, classes_);
  connect(communicator);
  require_state_layout(options_.update, options_.state_layout, options_.type);
  for (const UnitSpec& unit : model_.units) {
    layouts_.push_back(ParameterLayout::of(unit, sharding_));
    parameter_count_ += unit.numel();
  }
  allocate_units();
  allocate_shadows();
  make_slot_pools();
  load_weights();
  make_actors();  // last: from here on there are tasks that stop() must end
  if (!options_.service_cores.empty()) {
    bind_thread(options_.service_cores);  // the loop's: it runs on whoever calls
  }
}

Rank::~Rank() { stop(); }

void Rank::abort(std::string_view why) noexcept {
  backend_->abort(why);
  if (expert_group_) {
    expert_group_->abort(why);
  }
}

std::byte* Rank::allocate(std::size_t bytes, std::size_t& counted) {
  counted += bytes;
  return owned_.emplace_back(bytes).data();
}

std::byte* Rank::allocate_shared(std::size_t bytes, std::size_t& counted) {
  counted += bytes;
  return backend_->allocate(bytes);
}

std::byte* Rank::allocate_streamed(std::size_t bytes, std::size_t& counted,
                                   StatePlacement placement) {
  return on_gpu() && placement == StatePlacement::kStreamed ? allocate_shared(bytes, counted)
                                                            : allocate(bytes, counted);
}

std::vector<CpuOptimizer::Range> Rank::update_ranges(std::size_t unit) const {
  const UnitLayout& layout = layouts_[unit].block;
  const auto slice_begin =
      static_cast<std::int64_t>(layout.shard_begin(sharding_.slice(model_.units[unit])));
  const auto slice_end = slice_begin + static_cast<std::int64_t>(layout.shard_elements);
  std::vector<CpuOptimizer::Range> ranges;
  for (std::size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
    const ParameterSpec& parameter = model_.units[unit].parameters[i];
    const std::int64_t begin = std::max(layouts_[unit].offsets[i], slice_begin);
    const std::int64_t end = std::min(layouts_[unit].offsets[i] + parameter.numel(), slice_end);
    if (parameter.frozen || begin >= end) {
      continue;
    }
    const CpuOptimizer::Range range = {.begin = static_cast<std::size_t>(begin - slice_begin),
                                       .end = static_cast<std::size_t>(end - slice_begin),
                                       .group = parameter.group};
    if (!ranges.empty() && ranges.back().end == range.begin && ranges.back().group == range.group) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  for (const CpuOptimizer::Range& range : ranges) {
    if (options_.state_layout == StateLayout::kInt8 && range.begin % kStateBlock != 0) {
      throw user_error("engine",
                       "optimizer_state is int8, whose blocks are {} elements, and in unit {} a "
                       "parameter group or what "
                       "follows a frozen parameter begins at element {}; use bf16",
                       kStateBlock, model_.units[unit].name, range.begin);
    }
  }
  return ranges;
}

void Rank::make_slot_pools() {
  weight_pools_ = make_pools(classes_.weights, sizes_.weight_pools, "gather slots", &Rank::allocate,
                             resident_bytes_.weights);
  gradient_pools_ = make_pools(classes_.gradients, sizes_.gradient_pools, "gradient slots",
                               &Rank::allocate_shared, resident_bytes_.gradients);
}

std::vector<std::unique_ptr<SlotPool>> Rank::make_pools(const SlotPools& pools,
                                                        std::span<const PoolSizes> sizes, Name name,
                                                        Allocate allocate_slots,
                                                        std::size_t& counted) {
  std::vector<std::unique_ptr<SlotPool>> made;
  for (std::size_t pool = 0; pool < sizes.size(); ++pool) {
    const PoolSizes& own = sizes[pool];
    if (own.slots == 0) {
      made.push_back(nullptr);
      continue;
    }
    std::byte* memory = accelerator_ ? slots_on_device(pools, pool, name, own.bytes())
                                     : (this->*allocate_slots)(own.bytes(), counted);
    made.push_back(std::make_unique<SlotPool>(
        SlotPool::Options{.name = name,
                          .memory = memory,
                          .slot_bytes = own.slot_bytes,
                          .plan = {.slots = own.slots, .max_in_flight = own.slots}}));
  }
  return made;
}

void Rank::make_actors() {
  collectives_ = std::make_unique<Collectives>(Collectives::Options{.backend = backend_.get()});
  std::vector<CpuOptimizer::Unit> optimized;
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    const UnitSpec& spec = model_.units[unit];
    const CollectivesAddress collectives =
        spec.ep_size > 1 ? expert_group_->collectives() : collectives_->address();
    const Memory& memory = memory_[unit];
    const std::size_t pool = classes_.weights.pool_of[unit];
    const std::size_t gradient_pool = classes_.gradients.pool_of[unit];
    units_.push_back(
        std::make_unique<Unit>(model_.units[unit], layouts_[unit], options_.type, tensors()));
    shards_.push_back(std::make_unique<ParameterShard>(ParameterShard::Options{
        .name = "shard " + model_.units[unit].name,
        .unit = static_cast<std::uint32_t>(unit),
        .layout = layouts_[unit].gathered,
        .type = options_.type,
        .shard = memory.shard,
        .block = memory.block,
        .slots = pool == kNoPool ? SlotPoolAddress() : weight_pools_[pool]->address(),
        .collectives = collectives}));
    shard_list_.push_back(shards_.back().get());
    const bool frozen = model_.units[unit].frozen();
    buckets_.push_back(
        frozen ? nullptr
               : std::make_unique<GradientBucket>(GradientBucket::Options{
                     .name = "bucket " + model_.units[unit].name,
                     .layout = layouts_[unit].gathered,
                     .blocks = static_cast<std::uint32_t>(spec.ep_size),
                     .first_element = layouts_[unit].block.shard_begin(sharding_.slice(spec)),
                     .accumulate_replicated = !sharding_.is_sharded(spec),
                     .block_type = options_.type,
                     .accumulator = memory.accumulator,
                     .accumulator_type = sizes_.accumulator_type,
                     .slots = gradient_pools_[gradient_pool]->address(),
                     .collectives = collectives,
                     .clears_padding = !on_gpu()}));
    UpdateBuffers buffers = memory.buffers;
    buffers.gradient = memory.accumulator;
    buffers.gradient_type = sizes_.accumulator_type;
    optimized.push_back(
        {.name = "update " + model_.units[unit].name,
         .state = {.buffers = buffers, .shadow = memory.shadow, .ranges = update_ranges(unit)},
         .shard = shards_.back()->address(),
         .runner = runner_of(placement_of(unit))});
  }
  optimizer_ = std::make_unique<CpuOptimizer>(
      CpuOptimizer::Options{.pool = &optimizer_pool_, .units = std::move(optimized)});

  for (auto* pools : {&weight_pools_, &gradient_pools_}) {
    for (const auto& pool : *pools) {
      if (pool != nullptr) {
        pool->start(scope_);
      }
    }
  }
  collectives_->start(scope_);
  if (expert_group_) {
    expert_group_->start(scope_);
  }
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    shards_[unit]->start(scope_);
    if (buckets_[unit] != nullptr) {
      buckets_[unit]->start(scope_);
    }
  }
  optimizer_->start(scope_);
}

void Rank::stop() {
  if (std::exchange(stopped_, true)) {
    return;
  }
  loop_.run(
      [](Rank* self) -> Task<> {
        try {
          co_await self->optimizer_->address().ask(
              RollBackUpdates{});  // of a step that has not ended
          co_await self->optimizer_->address().ask(DrainOptimizer{});
        } catch (const ActorClosed&) {
          // It failed, and said so to whoever awaited it then.
        }
        self->optimizer_->close();
        for (std::size_t unit = 0; unit < self->shards_.size(); ++unit) {
          self->shards_[unit]->close();
          if (self->buckets_[unit] != nullptr) {
            self->buckets_[unit]->close();
          }
        }
        self->collectives_->close();
        if (self->expert_group_) {
          self->expert_group_->close();
        }
        for (auto* pools : {&self->weight_pools_, &self->gradient_pools_}) {
          for (const auto& pool : *pools) {
            if (pool != nullptr) {
              pool->close();
            }
          }
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

bool Rank::has_shadow(std::size_t unit) const { return memory_[unit].shadow.master != nullptr; }

std::size_t Rank::shadows() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      memory_, [](const Memory& memory) { return memory.shadow.master != nullptr; }));
}

Busy Rank::busy() const {
  const auto device_s =
      static_cast<double>(device_time_.busy_ns.load(std::memory_order_relaxed)) * 1e-9;
  return {.compute_s = accelerator_ ? device_s : lane_.busy_s(),
          .optimizer_s = optimizer_pool_.busy_s() / optimizer_pool_.threads(),
          .copy_s = copy_pool_.busy_s() / copy_pool_.threads(),
          .to_device_s = accelerator_ ? accelerator_->to_device_busy_s() : 0,
          .to_host_s = accelerator_ ? accelerator_->to_host_busy_s() : 0};
}

std::int64_t Rank::flat_begin(std::size_t unit) const {
  std::int64_t begin = 0;
  for (std::size_t before = 0; before < unit; ++before) {
    begin += static_cast<std::int64_t>(layouts_[before].block.padded_elements);
  }
  return begin;
}

std::string Rank::parameter_at_flat(std::int64_t position) const {
  std::size_t unit = 0;
  while (position >= static_cast<std::int64_t>(layouts_[unit].block.padded_elements)) {
    position -= static_cast<std::int64_t>(layouts_[unit++].block.padded_elements);
  }
  const std::vector<std::int64_t>& offsets = layouts_[unit].offsets;
  const auto after = std::ranges::upper_bound(offsets, position);
  return model_.units[unit].parameters[static_cast<std::size_t>(after - offsets.begin()) - 1].name;
}

void Rank::visit_parameters(
    std::size_t unit, std::span<const float> block,
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const {
  for (std::size_t i = 0; i < model_.units[unit].parameters.size(); ++i) {
    const ParameterSpec& parameter = model_.units[unit].parameters[i];
    visit(parameter, block.subspan(static_cast<std::size_t>(layouts_[unit].offsets[i]),
                                   static_cast<std::size_t>(parameter.numel())));
  }
}

// ---- compute lane
// --------------------------------------------------------------------------------

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
    if (use.gradient_pool != kNoPool) {
      units_[use.unit]->bind_gradients(slot_of_unit[use.unit], use.first_gradient);
    }
  }
}

void Rank::complete_gradients(std::span<const UnitUse> uses) {
  for (const UnitUse& use : uses) {
    if (use.last_gradient) {
      units_[use.unit]->complete_gradients(on_gpu());
    } else if (use.gradient_pool != kNoPool) {
      units_[use.unit]->unbind_gradients();
    }
  }
}

}  // namespace tandem
