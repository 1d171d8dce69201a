// The part of Engine that saves and loads checkpoints: what a run's state is beside its tensors,
// and how a run takes it on.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/content_hash.hpp"
#include "engine/checkpoint/changed_settings.hpp"
#include "engine/checkpoint/checkpoint_load.hpp"
#include "engine/engine_impl.hpp"
#include "engine/types/version.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

/// Names and shapes in their order, whatever the units.
std::string parameters_of(const Model& model) {
  ContentHasher hasher;
  std::int64_t count = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const std::string text =
          fmt::format("{} [{}]\n", parameter.name, fmt::join(parameter.shape, ", "));
      hasher.add(std::as_bytes(std::span(text)));
      ++count;
    }
  }
  return fmt::format("{} tensors {}", count, hasher.result().text());
}

}  // namespace

Checkpointer& Engine::Impl::checkpoints() {
  if (!checkpointer) {
    const EngineOptions& options = rank.options().shape.engine;
    checkpointer = std::make_unique<Checkpointer>(
        rank, step.update_order(),
        [this](std::vector<std::byte> mine) { return of_all_ranks(std::move(mine)); },
        Checkpointer::Options{.io_backend = options.io_backend,
                              .staging_bytes = options.checkpoint_staging_bytes,
                              .hosts = communicator->hosts()});
  }
  return *checkpointer;
}

RunState Engine::Impl::run_state() const {
  const std::int64_t groups = groups_of_ranks();
  const std::int64_t taken = batches_taken * groups;
  const std::int64_t per_epoch = loader ? loader->batches_per_epoch() * groups : 0;
  const RankShape& shape = rank.layout().shape;
  return {.global_steps = global_steps,
          .applied_steps = applied_steps,
          .schedule_steps = applied_steps + schedule_offset,
          .skipped_steps = skipped_steps,
          .skipped_in_a_row = skipped_in_a_row,
          .scaler = scaler ? std::optional(scaler->state()) : std::nullopt,
          .lost_verdicts = step.speculation().history(),
          .micro_batches = micro_batches * groups,
          .batches_taken = taken,
          .epoch = per_epoch > 0 ? taken / per_epoch : 0,
          .epoch_micro_batches = per_epoch,
          .parameters = parameters_of(rank.layout().model),
          .optimizer = config.optimizer.type,
          .data = data_fingerprint,
          .seed = shuffle_seed,
          .micro_batch_size = config.batch.micro_batch_size,
          .step_micro_batches = static_cast<std::int64_t>(accumulation) * groups,
          .loss_mean = std::string(name_of(shape.engine.loss_mean)),
          .world_size = communicator->world_size(),
          .zero_stage = static_cast<int>(config.zero.stage),
          .precision = std::string(name_of(config.precision())),
          .state_layout = std::string(name_of(shape.engine.state_layout)),
          .version = version(),
          .config = resolved_json(config),
          .settings = settings};
}

/// Ranks that keep the whole of a unit all have its sums, and rank 0 speaks for them.
Task<std::vector<std::pair<std::string, std::uint64_t>>> Engine::Impl::base_sums() {
  const FrozenBase& base = rank.loader().frozen_base();
  std::vector<std::pair<std::string, std::uint64_t>> all;
  if (!base.any()) {
    co_return all;
  }
  const RankLayout& layout = rank.layout();
  std::vector<std::uint64_t> sums;
  for (std::size_t unit = 0; unit < layout.model.units.size(); ++unit) {
    const bool counts =
        layout.sharding.is_sharded(layout.model.units[unit]) || layout.sharding.rank == 0;
    for (std::size_t i = 0; i < base.sums_of(unit).size(); ++i) {
      all.emplace_back(layout.model.units[unit].parameters[i].name, 0);
      sums.push_back(counts ? base.sums_of(unit)[i] : 0);
    }
  }
  const auto bytes = std::as_bytes(std::span(sums));
  const std::vector<std::byte> of_all =
      co_await of_all_ranks(std::vector<std::byte>(bytes.begin(), bytes.end()));
  for (std::size_t at = 0; at < of_all.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t sum = 0;
    std::memcpy(&sum, of_all.data() + at, sizeof(sum));
    all[at / sizeof(sum) % all.size()].second += sum;
  }
  co_return all;
}

