#include "engine/engine_impl.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/model/model_check.hpp"
#include "engine/run/bad_state.hpp"
#include "engine/tensors/device_choice.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr double kLeastScale = std::numeric_limits<float>::min();  // where the config says 0

std::optional<LossScaler> scaler_of(const Config& config) {
  if (config.precision() != Precision::kF16) {
    return std::nullopt;
  }
  const Fp16Config& fp16 = config.fp16;
  return LossScaler({.static_scale = fp16.loss_scale,
                     .initial_scale_power = static_cast<int>(fp16.initial_scale_power),
                     .window = static_cast<int>(fp16.loss_scale_window),
                     .hysteresis = static_cast<int>(fp16.hysteresis),
                     .consecutive_hysteresis = fp16.consecutive_hysteresis,
                     .min_scale = std::max(fp16.min_loss_scale, kLeastScale)});
}

/// The description on which ranks must agree: names and shapes, in order.
std::string description_of(const Model& model) {
  std::string text;
  for (const UnitSpec& unit : model.units) {
    text += unit.ep_size > 1 ? fmt::format("over {} expert-parallel ranks: ", unit.ep_size) : "";
    for (const ParameterSpec& parameter : unit.parameters) {
      text += fmt::format("{} [{}] group {}{}; ", parameter.name, fmt::join(parameter.shape, ", "),
                          parameter.group, parameter.frozen ? " frozen" : "");
    }
  }
  return text;
}

/// The config, once all ranks have found that theirs and their models are the same.
Config agreed_config(const InitializeArgs& arguments, Communicator& communicator) {
  check_model(arguments.model);
  Config config = arguments.config.resolve(communicator.world_size());
  communicator.require_same("config", resolved_json(config));
  communicator.require_same("model", description_of(arguments.model));
  communicator.require_same("sequence_blocks",
                            fmt::format("{}", arguments.options.sequence_blocks));
  return config;
}

CorePlan cores_of(const Config& config, const EngineOptions& options,
                  const Communicator& communicator) {
  const int sharers = communicator.cores_shared_by();
  return CorePlan::of(topology_of_machine(options.device == DeviceKind::kCuda),
                      {.ranks = sharers,
                       .rank = communicator.place_on_cores(),
                       .accelerator = options.device == DeviceKind::kCuda,
                       .optimizer_share = config.zero.offload_optimizer.cpuadam_cores_perc,
                       .compute_threads = options.compute_threads,
                       .optimizer_threads = options.optimizer_threads});
}

/// Completes the options, by the plan that comes with them or by one made here; gives the config
/// back. Throws DoesNotFit.
Config planned(InitializeArgs& arguments, Config config, Communicator& communicator) {
  arguments.options = with_gpu(std::move(arguments.options));
  if (!arguments.plan && !arguments.options.plans_run) {
    arguments.options = place_as_asked(arguments.model, config, std::move(arguments.options));
    return config;
  }
  if (!arguments.plan) {
    LargestBatch batch;
    if (arguments.dataset) {
      batch = {.records = arguments.dataset->size(),
               .length = arguments.dataset->longest(),
               .packed = arguments.dataset->packed()};
    }
    arguments.plan = plan_run(arguments.model, config, arguments.options, batch, {}, communicator);
  }
  arguments.plan->require_fit();
  arguments.options = with_gpu(std::move(arguments.plan->options));
  return config;
}

std::shared_ptr<Communicator> or_alone(std::shared_ptr<Communicator> communicator) {
  return communicator != nullptr ? std::move(communicator) : std::make_shared<Alone>();
}

}  // namespace

ConfigSource ConfigSource::of_text(std::string json) {
  ConfigSource source("");
  source.text_ = std::move(json);
  return source;
}

Config ConfigSource::resolve(std::int64_t world_size) const {
  if (!text_.empty()) {
    return parse_config(text_, "the program's config", world_size);
  }
  if (!config_) {
    return load_config(path_, world_size);
  }
  if (config_->world_size != world_size) {
    throw user_error("engine", "the config was resolved for {} ranks and {} take part",
                     config_->world_size, world_size);
  }
  return *config_;
}

