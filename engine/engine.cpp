#include "engine/engine.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "actors/data_prefetch.hpp"
#include "engine/config/schedule.hpp"
#include "engine/data/loader.hpp"
#include "engine/rank.hpp"
#include "engine/stopwatch.hpp"
#include "engine/train_step.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kPrefetchDepth = 2;

DType compute_type(const Config& config) {
  switch (config.precision()) {
    case Precision::kF32:
      return DType::kF32;
    case Precision::kBF16:
      return DType::kBF16;
    case Precision::kF16:
      throw user_error("config",
                       "fp16.enabled is true, and this version trains in fp32 and bf16; set "
                       "bf16.enabled instead");
  }
  return DType::kF32;
}

AdamConfig adam_config(const OptimizerConfig& optimizer) {
  return {.lr = optimizer.lr,
          .beta1 = optimizer.betas[0],
          .beta2 = optimizer.betas[1],
          .eps = optimizer.eps,
          .weight_decay = optimizer.weight_decay,
          .adamw = optimizer.adam_w_mode,
          .bias_correction = optimizer.bias_correction};
}

/// Owned copies of a host batch as tensors. Compute lane.
Batch to_tensors(const HostBatch& host) {
  const std::vector<std::int64_t> shape = {host.rows, host.length};
  Batch batch{.inputs = at::empty(shape, at::kLong), .labels = at::empty(shape, at::kLong)};
  std::memcpy(batch.inputs.data_ptr(), host.inputs.data(),
              host.inputs.size() * sizeof(std::int64_t));
  std::memcpy(batch.labels.data_ptr(), host.labels.data(),
              host.labels.size() * sizeof(std::int64_t));
  return batch;
}

std::int64_t tokens_of(const Batch& batch) { return batch.inputs.numel(); }

}  // namespace

struct Engine::Impl {
  explicit Impl(InitializeArgs arguments)
      : config(std::move(arguments.config)),
        options(std::move(arguments.options)),
        schedule(config.schedule, config.optimizer.lr),
        learning_rate(std::move(arguments.learning_rate)),
        rank(std::move(arguments.model), RankOptions::from(config, options, compute_type(config))),
        step(rank, options) {
    accumulation =
        static_cast<std::size_t>(std::max<std::int64_t>(1, config.batch.accumulation_steps));
    if (arguments.dataset) {
      start_loader(std::move(arguments.dataset), arguments.epochs, arguments.seed);
    }
  }

  ~Impl() {
    if (prefetch) {
      prefetch->close();
    }
    rank.stop();
  }

  void start_loader(std::shared_ptr<const Dataset> dataset, std::int64_t epochs,
                    std::uint64_t seed) {
    loader.emplace(std::move(dataset), LoaderOptions{.sampler = {.world_size = rank.world_size(),
                                                                 .rank = rank.rank(),
                                                                 .seed = seed},
                                                     .micro_batch = config.batch.micro_batch_size,
                                                     .epochs = epochs,
                                                     .drop_last = config.dataloader_drop_last});
    prefetch.emplace(DataPrefetch<HostBatch>::Options{.pool = &rank.data_pool(),
                                                      .make =
                                                          [this](std::uint64_t number) {
                                                            return loader->make(
                                                                static_cast<std::int64_t>(number));
                                                          },
                                                      .depth = kPrefetchDepth});
    prefetch->start(rank.scope());
  }

  void check_no_step_in_flight() const {
    TANDEM_CHECK(
        micro_step == 0 && !forward_pending,
        "a step in flight holds gathered units; evaluate before forward() or after step()");
  }

  double rate_of(std::int64_t optimizer_step) const {
    return learning_rate ? learning_rate(optimizer_step) : schedule.lr_at(optimizer_step);
  }

  void begin_step() {
    step.begin(accumulation);
    micro_step = 0;
    losses = 0;
    tokens = 0;
    sequences = 0;
    longest = 0;
    busy_at_start = rank.busy();
    watch = Stopwatch();
  }

  void count_shape(const HostBatch& host) {
    sequences += host.rows;
    longest = std::max(longest, host.length);
  }

  Task<float> forward(Batch batch, std::int64_t batch_tokens) {
    tokens += batch_tokens;
    const float loss = co_await step.forward(std::move(batch));
    losses += static_cast<double>(loss);
    co_return loss;
  }

  /// The objective is the mean over micro-batches and ranks.
  double seed() const {
    return 1.0 / (static_cast<double>(accumulation) * static_cast<double>(rank.world_size()));
  }