Task<bool> Engine::Impl::begin_checkpoint(CheckpointArgs args) {
  require_between_steps("begin_checkpoint()");
  const Stopwatch watch;
  Checkpointer& saves = checkpoints();
  RunState state = run_state();
  if (!saves.saves_frozen()) {
    state.base = co_await base_sums();
  }
  std::vector<PlannedText> texts = {{kStateFile, state.json()},
                                    {kClientFile, args.client_state},
                                    {kIndexFile, saves.layout().index_json()}};
  for (auto& [name, text] : args.files) {
    texts.push_back({name, std::move(text)});
  }
  const bool begun = co_await saves.begin(
      {.parent = args.folder,
       .name = args.tag.empty() ? checkpoint_name(global_steps) : args.tag,
       .step = global_steps,
       .texts = std::move(texts),
       .keep = args.keep,
       .keeps_all_since =
           skipped_in_a_row > 0 ? "steps are being skipped, since no gradient is finite" : ""});
  checkpoint_wait_s_ += watch.elapsed_s();
  co_return begun;
}

Task<std::optional<CheckpointOutcome>> Engine::Impl::finish_checkpoint() {
  if (!checkpointer) {
    co_return std::nullopt;
  }
  const Stopwatch watch;
  co_await checkpointer->finish();
  checkpoint_wait_s_ += watch.elapsed_s();
  co_return checkpointer->take_outcome();
}

// ---- loading

Task<LoadedCheckpoint> Engine::Impl::load_checkpoint(std::string load_dir, std::string tag,
                                                     LoadArgs args) {
  require_between_steps("load_checkpoint()");
  co_await checkpoints().finish();
  CheckpointLoad load(checkpoints(), rank);
  co_await load.look(tag.empty() ? load_dir : load_dir + "/" + tag, !tag.empty());
  std::vector<std::string> notes;  // what was stepped over
  for (const Candidate& candidate : load.candidates()) {
    std::string fault = co_await load.open(candidate);
    if (fault.empty()) {
      LoadedCheckpoint loaded = co_await load_whole(&load, args);
      notes.insert(notes.begin(), load.broken().begin(), load.broken().end());
      loaded.notes.insert(loaded.notes.begin(), notes.begin(), notes.end());
      co_return loaded;
    }
    notes.push_back(std::move(fault));
  }
  throw user_error("resume", "{}; use another checkpoint", notes.front());
}

Task<LoadedCheckpoint> Engine::Impl::load_whole(CheckpointLoad* load, LoadArgs args) {
  const std::string& folder = load->path();
  const RunState saved =
      RunState::parse(co_await load->text(kStateFile), folder + "/" + kStateFile);
  if (saved.global_steps != load->step()) {
    throw user_error("resume", "{}/{} is of step {} and its manifest of step {}; use another one",
                     folder, kStateFile, saved.global_steps, load->step());
  }
  LoadedCheckpoint loaded{.path = folder,
                          .step = saved.global_steps,
                          .client_state = co_await load->text(kClientFile),
                          .notes = {}};
  if (args.module_only) {
    args.ignored = {"data", "seed", "batch", "optimizer"};
  }
  RunState now = run_state();
  loaded.notes = check_resume(saved, now, args.ignored, folder);
  if (!args.module_only) {
    std::ranges::move(changed_settings(saved, now), std::back_inserter(loaded.notes));
  }
  if (!saved.base.empty()) {
    now.base = co_await base_sums();
    check_base(saved, now, folder);
  }

  const UpdateConfig& optimizer = rank.layout().shape.update;
  std::vector<std::string> arrays = {std::string(array_name(optimizer, kMasterArray))};
  for (std::uint32_t k = 1; !args.module_only && k <= state_arrays(optimizer); ++k) {
    arrays.emplace_back(array_name(optimizer, k));
  }
  const bool moments = arrays.size() > 1 && load->has(arrays[1]);
  if (!moments) {
    arrays.resize(1);
  }
  load->take(std::move(arrays));
  const StateSource source = load->source();
  co_await restore_tensors(&source, moments, load);
  if (!args.module_only) {
    restore(saved);
  }
  co_return loaded;
}

