#include "engine/engine_impl.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/collectives/collectives.hpp"
#include "engine/layout/update_config.hpp"
#include "engine/model/model_check.hpp"
#include "engine/tensors/device_choice.hpp"
#include "runtime/util/error.hpp"

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

template <class T>
at::Tensor copy_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    count *= std::max<std::int64_t>(0, extent);
  }
  if (static_cast<std::size_t>(count) != values.size()) {
    throw user_error("data",
                     "a data set's collate() gave {} values for a batch of [{}]; correct its "
                     "HostBatch",
                     values.size(), fmt::join(shape, ", "));
  }
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(type));
  std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(T));
  return tensor;
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
  return CorePlan::of(CpuTopology::of_machine(options.device == DeviceKind::kCuda),
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
  if (arguments.options.device == DeviceKind::kCuda && !arguments.options.open_gpu) {
    arguments.options.open_gpu = &open_gpu;
  }
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
  arguments.options = std::move(arguments.plan->options);
  return config;
}

std::shared_ptr<Communicator> or_alone(std::shared_ptr<Communicator> communicator) {
  return communicator != nullptr ? std::move(communicator) : std::make_shared<Alone>();
}

}  // namespace

Batch to_tensors(const HostBatch& host) {
  if (!host.feature_shape.empty()) {
    const std::vector<std::int64_t> labels =
        host.label_shape.empty() ? std::vector{host.rows} : host.label_shape;
    return {.inputs = copy_of(host.features, host.feature_shape, at::kFloat),
            .labels = host.targets.empty() ? copy_of(host.labels, labels, at::kLong)
                                           : copy_of(host.targets, labels, at::kFloat),
            .tokens = host.tokens,
            .loss_share = host.loss_share,
            .label_count = counted_labels(host)};
  }
  return {.inputs = copy_of(host.inputs, {host.rows, host.length}, at::kLong),
          .labels = copy_of(host.labels, {host.rows, host.length}, at::kLong),
          .tokens = host.tokens,
          .loss_share = host.loss_share,
          .positions = host.positions.empty()
                           ? at::Tensor()
                           : copy_of(host.positions, {host.rows, host.length}, at::kLong),
          .lengths =
              host.lengths.empty() ? at::Tensor() : copy_of(host.lengths, {host.rows}, at::kLong),
          .label_count = counted_labels(host)};
}

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
      schedule(config.schedule, config.optimizer.rate()),
      learning_rate(std::move(arguments.learning_rate)),
      settings(std::move(arguments.settings)),
      groups(groups_of(arguments, config.decay_norms)),
      scaler(scaler_of(config)),
      accumulation(
          static_cast<std::size_t>(std::max<std::int64_t>(1, config.batch.accumulation_steps))),
      tensors(std::move(arguments.model),
              RankOptions::from(config, arguments.options,
                                cores_of(config, arguments.options, *communicator)),
              *communicator),
      rank(tensors.rank()),
      step(rank) {
  check_reports();
  if (arguments.dataset) {
    start_loader(std::move(arguments.dataset), arguments.epochs, arguments.seed,
                 arguments.prefetch);
  }
}

Engine::Impl::~Impl() {
  if (!prefetches.empty()) {
    prefetches.back()->close();
  }
  if (checkpointer) {
    rank.loop().run(&Checkpointer::end, checkpointer.get());
  }
  tensors.stop();
}

void Engine::Impl::fail(std::exception_ptr error) {
  // An actor that failed ends the others, and what was awaited of those says no more than that they
  // ended.
  if (const auto& failures = rank.scope().failures(); !failures.empty()) {
    error = failures.front().error;
  }
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    if (cause.code() == ExitCode::kBadState) {
      throw;  // every rank comes to it after the same step, and can still be asked for its weights
    }
    if (is_torn_) {
      torn_by_ = cause;
    }
    tensors.give_up(cause);
    throw;
  } catch (const std::exception& cause) {
    if (is_torn_) {
      torn_by_ = failure(ExitCode::kFailure, "engine", "{}", cause.what());
    }
    tensors.give_up(cause);
    throw;
  }
}

void Engine::Impl::require_whole() const {
  if (torn_by_) {
    throw failure(torn_by_->code(), "engine",
                  "an earlier call failed amid a step or a load, and the engine cannot go on: {}; "
                  "make a new one, and load a checkpoint",
                  torn_by_->what());
  }
}