Engine::Impl::Impl(InitializeArgs arguments)
    : communicator(or_alone(std::move(arguments.communicator))),
      config(planned(arguments, agreed_config(arguments, *communicator), *communicator)),
      rates(config, std::move(arguments.learning_rate),
            groups_of(arguments.model, std::move(arguments.parameter_groups), config.decay_norms)),
      scaler(scaler_of(config)),
      accumulation(
          static_cast<std::size_t>(std::max<std::int64_t>(1, config.batch.accumulation_steps))),
      groups(RowGroups::of(config, *communicator)),
      tensors(std::move(arguments.model),
              RankOptions::from(config, arguments.options,
                                cores_of(config, arguments.options, *communicator)),
              *communicator),
      rank(tensors.rank()),
      step(rank),
      all_ranks(*communicator, step),
      exchange(all_ranks, rank.compute().lane(), groups,
               rank.layout().shape.engine.loss_mean == LossMean::kTokens),
      clock(rank, step),
      reports(config, *communicator, tensors, step, all_ranks),
      evaluator(tensors, step, all_ranks, groups),
      checkpoints({.config = &config,
                   .communicator = communicator.get(),
                   .rank = &rank,
                   .step = &step,
                   .ranks = &all_ranks,
                   .counters = &counters,
                   .change = &change,
                   .scaler = &scaler,
                   .feed = &feed,
                   .groups = groups,
                   .accumulation = static_cast<std::int64_t>(accumulation),
                   .settings = std::move(arguments.settings)}) {
  if (!arguments.dataset) {
    return;
  }
  communicator->require_same("data", arguments.dataset->fingerprint());
  feed.emplace(rank, std::move(arguments.dataset),
               LoaderOptions{.sampler = {.world_size = static_cast<int>(groups.count),
                                         .rank = static_cast<int>(groups.own),
                                         .seed = arguments.seed},
                             .micro_batch = config.batch.micro_batch_size,
                             .accumulation = static_cast<std::int64_t>(accumulation),
                             .epochs = arguments.epochs,
                             .drop_last = config.dataloader_drop_last,
                             .counts_labels = exchange.means_tokens()},
               arguments.prefetch);
}

Engine::Impl::~Impl() {
  if (feed) {
    feed->close();
  }
  checkpoints.end();
  tensors.stop();
}

void Engine::Impl::fail(std::exception_ptr error) {
  try {
    std::rethrow_exception(rank.cause_of(error));
  } catch (const Error& cause) {
    if (cause.code() == ExitCode::kBadState) {
      throw;  // every rank comes to it after the same step, and can still be asked for its weights
    }
    change.fail(cause);
    tensors.give_up(cause);
    throw;
  } catch (const std::exception& cause) {
    change.fail(failure(ExitCode::kFailure, "engine", "{}", cause.what()));
    tensors.give_up(cause);
    throw;
  }
}

void Engine::Impl::require_whole() const {
  if (change.failed_by) {
    throw failure(change.failed_by->code(), "engine",
                  "an earlier call failed amid a step or a load, and the engine cannot go on: {}; "
                  "make a new one, and load a checkpoint",
                  change.failed_by->what());
  }
}

void Engine::Impl::require_between_steps(std::string_view call) const {
  require_whole();
  if (change.is_open) {
    throw user_error("engine",
                     "{} was called within a step, after {} of its {} backward() calls{}; call it "
                     "before the step's first forward() or after its step()",
                     call, micro_step, step_micro_batches,
                     forward_pending ? " and the next forward()" : "");
  }
}

void Engine::Impl::require_no_gathers_ahead(std::string_view call) const {
  if (communicator->world_size() > 1 && !(change.is_open && micro_step == step_micro_batches)) {
    require_between_steps(call);
  }
}

void Engine::Impl::require_step_of(std::size_t micro_batches) const {
  if (micro_batches == 0) {
    throw user_error("engine", "train_step() was handed no micro-batch; hand it one at least");
  }
  const RankSizes& sizes = rank.layout().sizes;
  const bool on_nvme = std::ranges::any_of(sizes.units, &UnitSizes::weights_on_nvme);
  if (micro_batches > 1 && accumulation == 1 && communicator->world_size() == 1 &&
      (sizes.accumulator_type != DType::kF32 || on_nvme)) {
    throw user_error("engine",
                     "train_step() was handed {} micro-batches, and with "
                     "gradient_accumulation_steps 1 there is no room to add gradients of {}; set "
                     "it to the largest number of a step",
                     micro_batches, on_nvme ? "weights on NVMe" : "16 bits");
  }
}

// ---- one step

void Engine::Impl::begin_step(std::size_t micro_batches) {
  change.is_open = true;
  step_micro_batches = micro_batches;
  micro_step = 0;
  // The last step that may be skipped looks where its numbers go wrong: the run's end will tell.
  looks = counters.skipped_in_a_row > 0 && counters.skipped_in_a_row + 1 >= skips_allowed();
  step.begin(counters.global_steps + 1, micro_batches, update_of_step());
  exchange.begin();
  clock.begin();
}

Task<> Engine::Impl::forward(Batch batch) {
  co_await exchange.add(&batch);
  batch.number = counters.micro_batches++ * groups.count + groups.own;
  const Stopwatch watch;
  co_await step.forward(co_await tensors.micro_batch(std::move(batch), looks));
  clock.add_forward(watch.elapsed_s());
}