Task<> Engine::Impl::restore_tensors(const StateSource* source, bool moments,
                                     CheckpointLoad* load) {
  co_await step.drain();
  is_torn_ = true;
  for (std::size_t unit = 0; unit < rank.layout().model.units.size(); ++unit) {
    if (load != nullptr && !load->has_unit(unit)) {
      continue;
    }
    if (load != nullptr) {
      co_await load->fetch(unit);
    }
    co_await rank.loader().restore(unit, rank.optimizer().state_of(unit), source, moments);
  }
  co_await step.weights_replaced();
  if (const FrozenBase& base = rank.loader().frozen_base(); base.any()) {
    // Saves keep frozen values that the source does not give again.
    const std::vector<std::byte> of_source =
        co_await of_all_ranks(std::vector(1, base.is_of_source() ? std::byte{1} : std::byte{0}));
    if (std::ranges::find(of_source, std::byte{0}) != of_source.end()) {
      checkpoints().save_frozen();
    }
  }
  is_torn_ = false;
}

Task<LoadedCheckpoint> Engine::Impl::load_foreign(ForeignState state) {
  co_await checkpoints().finish();
  co_await restore_tensors(&state.source, state.moments, nullptr);
  restore({.global_steps = state.global_steps,
           .applied_steps = state.optimizer_steps,
           .schedule_steps = state.schedule_steps,
           .skipped_steps = state.skipped_steps,
           .scaler = state.scaler,
           .lost_verdicts = step.speculation().history()});
  co_return LoadedCheckpoint{.path = state.path,
                             .step = state.global_steps,
                             .client_state = state.client_state,
                             .notes = state.notes};
}

/// Micro-batches of this rank's that hold the records which the run has seen. With other sizes than
/// the checkpoint's (--resume_ignore batch) these may end amid a micro-batch, which is made anew.
std::int64_t Engine::Impl::batches_taken_of(const RunState& state) const {
  const std::int64_t groups = groups_of_ranks();
  const std::int64_t size = config.batch.micro_batch_size;
  if (!loader || state.micro_batch_size == 0 || state.epoch_micro_batches == 0 ||
      state.micro_batch_size == size) {
    return state.batches_taken / groups;
  }
  const std::int64_t seen =
      state.batches_taken % state.epoch_micro_batches * state.micro_batch_size;  // in this epoch
  const std::int64_t per_epoch = loader->batches_per_epoch();
  return state.epoch * per_epoch + std::min(per_epoch, seen / (size * groups));
}

void Engine::Impl::restore(const RunState& state) {
  const std::int64_t groups = groups_of_ranks();
  global_steps = state.global_steps;
  applied_steps = state.applied_steps;
  schedule_offset = state.schedule_steps - state.applied_steps;
  skipped_steps = state.skipped_steps;
  skipped_in_a_row = state.skipped_in_a_row;
  if (state.step_micro_batches > 0) {
    micro_batches = state.micro_batches / groups;
    batches_taken = batches_taken_of(state);
  } else {  // not known: data go on where as many steps of this run end
    micro_batches = state.global_steps * static_cast<std::int64_t>(accumulation);
    batches_taken = micro_batches;
  }
  step.speculation().restore(state.lost_verdicts);
  if (scaler && state.scaler) {
    scaler->restore(*state.scaler);
  }
  if (loader) {
    start_prefetch(batches_taken);
  }
}

}  // namespace tandem