  Task<StepResult> finish() {
    TrainStep::Update update{.adam = adam_config(config.optimizer),
                             .adam_step = applied_steps + 1,
                             .gradient_clipping = config.gradient_clipping};
    update.adam.lr = rate_of(applied_steps + 1);
    if (const auto betas = schedule.betas_at(applied_steps + 1)) {
      update.adam.beta1 = (*betas)[0];
      update.adam.beta2 = (*betas)[1];
    }
    StepResult result{.learning_rate = update.adam.lr,
                      .tokens = tokens,
                      .sequences = sequences,
                      .sequence_length = longest};
    result.verdict = co_await step.finish(update);
    ++global_steps;
    if (result.verdict.outcome == StepOutcome::kSkip) {
      count_skip(result.verdict);
    } else {
      ++applied_steps;
      skipped_in_a_row = 0;
    }
    result.step = global_steps;
    result.loss = losses / static_cast<double>(accumulation);
    measure(result);
    co_return result;
  }

  void count_skip(const Verdict& verdict) {
    ++skipped_steps;
    if (++skipped_in_a_row >= options.max_skipped_steps) {
      throw failure(ExitCode::kBadState, "train",
                    "the gradient was not finite for {} steps in a row (limit {}), first in {}; "
                    "lower the learning rate or look at that tensor",
                    skipped_in_a_row, options.max_skipped_steps, verdict.norm.bad_parameter);
    }
  }

  void measure(StepResult& result) {
    result.step_time_s = watch.elapsed_s();
    result.exposure = step.exposure();
    result.exposure.data_s = std::exchange(data_wait_s, 0);
    const Busy now = rank.busy();
    result.exposure.compute_busy_s = now.compute_s - busy_at_start.compute_s;
    result.exposure.optimizer_busy_s = now.optimizer_s - busy_at_start.optimizer_s;
    result.exposure.link_busy_s = now.link_s - busy_at_start.link_s;
    const double busiest =
        std::max({result.exposure.compute_busy_s, result.exposure.optimizer_busy_s,
                  result.exposure.link_busy_s});
    result.overlap_efficiency = std::min(1.0, busiest / result.step_time_s);
  }

  Config config;
  EngineOptions options;
  LrSchedule schedule;
  std::function<double(std::int64_t)> learning_rate;
  std::size_t accumulation = 1;
  std::optional<Loader> loader;  // outlives the prefetch actor, whose workers call it
  Rank rank;
  TrainStep step;
  std::optional<DataPrefetch<HostBatch>> prefetch;

  std::int64_t loader_steps = 0;
  std::int64_t global_steps = 0;
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  int skipped_in_a_row = 0;

  // The step in flight.
  std::size_t micro_step = 0;
  bool forward_pending = false;
  double losses = 0;
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  std::int64_t longest = 0;
  double data_wait_s = 0;
  Busy busy_at_start;
  Stopwatch watch;
};

Engine::Engine(InitializeArgs args) : impl_(std::make_unique<Impl>(std::move(args))) {}
Engine::~Engine() = default;

std::optional<StepResult> Engine::train_step() {
  TANDEM_CHECK(impl_->prefetch.has_value(), "train_step() without batches needs a dataset");
  // Asked before the step begins: a step that has issued its gathers is run to its end.
  if (const auto steps = steps_in_epochs(); steps && impl_->loader_steps == *steps) {
    return std::nullopt;
  }
  ++impl_->loader_steps;
  return impl_->rank.loop().run(
      [](Impl* self) -> Task<StepResult> {
        self->begin_step();
        for (std::size_t a = 0; a < self->accumulation; ++a) {
          const Stopwatch waited;
          std::optional<HostBatch> host =
              co_await self->prefetch->address().ask(NextBatch<HostBatch>{});
          self->data_wait_s += waited.elapsed_s();
          TANDEM_CHECK(host.has_value(), "the loader counted its batches");
          self->count_shape(*host);
          auto make = [&] { return to_tensors(*host); };
          Batch batch = co_await self->rank.lane().run(make);
          co_await self->forward(std::move(batch), host->tokens);
          co_await self->step.backward(self->seed());
        }
        co_return co_await self->finish();
      },
      impl_.get());
}

StepResult Engine::train_step(std::span<const Batch> micro_batches) {
  TANDEM_CHECK(micro_batches.size() == impl_->accumulation,
               "one step takes gradient_accumulation_steps micro-batches");
  return impl_->rank.loop().run(
      [](Impl* self, std::span<const Batch> batches) -> Task<StepResult> {
        self->begin_step();
        for (const Batch& batch : batches) {
          self->count_shape({.rows = batch.inputs.size(0), .length = batch.inputs.size(1)});
          co_await self->forward(batch, tokens_of(batch));
          co_await self->step.backward(self->seed());
        }
        co_return co_await self->finish();
      },
      impl_.get(), micro_batches);
}