void Engine::Impl::start_loader(std::shared_ptr<const Dataset> dataset, std::int64_t epochs,
                                std::uint64_t seed, const PrefetchOptions& ahead) {
  if (ahead.workers < 1 || ahead.depth < 1) {
    throw user_error("engine",
                     "InitializeArgs::prefetch has {} workers and a depth of {}; the loader needs "
                     "1 of each at least",
                     ahead.workers, ahead.depth);
  }
  data_fingerprint = dataset->fingerprint();
  communicator->require_same("data", data_fingerprint);
  loader.emplace(std::move(dataset),
                 LoaderOptions{.sampler = {.world_size = static_cast<int>(groups_of_ranks()),
                                           .rank = static_cast<int>(group_of_rank()),
                                           .seed = seed},
                               .micro_batch = config.batch.micro_batch_size,
                               .accumulation = static_cast<std::int64_t>(accumulation),
                               .epochs = epochs,
                               .drop_last = config.dataloader_drop_last,
                               .counts_labels = means_tokens()});
  data_pool.emplace(rank.loop(), CpuPool::Options{.threads = ahead.workers, .name = "data"});
  prefetch_options = ahead;
  shuffle_seed = seed;
  start_prefetch(0);
}

void Engine::Impl::start_prefetch(std::int64_t first) {
  if (!prefetches.empty()) {
    prefetches.back()->close();
  }
  const auto make = [this](std::uint64_t number) {
    return loader->make(static_cast<std::int64_t>(number));
  };
  prefetches.push_back(std::make_unique<DataPrefetch<HostBatch>>(
      DataPrefetch<HostBatch>::Options{.pool = &*data_pool,
                                       .make = make,
                                       .first = static_cast<std::uint64_t>(first),
                                       .depth = prefetch_options.depth}));
  prefetches.back()->start(rank.scope());
}

void Engine::Impl::require_between_steps(std::string_view call) const {
  require_whole();
  if (is_torn_) {
    throw user_error("engine",
                     "{} was called within a step, after {} of its {} backward() calls{}; call it "
                     "before the step's first forward() or after its step()",
                     call, micro_step, step_micro_batches,
                     forward_pending ? " and the next forward()" : "");
  }
}

