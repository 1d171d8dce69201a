#include "tests/sim/training_rank.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/sleep.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
constexpr UpdateConfig kAdam{.lr = 1e-2, .weight_decay = 0.1};

std::size_t largest_slot(const Plan& plan) {
  std::size_t bytes = 0;
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    bytes = std::max(bytes, plan.layout(u).padded_elements * 4);
  }
  return bytes;
}

}  // namespace

float initial_weight(std::uint32_t unit, std::size_t i) {
  return std::sin(static_cast<float>(unit * 1000 + i % 1000));
}
float gradient_of(float weight, int batch, std::uint32_t rank) {
  return weight * 0.37F + static_cast<float>(batch) * 0.1F + static_cast<float>(rank) * 0.013F;
}
int batch_of(std::uint64_t step, std::uint32_t rank) {
  return static_cast<int>((step * 5 + rank * 3) % 11);
}
/// Without a norm: what it is when nothing is clipped, which is the case in about half of the
/// steps.
UpdateStep update_step(std::uint64_t step, const GradientNorm* norm, const Plan& plan) {
  double elements = 0;
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    elements += static_cast<double>(plan.elements[u]);
  }
  double clip = 1;
  if (norm != nullptr) {
    const double limit = 0.6 * plan.ranks * std::sqrt(elements);
    clip = std::min(1.0, limit / std::sqrt(norm->sum_of_squares.value()));
  }
  return UpdateStep::make(kAdam, static_cast<std::int64_t>(step + 1), clip / plan.ranks);
}

Reference::Reference(const Plan& plan) {
  std::vector<std::vector<float>> p(plan.units), m(plan.units), v(plan.units), g(plan.units);
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    p[u].resize(plan.layout(u).padded_elements);
    m[u] = v[u] = g[u] = p[u];
    for (std::size_t i = 0; i < plan.elements[u]; ++i) {
      p[u][i] = initial_weight(u, i);
    }
  }
  const auto keep = [&] {
    after.emplace_back();
    for (std::uint32_t u = 0; u < plan.units; ++u) {
      after.back().push_back({p[u], m[u], v[u]});
    }
  };
  keep();
  for (std::uint64_t step = 0; step < plan.steps; ++step) {
    GradientNorm norm;
    for (std::uint32_t u = 0; u < plan.units; ++u) {
      for (std::size_t i = 0; i < plan.elements[u]; ++i) {
        float sum = gradient_of(p[u][i], batch_of(step, 0), 0);
        for (std::uint32_t r = 1; r < plan.ranks; ++r) {
          sum += gradient_of(p[u][i], batch_of(step, r), r);
        }
        g[u][i] = sum;
      }
      add_norm(g[u].data(), DType::kF32, 0, g[u].size(), norm);
    }
    const UpdateStep update = update_step(step, &norm, plan);
    for (std::uint32_t u = 0; u < plan.units; ++u) {
      apply_update(
          update,
          {.master = p[u].data(), .state = {m[u].data(), v[u].data()}, .gradient = g[u].data()}, 0,
          p[u].size());
    }
    keep();
  }
}

TrainingRank::TrainingRank(Run& run_in, const Plan& plan_in, std::uint32_t rank_in, SimNet& links,
                           SimHost& host, SimDisk& disk, SimFiles::Faults faults,
                           CheckpointMeeting& meeting)
    : run(run_in),
      plan(plan_in),
      rank(rank_in),
      random(run.random.fork("rank").fork(rank)),
      actors_scope(run.world.loop(rank), Name("actors")),
      main_scope(run.world.loop(rank), Name("main")),
      workers(run.world, rank, {.threads = 2, .chunk_time = microseconds(5 + random.below(40))}),
      pool(run.world.loop(rank), {.threads = 2, .driver = &workers}),
      net(links.attach(rank)),
      device(run.world.loop(rank), {.memory_bytes = 1 << 22,
                                    .compute_flops_per_s = 1e9 + 1e9 * random.uniform(),
                                    .to_device_bytes_per_s = 1e9,
                                    .to_host_bytes_per_s = 1e9}),
      io(run.world.loop(rank), std::make_unique<SimFiles>(run.world, rank, disk, faults)),
      local(host.attach(rank, pool)),
      over_hosts(*local, net, pool, {.piece_bytes = kNormBlock * sizeof(float)}),
      arrays(plan, over_hosts, pool),
      backend(arrays.backend()),
      collectives({.backend = &backend}),
      prefetch({.pool = &pool,
                .make =
                    [this](std::uint64_t i) {
                      i += first_step;
                      return i < data.size() ? std::optional(static_cast<int>(data[i]))
                                             : std::nullopt;
                    }}),
      copies(device.stream("copies")),
      compute(device.stream("compute")),
      results(device.stream("results")),
      checkpoints(*this, meeting) {
  run.watched.push_back(&main_scope);
  run.watched.push_back(&actors_scope);
  const std::size_t slot_bytes = largest_slot(plan);
  gather_memory = HostBuffer(plan.slots * slot_bytes);
  gradient_memory = HostBuffer(2 * slot_bytes);
  gather_slots = std::make_unique<SlotPool>(
      SlotPool::Options{.memory = gather_memory.data(),
                        .slot_bytes = slot_bytes,
                        .plan = {.slots = plan.slots, .max_in_flight = 2, .max_ahead = 64}});
  gradient_slots = std::make_unique<SlotPool>(
      SlotPool::Options{.memory = gradient_memory.data(),
                        .slot_bytes = slot_bytes,
                        .plan = {.slots = 2, .max_in_flight = 2, .max_ahead = 64}});
  CpuOptimizer::Options options{.pool = &pool, .chunk_elements = kNormBlock};
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    options.units.push_back(make_unit(u));
  }
  optimizer = std::make_unique<CpuOptimizer>(std::move(options));
}