Loss Engine::forward(Batch batch) {
  TANDEM_CHECK(!impl_->forward_pending, "forward() twice without backward(); use evaluate()");
  impl_->forward_pending = true;
  return impl_->rank.loop().run(
      [](Impl* self, Batch input) -> Task<Loss> {
        if (self->micro_step == 0) {
          self->begin_step();
        }
        const std::int64_t count = tokens_of(input);
        self->count_shape({.rows = input.inputs.size(0), .length = input.inputs.size(1)});
        co_return Loss{co_await self->forward(std::move(input), count)};
      },
      impl_.get(), std::move(batch));
}

void Engine::backward(const Loss& /*loss*/) {
  TANDEM_CHECK(std::exchange(impl_->forward_pending, false), "backward() follows a forward()");
  impl_->rank.loop().run([](Impl* self) -> Task<> { co_await self->step.backward(self->seed()); },
                         impl_.get());
  ++impl_->micro_step;
}

bool Engine::is_gradient_accumulation_boundary() const {
  return impl_->micro_step == impl_->accumulation;
}

std::optional<StepResult> Engine::step() {
  if (!is_gradient_accumulation_boundary()) {
    return std::nullopt;
  }
  impl_->micro_step = 0;
  return impl_->rank.loop().run(
      [](Impl* self) -> Task<StepResult> { co_return co_await self->finish(); }, impl_.get());
}

float Engine::evaluate(Batch batch) {
  impl_->check_no_step_in_flight();
  return impl_->rank.loop().run(
      [](Impl* self, Batch input) -> Task<float> {
        const at::Tensor loss = co_await self->step.infer(std::move(input), HeadOutput::kLoss);
        co_return *loss.data_ptr<float>();
      },
      impl_.get(), std::move(batch));
}

at::Tensor Engine::logits(Batch batch) {
  impl_->check_no_step_in_flight();
  return impl_->rank.loop().run(
      [](Impl* self, Batch input) -> Task<at::Tensor> {
        co_return co_await self->step.infer(std::move(input), HeadOutput::kLogits);
      },
      impl_.get(), std::move(batch));
}

void Engine::drain() {
  impl_->rank.loop().run([](Impl* self) -> Task<> { co_await self->step.drain(); }, impl_.get());
}

void Engine::for_each_parameter(
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) {
  drain();
  impl_->rank.for_each_master(visit);
}

void Engine::for_each_gradient(
    const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) {
  impl_->rank.loop().run([](Impl* self) -> Task<> { co_await self->step.reductions_done(); },
                         impl_.get());
  impl_->rank.for_each_gradient(visit);
}

double Engine::measure_peak_tflops() {
  constexpr std::int64_t kSide = 1024;
  constexpr int kRounds = 8;
  const auto measure = [this] {
    const auto type = at::TensorOptions().dtype(scalar_type_of(impl_->rank.options().type));
    const at::Tensor a = at::ones({kSide, kSide}, type);
    double best_s = 1e9;
    for (int round = 0; round < kRounds; ++round) {
      const Stopwatch watch;
      const at::Tensor product = at::mm(a, a);
      best_s = std::min(best_s, watch.elapsed_s());
    }
    return 2.0 * kSide * kSide * kSide / best_s / 1e12;
  };
  return impl_->rank.loop().run(
      [](Impl* self, const decltype(measure)* product) -> Task<double> {
        co_return co_await self->rank.lane().run(*product);
      },
      impl_.get(), &measure);
}

std::int64_t Engine::global_steps() const { return impl_->global_steps; }
std::int64_t Engine::skipped_steps() const { return impl_->skipped_steps; }

std::optional<std::int64_t> Engine::steps_in_epochs() const {
  if (!impl_->loader || !impl_->loader->batches()) {
    return std::nullopt;
  }
  return *impl_->loader->batches() / static_cast<std::int64_t>(impl_->accumulation);
}

std::int64_t Engine::parameter_count() const { return impl_->rank.parameter_count(); }
std::size_t Engine::gather_slots() const { return impl_->rank.gather_slots(); }
int Engine::compute_threads() const { return impl_->rank.options().compute_threads; }
int Engine::optimizer_threads() const { return impl_->rank.options().optimizer_threads; }
std::size_t Engine::planned_host_bytes() const { return impl_->rank.host_bytes(); }

}  // namespace tandem
