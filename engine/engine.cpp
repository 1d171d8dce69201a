#include "engine/engine.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "engine/engine_impl.hpp"
#include "engine/tensors/batch_check.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

Engine::Engine(InitializeArgs args) : impl_(std::make_shared<Impl>(std::move(args))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

std::optional<StepResult> Engine::train_step() {
  impl_->require_between_steps("train_step()");
  if (!impl_->loader) {
    throw user_error("engine",
                     "train_step() was handed no batches, and InitializeArgs::dataset is null; "
                     "give a data set, or hand batches to train_step()");
  }
  // Asked before the step begins: a step that has issued its gathers is run to its end.
  const auto batches = impl_->loader->batches();
  const auto needed = static_cast<std::int64_t>(impl_->accumulation);
  if (batches && impl_->batches_taken + needed > *batches) {
    return std::nullopt;
  }
  return impl_->run(
      [](Impl* self) -> Task<StepResult> {
        self->begin_step(self->accumulation);
        for (std::size_t a = 0; a < self->accumulation; ++a) {
          std::optional<Batch> batch = co_await self->next_batch();
          TANDEM_CHECK(batch.has_value(), "the loader counted its batches");
          co_await self->forward(std::move(*batch));
          co_await self->backward();
        }
        co_return co_await self->finish();
      },
      impl_.get());
}

namespace {

void check_step(const Engine::Impl& impl, std::span<const Batch> micro_batches) {
  impl.require_between_steps("train_step()");
  if (impl.communicator->world_size() == 1) {  // else all ranks learn how many each has first
    impl.require_step_of(micro_batches.size());
  }
  for (const Batch& batch : micro_batches) {
    check_batch(batch, BatchUse::kLoss);
  }
}

/// Where the ranks' counts differ, each of them refuses and none gives the others up.
void require_equal_counts(Engine::Impl& impl, std::size_t micro_batches) {
  if (impl.communicator->world_size() == 1) {
    return;
  }
  try {
    impl.rank.loop().run(&Engine::Impl::require_equal_counts, &impl, micro_batches);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kUserInput) {
      throw;
    }
    impl.fail(std::current_exception());
  }
  impl.require_step_of(micro_batches);
}

Task<StepResult> step_of_equal_counts(Engine::Impl* impl, std::vector<Batch> batches) {
  if (impl->communicator->world_size() > 1) {
    co_await impl->require_equal_counts(batches.size());
    impl->require_step_of(batches.size());
  }
  co_return co_await impl->step_on(std::move(batches));
}

}  // namespace

StepResult Engine::train_step(std::span<const Batch> micro_batches) {
  check_step(*impl_, micro_batches);
  require_equal_counts(*impl_, micro_batches.size());
  return impl_->run(&Impl::step_on, impl_.get(),
                    std::vector<Batch>(micro_batches.begin(), micro_batches.end()));
}

EventLoop& Engine::loop() { return impl_->rank.loop(); }

Task<StepResult> Engine::train_step_on_loop(std::vector<Batch> micro_batches) {
  check_step(*impl_, micro_batches);
  return step_of_equal_counts(impl_.get(), std::move(micro_batches));
}

Loss Engine::forward(Batch batch) {
  if (!impl_->training) {
    return {evaluate(std::move(batch))};
  }
  check_batch(batch, BatchUse::kLoss);
  if (impl_->forward_pending) {
    throw user_error("engine",
                     "forward() was called twice without backward(); call backward() with the loss "
                     "of the first one, or evaluate() for a loss alone");
  }
  if (is_gradient_accumulation_boundary()) {
    throw user_error("engine",
                     "forward() was called after the last of a step's {} micro-batches; call "
                     "step() after each backward()",
                     impl_->accumulation);
  }
  if (impl_->means_tokens() && !batch.loss_share) {
    throw user_error("engine",
                     "with loss_mean tokens forward() needs Batch::loss_share, the micro-batch's "
                     "part of the step's labels; or hand all of a step to train_step()");
  }
  impl_->require_whole();
  impl_->forward_pending = true;
  return impl_->run(
      [](Impl* self, Batch input) -> Task<Loss> {
        if (self->micro_step == 0) {
          self->begin_step(self->accumulation);
        }
        co_await self->forward(std::move(input));
        co_return Loss{(co_await self->step.losses()).back(), self->micro_batches};
      },
      impl_.get(), std::move(batch));
}

void Engine::backward(const Loss& loss) {
  if (!impl_->forward_pending || loss.forward != impl_->micro_batches) {
    throw user_error("engine",
                     "backward() was handed a loss that is not the last forward()'s in training "
                     "mode; call it once for each forward(), with what that one gave");
  }
  if (!std::isfinite(loss.factor)) {
    throw user_error("engine", "backward() was handed {} times the loss; a factor is finite",
                     loss.factor);
  }
  impl_->forward_pending = false;
  impl_->run(&Impl::backward, impl_.get(), loss.factor);
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
  return impl_->run(&Impl::finish, impl_.get());
}

void Engine::train(bool mode) {
  impl_->require_between_steps(mode ? "train()" : "eval()");
  impl_->training = mode;
}
void Engine::eval() { train(false); }
bool Engine::training() const { return impl_->training; }