void Engine::Impl::require_no_gathers_ahead(std::string_view call) const {
  if (communicator->world_size() > 1 && !(is_torn_ && micro_step == step_micro_batches)) {
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

double Engine::Impl::rate_of(std::int64_t optimizer_step) const {
  const std::int64_t step = optimizer_step + schedule_offset;
  return learning_rate ? learning_rate(step) : schedule.lr_at(step);
}

double Engine::Impl::loss_gradient() const {
  const double scale = scaler ? scaler->scale() : 1;
  if (means_tokens()) {
    return scale * loss_shares_.back();
  }
  return scale / (static_cast<double>(step_micro_batches) * static_cast<double>(groups_of_ranks()));
}

void Engine::Impl::begin_step(std::size_t micro_batches_of_step) {
  is_torn_ = true;
  step_micro_batches = micro_batches_of_step;
  // The last step that may be skipped looks where its numbers go wrong: the run's end will tell.
  looks = skipped_in_a_row > 0 && skipped_in_a_row + 1 >= skips_allowed();
  step.begin(global_steps + 1, step_micro_batches, update_of_step(rate_of(applied_steps + 1)));
  micro_step = 0;
  losses_.clear();
  loss_shares_.clear();
  share_ = {};
  extents_.clear();
  phases_ = {};
  busy_at_start_ = rank.busy();
  watch_ = Stopwatch();
}

Task<std::optional<Batch>> Engine::Impl::next_batch() {
  const Stopwatch waited;
  std::optional<HostBatch> host = co_await prefetches.back()->address().ask(NextBatch<HostBatch>{});
  data_wait_s_ += waited.elapsed_s();
  if (!host) {
    co_return std::nullopt;
  }
  ++batches_taken;
  auto make = [&] { return to_tensors(*host); };
  co_return co_await rank.compute().lane().run(make, "make tensors");
}

Task<> Engine::Impl::forward(Batch batch) {
  const std::int64_t rows = batch.inputs.size(0);
  const std::int64_t length = batch.inputs.is_floating_point() ? 1 : batch.inputs.size(1);
  if (counts_for_group()) {
    share_.tokens += batch.tokens >= 0 ? batch.tokens : rows * length;
    share_.sequences += rows;
  }
  share_.longest = std::max(share_.longest, length);
  co_await note_labels(&batch);
  extents_.push_back({.rows = rows,
                      .length = length,
                      .share = 1.0 / static_cast<double>(config.sequence_parallel_size)});
  if (means_tokens()) {
    loss_shares_.push_back(batch.loss_share.value());
  }
  batch.number = micro_batches++ * groups_of_ranks() + group_of_rank();
  const Stopwatch watch;
  co_await step.forward(co_await tensors.micro_batch(std::move(batch), looks));
  last_micro_step_ = {.forward_s = watch.elapsed_s()};
  phases_.forward_s += last_micro_step_.forward_s;
}

Task<> Engine::Impl::backward(double factor) {
  const Stopwatch watch;
  const double reduce_s = step.exposure().reduce_s;
  co_await step.backward(loss_gradient() * factor);
  last_micro_step_.backward_s = watch.elapsed_s();
  last_micro_step_.allreduce_s = step.exposure().reduce_s - reduce_s;
  phases_.backward_s += last_micro_step_.backward_s;
  phases_.allreduce_s += last_micro_step_.allreduce_s;
}

TrainStep::Update Engine::Impl::update_of_step(double rate) const {
  TrainStep::Update update{.applied_step = applied_steps + 1,
                           .gradient_clipping = config.gradient_clipping,
                           .loss_scale = scaler ? scaler->scale() : 1};
  UpdateConfig base = update_config(config.optimizer);
  base.lr = rate;
  if (const auto betas = betas_of(applied_steps + 1); betas && base.kind != OptimizerKind::kMuon) {
    base.beta1 = (*betas)[0];
    base.beta2 = (*betas)[1];
  }
  // DeepSpeed's schedules of absolute rates give every group the same one.
  const bool scales = learning_rate || config.schedule.type == ScheduleType::kConstant ||
                      config.schedule.type == ScheduleType::kWarmupCosine;
  for (const ParameterGroup& group : groups) {
    UpdateConfig own = base;
    own.lr *= group.learning_rate_factor;
    own.weight_decay = group.weight_decay.value_or(base.weight_decay);
    std::ranges::copy(update_groups(own, scales ? config.optimizer.adam_lr_factor() : 1),
                      std::back_inserter(update.groups));
  }
  return update;
}

Task<StepResult> Engine::Impl::finish() {
  const double rate = rate_of(applied_steps + 1);
  const TrainStep::Update update = update_of_step(rate);
  StepResult result{.learning_rate = rate, .loss_scale = update.loss_scale};
  const Stopwatch watch;
  losses_ = co_await step.losses();
  const double read_s = watch.elapsed_s();
  result = co_await share_with_ranks(std::move(result));
  const double shared_s = watch.elapsed_s() - read_s;
  const double reduce_s = step.exposure().reduce_s;
  result.verdict = co_await step.finish(update);
  const double finish_s = watch.elapsed_s();
  is_torn_ = false;
  result.step = ++global_steps;
  if (count(result.verdict)) {
    throw co_await bad_state(result.loss, result.verdict.norm.bad_parameter);
  }
  measure(result);
  measure_phases(result, finish_s, shared_s + step.exposure().reduce_s - reduce_s);
  if (reports_steps()) {
    co_await report(result);
  }
  if (checkpointer && checkpointer->is_active()) {
    co_await checkpointer->advance(checkpoint_phases_);
    result.checkpoint = checkpointer->take_outcome();
  }
  co_return result;
}

Task<at::Tensor> Engine::Impl::infer(Batch batch, HeadOutput output) {
  const std::shared_ptr<TensorBatch> inference =
      co_await tensors.inference(std::move(batch), output);
  co_await step.infer(inference);
  co_return co_await tensors.result_of(inference);
}

Task<StepResult> Engine::Impl::step_on(std::vector<Batch> batches) {
  require_between_steps("train_step()");
  if (means_tokens()) {
    co_await set_loss_shares(&batches);
  }
  begin_step(batches.size());
  for (const Batch& batch : batches) {
    co_await forward(batch);
    co_await backward();
  }
  co_return co_await finish();
}

bool Engine::Impl::count(const Verdict& verdict) {
  last_verdict = verdict;
  const bool skipped = verdict.outcome == StepOutcome::kSkip;
  const bool searches_scale = scaler && scaler->may_fall();
  skipped_steps += skipped ? 1 : 0;
  applied_steps += skipped ? 0 : 1;
  skipped_in_a_row = !skipped ? 0 : searches_scale ? skipped_in_a_row : skipped_in_a_row + 1;
  if (scaler) {
    scaler->update(skipped);
  }
  return skipped_in_a_row >= skips_allowed();
}

void Engine::Impl::measure(StepResult& result) {
  result.step_time_s = watch_.elapsed_s();
  result.exposure = step.exposure();
  result.exposure.data_s = std::exchange(data_wait_s_, 0);
  result.exposure.checkpoint_s += std::exchange(checkpoint_wait_s_, 0);
  const Busy now = rank.busy();
  result.exposure.compute_busy_s = now.compute_s - busy_at_start_.compute_s;
  result.exposure.optimizer_busy_s = now.optimizer_s - busy_at_start_.optimizer_s;
  result.exposure.copy_busy_s = now.copy_s - busy_at_start_.copy_s;
  result.exposure.to_device_busy_s = now.to_device_s - busy_at_start_.to_device_s;
  result.exposure.to_host_busy_s = now.to_host_s - busy_at_start_.to_host_s;
  result.exposure.disk_busy_s = now.disk_s - busy_at_start_.disk_s;
  result.peak_device_bytes = static_cast<std::int64_t>(tensors.resident_bytes().device);
  const double busiest = std::max({result.exposure.compute_busy_s, result.exposure.optimizer_busy_s,
                                   result.exposure.copy_busy_s, result.exposure.to_device_busy_s,
                                   result.exposure.to_host_busy_s, result.exposure.disk_busy_s});
  result.overlap_efficiency = std::min(1.0, busiest / result.step_time_s);
}

}  // namespace tandem
