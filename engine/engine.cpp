#include "engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "engine/engine_impl.hpp"
#include "engine/run/peak_matmul.hpp"
#include "engine/tensors/batch_check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

Engine::Engine(InitializeArgs args) : impl_(std::make_shared<Impl>(std::move(args))) {}
Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

std::optional<StepResult> Engine::train_step() {
  impl_->require_between_steps("train_step()");
  if (!impl_->feed) {
    throw user_error("engine",
                     "train_step() was handed no batches, and InitializeArgs::dataset is null; "
                     "give a data set, or hand batches to train_step()");
  }
  // Asked before the step begins: a step that has issued its gathers is run to its end.
  if (!impl_->feed->has(static_cast<std::int64_t>(impl_->accumulation))) {
    return std::nullopt;
  }
  return impl_->run(&Impl::step_on_loader, impl_.get());
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

Task<StepResult> agreed_step(Engine::Impl* impl, std::vector<Batch> batches) {
  co_await impl->exchange.agree_on(&batches);
  impl->require_step_of(batches.size());
  co_return co_await impl->step_on(std::move(batches));
}

}  // namespace

StepResult Engine::train_step(std::span<const Batch> micro_batches) {
  check_step(*impl_, micro_batches);
  std::vector<Batch> batches(micro_batches.begin(), micro_batches.end());
  impl_->run_agreement(&StepExchange::agree_on, &impl_->exchange, &batches);
  impl_->require_step_of(batches.size());
  return impl_->run(&Impl::step_on, impl_.get(), std::move(batches));
}

EventLoop& Engine::loop() { return impl_->rank.loop(); }

Task<StepResult> Engine::train_step_on_loop(std::vector<Batch> micro_batches) {
  check_step(*impl_, micro_batches);
  return agreed_step(impl_.get(), std::move(micro_batches));
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
  if (impl_->exchange.means_tokens() && !batch.loss_share) {
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
        co_return Loss{(co_await self->step.losses()).back(), self->counters.micro_batches};
      },
      impl_.get(), std::move(batch));
}