float Engine::evaluate(Batch batch) {
  check_batch(batch, BatchUse::kLoss);
  impl_->require_between_steps("evaluate()");
  return impl_->run(
      [](Impl* self, Batch input) -> Task<float> {
        const at::Tensor loss = co_await self->infer(std::move(input), HeadOutput::kLoss);
        co_return *loss.data_ptr<float>();
      },
      impl_.get(), std::move(batch));
}

at::Tensor Engine::logits(Batch batch) {
  check_batch(batch, BatchUse::kLogits);
  impl_->require_between_steps("logits()");
  return impl_->run(
      [](Impl* self, Batch input) -> Task<at::Tensor> {
        const std::shared_ptr<TextMemory> memory = input.memory;
        const std::int64_t length = memory != nullptr ? input.inputs.size(1) : 0;
        at::Tensor logits = co_await self->infer(std::move(input), HeadOutput::kLogits);
        if (memory != nullptr) {
          memory->position += length;
        }
        co_return logits;
      },
      impl_.get(), std::move(batch));
}

void Engine::drain() {
  impl_->run([](Impl* self) -> Task<> { co_await self->step.drain(); }, impl_.get());
}

namespace {

using Visitor = std::function<void(const ParameterSpec&, std::span<const float>)>;

using WholeOf = Task<std::span<const float>> (TrainStep::*)(std::size_t unit);

Task<> visit_all(Rank* rank, TrainStep* step, WholeOf whole_of, const Visitor* visit) {
  const RankLayout& layout = rank->layout();
  for (std::size_t unit = 0; unit < layout.model.units.size(); ++unit) {
    layout.visit_parameters(unit, co_await (step->*whole_of)(unit), *visit);
  }
}

}  // namespace

void Engine::for_each_parameter(const Visitor& visit) {
  impl_->require_no_gathers_ahead("for_each_parameter()");
  drain();
  impl_->run(&visit_all, &impl_->rank, &impl_->step, &TrainStep::whole_master, &visit);
}

void Engine::for_each_gradient(const Visitor& visit) {
  impl_->require_no_gathers_ahead("for_each_gradient()");
  impl_->run([](Impl* self) -> Task<> { co_await self->step.reductions_done(); }, impl_.get());
  impl_->run(&visit_all, &impl_->rank, &impl_->step, &TrainStep::whole_gradient, &visit);
}

std::vector<double> Engine::sum_over_ranks(std::vector<double> values) {
  const auto bytes = std::as_bytes(std::span(values));
  const std::vector<std::byte> all = impl_->run(&Impl::of_all_ranks, impl_.get(),
                                                std::vector<std::byte>(bytes.begin(), bytes.end()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0;
    for (std::size_t at = i * sizeof(double); at < all.size(); at += bytes.size()) {
      double value = 0;
      std::memcpy(&value, all.data() + at, sizeof(double));
      values[i] += value;
    }
  }
  return values;
}

namespace {

void library_matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = c;
  at::mm_out(out, a, b);
}

/// The best of several matmuls of that type.
Task<double> matmul_tflops(TensorRank* rank, at::ScalarType scalar_type, MatmulOf matmul) {
  ComputeQueue& queue = rank->rank().compute();
  const bool on_gpu = !rank->device().is_cpu();
  const std::int64_t side = on_gpu ? 8192 : 1024;
  constexpr int kRounds = 8;
  constexpr double kEnoughS = 0.5;  // some processors have no matmuls of 16 bits: seconds each
  const auto type = at::TensorOptions().dtype(scalar_type);
  double best_s = 1e9;
  const Stopwatch all;
  for (int round = 0; round < kRounds && (round == 0 || all.elapsed_s() < kEnoughS); ++round) {
    const auto a = std::make_shared<at::Tensor>();
    const auto c = std::make_shared<at::Tensor>();
    co_await queue.run("a matmul to measure with", [a, c, side, type, at = rank->device()] {
      *a = at::ones({side, side}, type.device(at));
      *c = at::zeros_like(*a);
    });
    if (const auto ready = queue.in_use({})) {
      co_await ready->wait();
    }
    const auto seconds = std::make_shared<double>();
    const Stopwatch on_loop;
    co_await queue.run("a matmul to measure with", [a, c, seconds, &matmul] {
      const Stopwatch watch;
      matmul(*c, *a, a->t());
      *seconds = watch.elapsed_s();
    });
    if (const auto done = queue.in_use({})) {
      co_await done->wait();
      *seconds = on_loop.elapsed_s();
    }
    best_s = std::min(best_s, *seconds);
  }
  const auto length = static_cast<double>(side);
  co_return 2.0 * length* length* length / best_s / 1e12;
}

}  // namespace

Task<double> peak_tflops(TensorRank* rank, MatmulOf own) {
  const at::ScalarType type = scalar_type_of(rank->rank().layout().shape.type);
  double peak = co_await matmul_tflops(rank, type, &library_matmul);
  if (rank->device().is_cpu()) {
    if (own) {
      peak = std::max(peak, co_await matmul_tflops(rank, type, own));
    }
    if (type != at::kFloat) {  // which 16 bits may go by
      peak = std::max(peak, co_await matmul_tflops(rank, at::kFloat, own ? own : library_matmul));
    }
  }
  co_return peak;
}

