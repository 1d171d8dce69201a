#include "bench/scaling/scaled_rank.hpp"

#include <utility>

#include "engine/metrics/flops.hpp"

namespace tandem::bench {
namespace {

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

Duration virtual_time(double seconds) { return Duration(static_cast<std::int64_t>(seconds * 1e9)); }

/// bf16, Adam on the host with a shadow for every unit.
RankOptions options_of(const RankWork& work) {
  EngineOptions options{.plans_run = false, .device = DeviceKind::kSim};
  options.activation_checkpointing = work.recomputes;
  options.overlap = Overlap::kFull;
  options.speculate = Speculate::kOn;
  ZeroConfig zero;
  zero.stage = work.stage;
  return {.shape = {.engine = options,
                    .type = DType::kBF16,
                    .shadows = {.units = SIZE_MAX, .bytes = SIZE_MAX}},
          .zero = zero};
}

std::unique_ptr<SimDevice> make_device(EventLoop& loop, const Machine& machine) {
  return std::make_unique<SimDevice>(
      loop,
      SimDevice::Options{.memory_bytes = std::uint64_t{1} << 46,  // as much as there is use for
                         .memory_bytes_per_s = machine.memory_bytes_per_s,
                         .to_device_bytes_per_s = machine.bus_bytes_per_s,
                         .to_host_bytes_per_s = machine.bus_bytes_per_s,
                         .acts = false,
                         .has_memory = false});
}

std::vector<Duration> times_of_visits(const RankWork& work, double flops_per_s) {
  constexpr double kLaunchS = 3e-6;
  std::vector<Duration> times;
  const std::size_t segments = work.model->segments.size();
  for (std::size_t v = 0; v < 2 * segments; ++v) {
    const bool is_forward = v < segments;
    const double flops = work.flops_of(is_forward ? v : 2 * segments - 1 - v,
                                       is_forward ? Phase::kForward : Phase::kBackward);
    times.push_back(virtual_time(kLaunchS + flops / flops_per_s));
  }
  return times;
}

}  // namespace

double RankWork::flops_of(std::size_t segment, Phase phase) const {
  const SegmentShape shape = segment_shape(*model, segment);
  return phase == Phase::kForward ? forward_flops(shape, rows, length)
                                  : backward_flops(shape, rows, length, recomputes);
}

ScaledRank::ScaledRank(SimWorld& world, Cluster& cluster, const Machine& machine,
                       const RankWork& work, std::uint32_t rank)
    : work_(work),
      options_(options_of(work)),
      layout_(*work.model, options_.shape, options_.zero, cluster.world(), rank),
      visits_(times_of_visits(work, machine.compute_flops_per_s * work.share_of_peak)),
      loop_(world.loop(rank)),
      main_scope_(loop_, Name("main")),
      accelerator_(make_device(loop_, machine)),
      backend_(cluster.attach(rank, accelerator_.device())),
      workers_(world, rank, {}),
      pool_(loop_, {.threads = 1, .driver = &workers_}),
      lane_(world, rank,
            {.time_of =
                 [this](std::uint64_t n) {
                   // The first function prepares the lane.
                   return n == 0 ? Duration(0) : visits_[(n - 1) % visits_.size()];
                 }}),
      updates_(machine.host_memory_bytes_per_s / Machine::kRanks) {
  rank_.emplace(layout_, options_,
                RankParts{.loop = &loop_,
                          .optimizer_pool = &pool_,
                          .copy_pool = &pool_,
                          .accelerator = &accelerator_,
                          .backend = backend_.get(),
                          .lane_driver = &lane_,
                          .host_updates = &updates_,
                          .has_memory = false});
}

Task<> ScaledRank::main(ScaledRank* self, int steps) {
  co_await self->rank_->start();
  self->step_.emplace(*self->rank_);
  for (int number = 1; number <= steps; ++number) {
    co_await self->train_step(number);
  }
  co_await self->step_->drain();
  co_await self->rank_->end(/*has_failed=*/false);
}

Task<> ScaledRank::train_step(std::int64_t number) {
  const TimePoint began = loop_.now();
  const TrainStep::Update update{.groups = {layout_.shape.update}, .applied_step = number};
  step_->begin(number, /*micro_steps=*/1, update);
  co_await step_->forward(
      std::make_shared<TimedBatch>(BatchExtents{.rows = work_.rows, .length = work_.length}));
  co_await step_->backward(1);
  (void)co_await step_->finish(update);
  const Exposure& exposure = step_->exposure();
  steps_.push_back({.step = seconds_between(began, loop_.now()),
                    .waits_for_gathers = exposure.gather_s,
                    .waits_for_reductions = exposure.reduce_s,
                    .waits_for_updates = exposure.optimizer_s});
}

}  // namespace tandem::bench