CpuOptimizer::Unit TrainingRank::make_unit(std::uint32_t u) {
  const UnitLayout layout = plan.layout(u);
  const std::size_t n = layout.shard_elements;
  const auto home = [&](RankArrays::Kind kind) { return arrays.home(u, kind); };
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = layout.shard_begin(rank) + i;
    arrays.memory(u, RankArrays::kWeight)[i] = arrays.memory(u, RankArrays::kMaster)[i] =
        at < layout.elements ? initial_weight(u, at) : 0.0F;
  }
  UpdateShadow shadow;
  if (plan.homes[u] == Home::kMemory) {
    auto* const copy = shadows.emplace_back(n * 12).as<float>();
    shadow = {.master = copy, .state = {copy + n, copy + 2 * n}};
  }
  shards.push_back(std::make_unique<ParameterShard>(
      ParameterShard::Options{.unit = u,
                              .layout = layout,
                              .shard = reinterpret_cast<std::byte*>(home(RankArrays::kWeight)),
                              .slots = gather_slots->address(),
                              .collectives = collectives.address()}));
  buckets.push_back(std::make_unique<GradientBucket>(
      GradientBucket::Options{.layout = layout,
                              .first_element = layout.shard_begin(rank),
                              .accumulator = home(RankArrays::kGradient),
                              .slots = gradient_slots->address(),
                              .collectives = collectives.address()}));
  return {.state = {.buffers = {.master = home(RankArrays::kMaster),
                                .state = {home(RankArrays::kFirstMoment),
                                          home(RankArrays::kSecondMoment)},
                                .gradient = home(RankArrays::kGradient),
                                .weight = home(RankArrays::kWeight)},
                    .shadow = shadow,
                    .ranges = {{0, n, 0}}},
          .shard = shards[u]->address(),
          .runner = arrays.runner_of(u)};
}

void TrainingRank::start() {
  collectives.start(actors_scope);
  gather_slots->start(actors_scope);
  gradient_slots->start(actors_scope);
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    shards[u]->start(actors_scope);
    buckets[u]->start(actors_scope);
  }
  optimizer->start(actors_scope);
  checkpoints.start(actors_scope);
  main_scope.spawn("training", &TrainingRank::main, this);
}

// Trains; whatever happens, the actors end, and the peers learn which rank failed.
Task<> TrainingRank::main(TrainingRank* self) {
  std::exception_ptr error;
  try {
    co_await self->train();
  } catch (...) {
    error = std::current_exception();
  }
  if (error != nullptr) {
    // An actor that failed first is the cause; what the main task met then is a consequence.
    const auto& failures = self->actors_scope.failures();
    self->cause = failures.empty() ? error : failures.front().error;
    self->over_hosts.fail(self->failed_rank(), self->failure());
  }
  self->actors_scope.request_stop();
  co_await self->actors_scope.empty();
  self->ended_at = EventLoop::current().now();
}

Task<> TrainingRank::train() {
  co_await read_data();
  first_step = step = co_await checkpoints.load();
  co_await arrays.open(&io, fmt::format("state {} of start {}", rank, checkpoints.start_number()));
  prefetch.start(actors_scope);
  while (step < plan.steps) {
    co_await train_step();
    co_await checkpoints.after_step();
  }
  (void)co_await optimizer->address().ask(DrainOptimizer{});
  co_await arrays.read_back();
  // No rank leaves while others may still need what it sends.
  GradientNorm last;
  last.first_bad_element = -1;
  (void)co_await collectives.address().ask(
      AllReduceNorm{steps_here() * (plan.units + 1) + checkpoints.agreements(), last});
}

Task<> TrainingRank::train_step() {
  const std::optional<int> batch = co_await prefetch.address().ask(NextBatch<int>{});
  run.require(batch.has_value() && *batch == batch_of(step, rank),
              "rank {} got batch {} at step {}", rank, batch.value_or(-1), step);
  run.world.note("step", rank, step);
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    co_await forward(u);
  }
  std::vector<GradientNorm> norms(plan.units);
  ahead = update_step(step, nullptr, plan);
  const WatchedScope watched(run);
  co_await with_scope(
      [](Scope& scope, TrainingRank* self, int b, GradientNorm* out, Scope** seen) -> Task<> {
        *seen = &scope;
        for (std::uint32_t v = 0; v < self->plan.units; ++v) {
          scope.spawn("backward", &TrainingRank::backward, self, self->plan.units - 1 - v, v, b,
                      out + v);
        }
        co_return;
      },
      this, *batch, norms.data(), watched.place());
  GradientNorm local;
  for (const GradientNorm& norm : norms) {
    local.merge(norm);
  }
  const GradientNorm norm =
      co_await collectives.address().ask(AllReduceNorm{first_sequence() + plan.units, local});
  update = update_step(step, &norm, plan);
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    co_await optimizer->address().send(UpdateUnit{u, &update, u, steps_here() + 1});
  }
  ++step;
}