double Engine::measure_peak_tflops(MatmulOf own) {
  return impl_->run(&peak_tflops, &impl_->tensors, std::move(own));
}

CheckpointOutcome Engine::save_checkpoint(const std::string& save_dir, const std::string& tag,
                                          const std::string& client_state) {
  begin_checkpoint({.folder = save_dir, .tag = tag, .client_state = client_state});
  return *finish_checkpoint();
}

Task<CheckpointOutcome> Engine::save_checkpoint_on_loop(CheckpointArgs args) {
  co_await impl_->begin_checkpoint(std::move(args));
  co_return *co_await impl_->finish_checkpoint();
}

bool Engine::begin_checkpoint(CheckpointArgs args) {
  impl_->require_between_steps("begin_checkpoint()");
  return impl_->run(&Impl::begin_checkpoint, impl_.get(), std::move(args));
}

std::optional<CheckpointOutcome> Engine::finish_checkpoint() {
  return impl_->run(&Impl::finish_checkpoint, impl_.get());
}

LoadedCheckpoint Engine::load_checkpoint(const std::string& load_dir, const std::string& tag,
                                         LoadArgs args) {
  impl_->require_between_steps("load_checkpoint()");
  return impl_->run(&Impl::load_checkpoint, impl_.get(), load_dir, tag, std::move(args));
}

LoadedCheckpoint Engine::load_foreign(ForeignState state) {
  impl_->require_between_steps("load_foreign()");
  return impl_->run(&Impl::load_foreign, impl_.get(), std::move(state));
}

Task<LoadedCheckpoint> Engine::load_checkpoint_on_loop(std::string load_dir, std::string tag,
                                                       LoadArgs args) {
  return impl_->load_checkpoint(std::move(load_dir), std::move(tag), std::move(args));
}

void Engine::ask_to_stop() { impl_->stop_asked = true; }
void Engine::ask_to_save() { impl_->save_asked = true; }

const Model& Engine::model() const { return impl_->rank.layout().model; }
int Engine::rank() const { return impl_->communicator->rank(); }
int Engine::world_size() const { return impl_->communicator->world_size(); }
std::int64_t Engine::global_steps() const { return impl_->global_steps; }
std::int64_t Engine::skipped_steps() const { return impl_->skipped_steps; }
std::int64_t Engine::train_batch_size() const { return config().batch.train_batch_size; }
std::int64_t Engine::train_micro_batch_size_per_gpu() const {
  return config().batch.micro_batch_size;
}
std::int64_t Engine::gradient_accumulation_steps() const {
  return static_cast<std::int64_t>(impl_->accumulation);
}
std::array<std::int64_t, 3> Engine::get_batch_info() const {
  return {train_batch_size(), train_micro_batch_size_per_gpu(), gradient_accumulation_steps()};
}
std::int64_t Engine::global_samples() const { return global_steps() * train_batch_size(); }
std::int64_t Engine::micro_steps() const { return impl_->micro_batches; }

double Engine::get_global_grad_norm() const {
  const std::optional<Verdict>& last = impl_->last_verdict;
  return last && last->norm.finite() ? last->norm.value : std::numeric_limits<double>::quiet_NaN();
}

bool Engine::was_step_applied() const {
  return impl_->last_verdict && impl_->last_verdict->outcome != StepOutcome::kSkip;
}

std::string Engine::get_type() const { return config().optimizer.type; }

std::array<double, 2> Engine::get_mom() const {
  const UpdateConfig& optimizer = impl_->rank.layout().shape.update;
  if (optimizer.kind == OptimizerKind::kSgd || optimizer.kind == OptimizerKind::kMuon) {
    return {optimizer.momentum, 0};
  }
  return impl_->betas_of(impl_->applied_steps + 1)
      .value_or(std::array{optimizer.beta1, optimizer.beta2});
}

double Engine::get_lr() const { return impl_->rate_of(impl_->applied_steps + 1); }
double Engine::loss_scale() const { return impl_->scaler ? impl_->scaler->scale() : 1; }

std::optional<std::int64_t> Engine::steps_in_epochs() const {
  if (!impl_->loader || !impl_->loader->batches()) {
    return std::nullopt;
  }
  return *impl_->loader->batches() / static_cast<std::int64_t>(impl_->accumulation);
}

const Config& Engine::config() const { return impl_->config; }
std::int64_t Engine::parameter_count() const { return impl_->rank.layout().parameter_count(); }
std::size_t Engine::gather_slots() const { return impl_->rank.layout().sizes.gather_slots; }
int Engine::compute_threads() const { return cores().compute_threads; }
int Engine::optimizer_threads() const { return cores().optimizer_threads; }
const CorePlan& Engine::cores() const { return impl_->rank.options().cores; }
ResidentBytes Engine::resident_bytes() const { return impl_->tensors.resident_bytes(); }

}  // namespace tandem