void Engine::backward(const Loss& loss) {
  if (!impl_->forward_pending || loss.forward != impl_->counters.micro_batches) {
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
        const at::Tensor loss = co_await self->evaluator.infer(std::move(input), HeadOutput::kLoss);
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
        at::Tensor logits = co_await self->evaluator.infer(std::move(input), HeadOutput::kLogits);
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

using Wanted = std::function<bool(const ParameterSpec&)>;
using WholeOf = Task<std::span<const float>> (TrainStep::*)(std::size_t unit);

Task<> visit_units(Rank* rank, TrainStep* step, WholeOf whole_of, const Visitor* visit,
                   const Wanted* wanted) {
  const RankLayout& layout = rank->layout();
  const auto is_wanted = [&](const ParameterSpec& parameter) {
    return !*wanted || (*wanted)(parameter);
  };
  const Visitor visit_wanted = [&](const ParameterSpec& parameter, std::span<const float> values) {
    if (is_wanted(parameter)) {
      (*visit)(parameter, values);
    }
  };
  for (std::size_t unit = 0; unit < layout.model.units.size(); ++unit) {
    if (std::ranges::any_of(layout.model.units[unit].parameters, is_wanted)) {
      layout.visit_parameters(unit, co_await (step->*whole_of)(unit), visit_wanted);
    }
  }
}

}  // namespace

void Engine::for_each_parameter(const Visitor& visit, const Wanted& wanted) {
  impl_->require_no_gathers_ahead("for_each_parameter()");
  drain();
  impl_->run(&visit_units, &impl_->rank, &impl_->step, &TrainStep::whole_master, &visit, &wanted);
}

void Engine::for_each_gradient(const Visitor& visit) {
  impl_->require_no_gathers_ahead("for_each_gradient()");
  impl_->run([](Impl* self) -> Task<> { co_await self->step.reductions_done(); }, impl_.get());
  const Wanted all;
  impl_->run(&visit_units, &impl_->rank, &impl_->step, &TrainStep::whole_gradient, &visit, &all);
}

std::vector<double> Engine::sum_over_ranks(std::vector<double> values) {
  const std::vector<double> all = impl_->run(&AllRanks::values<double>, &impl_->all_ranks, values);
  std::ranges::fill(values, 0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    values[i % values.size()] += all[i];
  }
  return values;
}

EvalSums Engine::evaluate_sums(const Dataset& dataset, EvaluateArgs args) {
  check_sizes(args);
  impl_->require_between_steps("evaluate_sums()");
  return impl_->run(&Evaluator::sums, &impl_->evaluator, &dataset, args);
}

Task<EvalSums> Engine::evaluate_sums_on_loop(std::shared_ptr<const Dataset> dataset,
                                             EvaluateArgs args) {
  check_sizes(args);
  Impl* const self = impl_.get();
  self->require_between_steps("evaluate_sums()");
  co_return co_await self->evaluator.sums(dataset.get(), args);
}

void Engine::report_by(Reporting reporting) { impl_->reports.report_by(std::move(reporting)); }

CommsSummary Engine::comms_summary(bool show_straggler) {
  impl_->require_between_steps("comms_summary()");
  return impl_->run(&StepReports::comms_summary, &impl_->reports, show_straggler);
}

void Engine::log_summary(bool show_straggler) {
  const std::string table = comms_table(comms_summary(show_straggler));
  impl_->reports.say(table.substr(0, table.find_last_not_of('\n') + 1));
}

const FlopsProfile* Engine::flops_profile() const { return impl_->reports.flops_profile(); }

MatmulRate Engine::measure_peak(MatmulOf own) {
  return impl_->run(&peak_matmul_rate, &impl_->tensors, std::move(own));
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
  return impl_->run(&EngineCheckpoints::load, &impl_->checkpoints, load_dir, tag, std::move(args));
}

LoadedCheckpoint Engine::load_foreign(ForeignState state) {
  impl_->require_between_steps("load_foreign()");
  return impl_->run(&EngineCheckpoints::load_foreign, &impl_->checkpoints, std::move(state));
}

Task<LoadedCheckpoint> Engine::load_checkpoint_on_loop(std::string load_dir, std::string tag,
                                                       LoadArgs args) {
  impl_->require_between_steps("load_checkpoint()");
  return impl_->checkpoints.load(std::move(load_dir), std::move(tag), std::move(args));
}

void Engine::ask_to_stop() { impl_->stop_asked = true; }
void Engine::ask_to_save() { impl_->save_asked = true; }

const Model& Engine::model() const { return impl_->rank.layout().model; }
int Engine::rank() const { return impl_->communicator->rank(); }
int Engine::world_size() const { return impl_->communicator->world_size(); }
std::int64_t Engine::global_steps() const { return impl_->counters.global_steps; }
std::int64_t Engine::skipped_steps() const { return impl_->counters.skipped_steps; }
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
std::int64_t Engine::micro_steps() const { return impl_->counters.micro_batches; }

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
  if (traits_of(optimizer.kind).has_momentum) {
    return {optimizer.momentum, 0};
  }
  return impl_->rates.betas(impl_->next_step() + impl_->counters.schedule_offset)
      .value_or(std::array{optimizer.beta1, optimizer.beta2});
}

double Engine::get_lr() const { return impl_->rate_of(impl_->next_step()); }
double Engine::loss_scale() const { return impl_->scaler ? impl_->scaler->scale() : 1; }

std::optional<std::int64_t> Engine::steps_in_epochs() const {
  if (!impl_->feed || !impl_->feed->loader().batches()) {
    return std::nullopt;
  }
  return *impl_->feed->loader().batches() / static_cast<std::int64_t>(impl_->accumulation);
}

const Config& Engine::config() const { return impl_->config; }
std::int64_t Engine::parameter_count() const { return impl_->rank.layout().parameter_count(); }
std::size_t Engine::gather_slots() const { return impl_->rank.layout().sizes.gather_slots; }
int Engine::compute_threads() const { return cores().compute_threads; }
int Engine::optimizer_threads() const { return cores().optimizer_threads; }
const CorePlan& Engine::cores() const { return impl_->rank.options().cores; }
ResidentBytes Engine::resident_bytes() const { return impl_->tensors.resident_bytes(); }

}  // namespace tandem