Task<> Engine::Impl::backward(double factor) {
  const Stopwatch watch;
  const double reduce_s = step.exposure().reduce_s;
  co_await step.backward(loss_gradient() * factor);
  clock.add_backward(watch.elapsed_s(), step.exposure().reduce_s - reduce_s);
}

Task<StepResult> Engine::Impl::finish() {
  const TrainStep::Update update = update_of_step();
  const Stopwatch watch;
  const std::vector<float> losses = co_await step.losses();
  const double read_s = watch.elapsed_s();
  auto [result, of_saves] = co_await exchange.share(
      {.learning_rate = rate_of(next_step()), .loss_scale = update.loss_scale}, losses,
      {.stop = stop_asked,
       .save = std::exchange(save_asked, false),
       .checkpoint = checkpoints.phase()});
  const double shared_s = watch.elapsed_s() - read_s;
  const double reduce_s = step.exposure().reduce_s;
  result.verdict = co_await step.finish(update);
  const double finish_s = watch.elapsed_s();
  change.is_open = false;
  result.step = ++counters.global_steps;
  if (count(result.verdict)) {
    throw co_await bad_state(result.loss, result.verdict.norm.bad_parameter);
  }
  clock.measure(result, finish_s, shared_s + step.exposure().reduce_s - reduce_s,
                feed ? feed->take_wait_s() : 0, step_micro_batches, tensors.resident_bytes());
  if (reports.any()) {
    co_await reports.report(result, exchange.extents());
  }
  result.checkpoint = co_await checkpoints.advance(of_saves);
  co_return result;
}

Task<StepResult> Engine::Impl::step_on(std::vector<Batch> batches) {
  begin_step(batches.size());
  for (const Batch& batch : batches) {
    co_await forward(batch);
    co_await backward();
  }
  co_return co_await finish();
}

Task<StepResult> Engine::Impl::step_on_loader() {
  begin_step(accumulation);
  for (std::size_t a = 0; a < accumulation; ++a) {
    std::optional<Batch> batch = co_await feed->next();
    TANDEM_CHECK(batch.has_value(), "the loader counted its batches");
    co_await forward(std::move(*batch));
    co_await backward();
  }
  co_return co_await finish();
}

double Engine::Impl::loss_gradient() const {
  const double scale = scaler ? scaler->scale() : 1;
  if (exchange.means_tokens()) {
    return scale * exchange.last_share();
  }
  return scale / (static_cast<double>(step_micro_batches) * static_cast<double>(groups.count));
}

TrainStep::Update Engine::Impl::update_of_step() const {
  return {.groups = rates.groups(next_step() + counters.schedule_offset),
          .applied_step = next_step(),
          .gradient_clipping = config.gradient_clipping,
          .loss_scale = scaler ? scaler->scale() : 1};
}

bool Engine::Impl::count(const Verdict& verdict) {
  last_verdict = verdict;
  const bool skipped = verdict.outcome == StepOutcome::kSkip;
  const bool searches_scale = scaler && scaler->may_fall();
  counters.skipped_steps += skipped ? 1 : 0;
  counters.applied_steps += skipped ? 0 : 1;
  if (!skipped) {
    counters.skipped_in_a_row = 0;
  } else if (!searches_scale) {
    ++counters.skipped_in_a_row;
  }
  if (scaler) {
    scaler->update(skipped);
  }
  return counters.skipped_in_a_row >= skips_allowed();
}

Task<Error> Engine::Impl::bad_state(double loss, std::string bad_gradient) {
  const std::string cause = co_await cause_of_bad_state(
      &rank, &step, &all_ranks,
      {.loss = loss, .gradient = std::move(bad_gradient), .micro_batches = step_micro_batches});
  co_return failure(ExitCode::kBadState, "train",
                    "the gradient was not finite for {} steps in a row (limit {}): {}; lower the "
                    "learning rate, or look at the data",
                    counters.skipped_in_a_row, skips_allowed(), cause);
}

// ---- checkpoints

Task<bool> Engine::Impl::begin_checkpoint(CheckpointArgs args) {
  require_between_steps("begin_checkpoint()");
  const Stopwatch watch;
  const bool begun = co_await checkpoints.begin(std::move(args));
  clock.add_checkpoint_wait(watch.elapsed_s());
  co_return begun;
}

Task<std::optional<CheckpointOutcome>> Engine::Impl::finish_checkpoint() {
  const Stopwatch watch;
  std::optional<CheckpointOutcome> outcome = co_await checkpoints.finish();
  clock.add_checkpoint_wait(watch.elapsed_s());
  co_return outcome;
}

}  // namespace tandem