Task<> TrainingRank::forward(std::uint32_t u) {
  const std::uint64_t first = steps_here() * plan.visits();
  const ParameterShardAddress shard = shards[u]->address();
  const auto* block =
      reinterpret_cast<const float*>(co_await shard.ask(AcquireUnit{steps_here(), first + u}));
  volatile float seen = block[0];
  static_cast<void>(seen);
  co_await sleep_for(microseconds(random.between(0, 30)));
  co_await shard.send(ReleaseUnit{first + plan.visits() - 1 - u});
}

Task<> TrainingRank::backward(std::uint32_t u, std::uint32_t visit, int batch, GradientNorm* norm) {
  const std::uint64_t ticket = steps_here() * plan.visits() + plan.units + visit;
  const std::uint64_t gradient_ticket = steps_here() * plan.units + visit;
  const ParameterShardAddress shard = shards[u]->address();
  const GradientBucketAddress bucket = buckets[u]->address();
  // When another unit's backward has failed, this one ends, too: its reduction may never come.
  const StopToken stop = co_await current_stop_token();
  const std::byte* block = co_await shard.ask(AcquireUnit{steps_here(), ticket}, stop);
  std::byte* gradient = co_await bucket.ask(AcquireGradient{gradient_ticket}, stop);
  co_await gradient_on_device(block, gradient, u, batch);
  co_await shard.send(ReleaseUnit{}, stop);
  // The order in which gradients get ready differs from rank to rank; that of reductions must not.
  co_await sleep_for(microseconds(random.between(0, 60)));
  const GradientReady ready{true, true, first_sequence() + visit};
  *norm = co_await bucket.ask(ready, stop);
  if (random.chance(0.7) && plan.homes[u] == Home::kMemory) {
    co_await optimizer->address().send(UpdateUnit{.unit = u,
                                                  .steps = &ahead,
                                                  .deadline = u,
                                                  .new_version = steps_here() + 1,
                                                  .speculative = true},
                                       stop);
  }
}

// Weights in, a kernel, gradients out, each on a stream of its own.
Task<> TrainingRank::gradient_on_device(const std::byte* block, std::byte* gradient,
                                        std::uint32_t u, int batch) {
  const std::size_t elements = plan.elements[u];
  DeviceBuffer in = device.allocate(elements * 4);
  DeviceBuffer out = device.allocate(elements * 4);
  copies.to_device(in.data(), {block, elements * 4});
  compute.wait(copies.record());
  const auto* weight = reinterpret_cast<const float*>(in.data());
  auto* made = reinterpret_cast<float*>(out.data());
  const std::uint32_t own = rank;
  compute.launch("backward", {.flops = static_cast<double>(elements * (1 + random.below(60)))},
                 [weight, made, elements, batch, own](void*) {
                   for (std::size_t i = 0; i < elements; ++i) {
                     made[i] = gradient_of(weight[i], batch, own);
                   }
                 });
  results.wait(compute.record());
  results.to_host({gradient, elements * 4}, out.data());
  const DeviceEvent done = results.record();
  co_await done.wait();
}

Task<> TrainingRank::read_data() {
  IoFile file = co_await io.open(fmt::format("data {}", rank), OpenMode::kRead);
  std::vector<std::byte> bytes(co_await io.size(file));
  const std::size_t got = co_await io.read(file, 0, bytes);
  run.require(got == bytes.size(), "rank {} read {} of {} bytes of data", rank, got, bytes.size());
  co_await io.close(std::move(file));
  data = std::move(bytes);
}

std::span<const float> TrainingRank::array_of(std::uint32_t unit, std::uint32_t array) const {
  const UpdateBuffers& buffers = optimizer->state_of(unit).buffers;
  const float* values = plan.homes[unit] != Home::kMemory
                            ? arrays.memory(unit, static_cast<RankArrays::Kind>(array))
                        : array == 0 ? buffers.whole_master()
                                     : static_cast<const float*>(buffers.state[array - 1]);
  return {values, plan.layout(unit).shard_elements};
}

std::string TrainingRank::failure() const {
  try {
    if (cause != nullptr) {
      std::rethrow_exception(cause);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::uint32_t TrainingRank::failed_rank() const {
  try {
    if (cause != nullptr) {
      std::rethrow_exception(cause);
    }
  } catch (const PeerLost& lost) {
    return lost.rank();
  } catch (...) {
  }
  return rank;
}

}  // namespace tandem::sim_test
