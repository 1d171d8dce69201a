#include "bench/scaling/scaled_rank.hpp"

#include <algorithm>
#include <utility>

#include <sys/mman.h>

#include "actors/kernels/update/state_memory.hpp"
#include "engine/config/config.hpp"
#include "engine/metrics/flops.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/check.hpp"

namespace tandem::bench {
namespace {

constexpr std::size_t kAddressBytes = std::size_t{1} << 41;

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

/// bf16, Adam on the host with a shadow for every unit.
RankShape shape_of(const RankWork& work) {
  EngineOptions options{.plans_run = false, .device = DeviceKind::kSim};
  options.activation_checkpointing = work.recomputes;
  return {
      .engine = options, .type = DType::kBF16, .shadows = {.units = SIZE_MAX, .bytes = SIZE_MAX}};
}

ZeroConfig zero_of(int stage) {
  ZeroConfig zero;
  zero.stage = stage;
  return zero;
}

}  // namespace

double RankWork::flops_of(const Visit& visit) const {
  const SegmentShape shape = segment_shape(*model, visit.segment);
  return visit.phase == Phase::kForward ? forward_flops(shape, rows, length)
                                        : backward_flops(shape, rows, length, recomputes);
}

Addresses::Addresses()
    : begin_(static_cast<std::byte*>(::mmap(nullptr, kAddressBytes, PROT_NONE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  TANDEM_CHECK(begin_ != MAP_FAILED, "addresses without memory cost nothing");
}

Addresses::~Addresses() { ::munmap(begin_, kAddressBytes); }

std::byte* Addresses::take(std::size_t bytes) {
  std::byte* const taken = begin_ + used_;
  used_ += (bytes + 4095) / 4096 * 4096;
  TANDEM_CHECK_LE(used_, kAddressBytes, "a rank's buffers have room");
  return taken;
}

Task<> TimedUpdates::run(UpdateSlice slice) {
  UpdatedUnit unit = *slice.unit;
  double bytes = 0;
  visit_arrays(unit, slice.pass, [&](auto*& array, const ArrayUse& use) {
    if (array != nullptr) {
      bytes += (use.read + use.written) * use.bytes_of(slice.end - slice.begin);
    }
  });
  free_at_ = std::max(free_at_, EventLoop::current().now()) +
             Duration(static_cast<std::int64_t>(bytes / bytes_per_s_ * 1e9));
  co_await sleep_until(free_at_);
}

ScaledRank::ScaledRank(SimWorld& world, Cluster& cluster, const Machine& machine,
                       const RankWork& work, std::uint32_t rank)
    : work_(work),
      layout_(*work.model, shape_of(work), zero_of(work.stage), cluster.world(), rank),
      plan_(StepPlan::training(layout_.model, layout_.classes, 1)),
      loop_(world.loop(rank)),
      actors_scope_(loop_, Name("actors")),
      main_scope_(loop_, Name("main")),
      device_(loop_, {.compute_flops_per_s = machine.compute_flops_per_s * work.share_of_peak,
                      .memory_bytes_per_s = machine.memory_bytes_per_s,
                      .to_device_bytes_per_s = machine.bus_bytes_per_s,
                      .to_host_bytes_per_s = machine.bus_bytes_per_s,
                      .acts = false}),
      compute_(device_.stream("compute")),
      workers_(world, rank, {}),
      pool_(loop_, {.threads = 1, .driver = &workers_}),
      backend_(cluster.attach(rank, device_)),
      collectives_({.backend = backend_.get()}),
      updates_(machine.host_memory_bytes_per_s / Machine::kRanks),
      weight_pools_(make_pools("gather slots", layout_.sizes.weight_pools)),
      gradient_pools_(make_pools("gradient slots", layout_.sizes.gradient_pools)),
      deadlines_(StepPlan::inference(layout_.model, layout_.classes)
                     .first_visits(layout_.model.units.size())),
      has_shadow_(layout_.model.units.size()),
      constants_(UpdateStep::make(layout_.shape.update, 1, 1)),
      gradient_ticket_(layout_.classes.gradients.pools()) {
  for (const std::size_t unit : layout_.sizes.shadows) {
    has_shadow_[unit] = true;
  }
  std::vector<CpuOptimizer::Unit> units;
  units.reserve(layout_.model.units.size());
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    units.push_back(make_unit(unit));
  }
  gatherer_.emplace(shards_, layout_.classes.weights.pools(), main_scope_, /*run_ahead=*/true);
  optimizer_ = std::make_unique<CpuOptimizer>(
      CpuOptimizer::Options{.pool = &pool_, .units = std::move(units)});
}

std::vector<std::unique_ptr<SlotPool>> ScaledRank::make_pools(Name name,
                                                              const std::vector<PoolSizes>& sizes) {
  std::vector<std::unique_ptr<SlotPool>> pools;
  pools.reserve(sizes.size());
  for (const PoolSizes& size : sizes) {
    pools.push_back(size.slots == 0
                        ? nullptr
                        : std::make_unique<SlotPool>(SlotPool::Options{
                              .name = name,
                              .memory = addresses_.take(size.bytes()),
                              .slot_bytes = size.slot_bytes,
                              .plan = {.slots = size.slots, .max_in_flight = size.slots}}));
  }
  return pools;
}

/// As Rank::make_unit_actors() and Rank::optimizer_unit().
CpuOptimizer::Unit ScaledRank::make_unit(std::size_t unit) {
  const DType type = layout_.shape.type;
  const std::size_t elements = layout_.slice_elements(unit);
  const std::size_t pool = layout_.classes.weights.pool_of[unit];
  std::byte* const shard = addresses_.take(elements * bytes_of(type));
  std::byte* const accumulator = addresses_.take(layout_.sizes.units[unit].accumulator);
  const bool stays = layout_.sharding.weights_replicated[unit];
  ParameterShard::Options of_shard = layout_.shard_options(unit);
  of_shard.shard = shard;
  of_shard.block =
      stays ? addresses_.take(of_shard.layout.padded_elements * bytes_of(type)) : nullptr;
  of_shard.slots = pool == kNoPool ? SlotPoolAddress() : weight_pools_[pool]->address();
  of_shard.collectives = collectives_.address();
  shards_.push_back(std::make_unique<ParameterShard>(std::move(of_shard)));
  GradientBucket::Options of_bucket = layout_.bucket_options(unit);
  of_bucket.accumulator = accumulator;
  of_bucket.slots = gradient_pools_[layout_.classes.gradients.pool_of[unit]]->address();
  of_bucket.collectives = collectives_.address();
  of_bucket.clears_padding = false;
  buckets_.push_back(std::make_unique<GradientBucket>(std::move(of_bucket)));
  UpdateBuffers buffers{.gradient = accumulator, .weight = shard, .weight_type = type};
  place_state(buffers, layout_.shape.engine.state_layout, layout_.shape.update, type, elements,
              addresses_.take(layout_.sizes.units[unit].state.total()));
  UpdateShadow shadow;
  if (has_shadow_[unit]) {
    UpdateBuffers second;
    place_state(second, layout_.shape.engine.state_layout, layout_.shape.update, type, elements,
                addresses_.take(layout_.sizes.units[unit].shadow));
    shadow = {.master = second.master, .state = {second.state[0], second.state[1]}};
  }
  return {.name = "AdamW " + layout_.model.units[unit].name,
          .state = {.buffers = buffers, .shadow = shadow, .ranges = layout_.update_ranges(unit)},
          .shard = shards_[unit]->address(),
          .runner = &updates_};
}

void ScaledRank::start(int steps) {
  collectives_.start(actors_scope_);
  for (const auto* pools : {&weight_pools_, &gradient_pools_}) {
    for (const auto& pool : *pools) {
      if (pool != nullptr) {
        pool->start(actors_scope_);
      }
    }
  }
  for (std::size_t unit = 0; unit < shards_.size(); ++unit) {
    shards_[unit]->start(actors_scope_);
    buckets_[unit]->start(actors_scope_);
  }
  optimizer_->start(actors_scope_);
  main_scope_.spawn("training", &ScaledRank::main, this, steps);
}

// ---- the step ----

Task<> ScaledRank::main(ScaledRank* self, int steps) {
  for (int step = 0; step < steps; ++step) {
    const TimePoint begin = self->loop_.now();
    self->times_ = {};
    co_await self->train_step();
    self->times_.step = seconds_between(begin, self->loop_.now());
    self->steps_.push_back(self->times_);
  }
  (void)co_await self->optimizer_->address().ask(DrainOptimizer{});
  self->actors_scope_.request_stop();
}

Task<> ScaledRank::train_step() {
  gatherer_->begin(plan_, version_);
  for (std::size_t v = 0; v < plan_.visits.size(); ++v) {
    co_await run_visit(v);
  }
  const TimePoint asked = loop_.now();
  if (reductions_open_ > 0) {
    co_await no_reduction_open_;
  }
  for (std::size_t pool = 0; pool < gradient_ticket_.size(); ++pool) {
    gradient_ticket_[pool] += plan_.gradient_tickets[pool];
  }
  (void)co_await collectives_.address().ask(AllReduceNorm{reduction_order_++, GradientNorm{}});
  times_.waits_for_reductions += seconds_between(asked, loop_.now());
  for (std::size_t unit = 0; unit < shards_.size(); ++unit) {
    co_await update(unit, /*speculative=*/false);
  }
  ++version_;
}

Task<> ScaledRank::run_visit(std::size_t v) {
  const Visit& visit = plan_.visits[v];
  const TimePoint asked = loop_.now();
  (void)co_await gatherer_->acquired(v);
  // The part of the wait before the newest weights existed is the optimizer's.
  const TimePoint there = loop_.now();
  TimePoint updated = asked;
  for (const UnitUse& use : visit.uses) {
    updated = std::max(updated, std::min(shards_[use.unit]->version_since(), there));
  }
  times_.waits_for_updates += seconds_between(asked, updated);
  times_.waits_for_gathers += seconds_between(updated, there);
  for (const UnitUse& use : visit.uses) {
    if (use.first_gradient) {
      (void)co_await buckets_[use.unit]->address().ask(
          AcquireGradient{gradient_ticket_[use.gradient_pool] + use.gradient_ticket});
    }
  }
  times_.waits_for_reductions += seconds_between(there, loop_.now());
  compute_.launch("visit", {.flops = work_.flops_of(visit)}, {});
  co_await compute_.record().wait();
  gatherer_->release(v);
  for (const UnitUse& use : visit.uses) {
    if (use.last_gradient) {
      ++reductions_open_;
      no_reduction_open_.reset();
      main_scope_.spawn("reduce", &ScaledRank::reduce, this, use, reduction_order_);
      reduction_order_ += use.blocks;
    }
  }
}

/// The update begins ahead of the verdict, with the constants that the verdict will confirm.
Task<> ScaledRank::reduce(ScaledRank* self, UnitUse use, std::uint64_t order) {
  (void)co_await self->buckets_[use.unit]->address().ask(GradientReady{true, true, order});
  if (self->has_shadow_[use.unit]) {
    co_await self->update(use.unit, /*speculative=*/true);
  }
  if (--self->reductions_open_ == 0) {
    self->no_reduction_open_.set();
  }
}

Task<> ScaledRank::update(std::size_t unit, bool speculative) {
  co_await optimizer_->address().send(UpdateUnit{.unit = static_cast<std::uint32_t>(unit),
                                                 .steps = &constants_,
                                                 .deadline = deadlines_[unit],
                                                 .new_version = version_ + 1,
                                                 .speculative = speculative});
}

}  // namespace tandem::bench
