#include "engine/run/engine_checkpoints.hpp"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/content_hash.hpp"
#include "engine/checkpoint/changed_settings.hpp"
#include "engine/checkpoint/checkpoint_load.hpp"
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

Checkpointer& EngineCheckpoints::checkpointer() {
  if (!checkpointer_) {
    const EngineOptions& options = parts_.rank->options().shape.engine;
    const Sharding& sharding = parts_.rank->layout().sharding;
    const std::vector<std::string> hosts = parts_.communicator->hosts();
    io_.emplace(parts_.rank->loop(),
                FileIo::Options{.backend = options.io_backend, .name = "checkpoint io"});
    checkpointer_ = std::make_unique<Checkpointer>(
        *parts_.rank, *io_, parts_.step->update_order(),
        CheckpointExchange{
            .bytes = [ranks = parts_.ranks](
                         std::vector<std::byte> mine) { return ranks->bytes(std::move(mine)); },
            .rank = sharding.rank,
            .world = sharding.world},
        Checkpointer::Options{
            .staging_bytes = options.checkpoint_staging_bytes,
            .hosts = hosts,
            .machine = Checkpointer::Machine::real(hosts, sharding.rank, sharding.world)});
  }
  return *checkpointer_;
}

void EngineCheckpoints::end() {
  if (checkpointer_) {
    parts_.rank->loop().run(&Checkpointer::end, checkpointer_.get());
  }
}

RunState EngineCheckpoints::run_state() const {
  const Config& config = *parts_.config;
  const RunCounters& counters = *parts_.counters;
  const std::int64_t groups = parts_.groups.count;
  const std::optional<DataFeed>& feed = *parts_.feed;
  const std::int64_t taken = (feed ? feed->taken() : counters.batches_taken) * groups;
  const std::int64_t per_epoch = feed ? feed->loader().batches_per_epoch() * groups : 0;
  const RankShape& shape = parts_.rank->layout().shape;
  const std::optional<LossScaler>& scaler = *parts_.scaler;
  return {.global_steps = counters.global_steps,
          .applied_steps = counters.applied_steps,
          .schedule_steps = counters.applied_steps + counters.schedule_offset,
          .skipped_steps = counters.skipped_steps,
          .skipped_in_a_row = counters.skipped_in_a_row,
          .scaler = scaler ? std::optional(scaler->state()) : std::nullopt,
          .lost_verdicts = parts_.step->speculation().history(),
          .micro_batches = counters.micro_batches * groups,
          .batches_taken = taken,
          .epoch = per_epoch > 0 ? taken / per_epoch : 0,
          .epoch_micro_batches = per_epoch,
          .parameters = parameters_of(parts_.rank->layout().model),
          .optimizer = config.optimizer.type,
          .data = feed ? feed->fingerprint() : "",
          .seed = feed ? feed->seed() : 0,
          .micro_batch_size = config.batch.micro_batch_size,
          .step_micro_batches = parts_.accumulation * groups,
          .loss_mean = std::string(name_of(shape.engine.loss_mean)),
          .world_size = parts_.communicator->world_size(),
          .zero_stage = static_cast<int>(config.zero.stage),
          .precision = std::string(name_of(config.precision())),
          .state_layout = std::string(name_of(shape.engine.state_layout)),
          .version = version(),
          .config = resolved_json(config),
          .settings = parts_.settings};
}

/// Ranks that keep the whole of a unit all have its sums, and rank 0 speaks for them.
Task<std::vector<std::pair<std::string, std::uint64_t>>> EngineCheckpoints::base_sums() {
  const FrozenBase& base = parts_.rank->loader().frozen_base();
  std::vector<std::pair<std::string, std::uint64_t>> all;
  if (!base.any()) {
    co_return all;
  }
  const RankLayout& layout = parts_.rank->layout();
  std::vector<std::uint64_t> sums;
  for (std::size_t unit = 0; unit < layout.model.units.size(); ++unit) {
    const bool counts =
        layout.sharding.is_sharded(layout.model.units[unit]) || layout.sharding.rank == 0;
    for (std::size_t i = 0; i < base.sums_of(unit).size(); ++i) {
      all.emplace_back(layout.model.units[unit].parameters[i].name, 0);
      sums.push_back(counts ? base.sums_of(unit)[i] : 0);
    }
  }
  const std::vector<std::uint64_t> of_ranks = co_await parts_.ranks->values(sums);
  for (std::size_t i = 0; i < of_ranks.size(); ++i) {
    all[i % all.size()].second += of_ranks[i];
  }
  co_return all;
}

Task<bool> EngineCheckpoints::begin(CheckpointArgs args) {
  Checkpointer& saves = checkpointer();
  const RunCounters& counters = *parts_.counters;
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
  co_return co_await saves.begin(
      {.parent = args.folder,
       .name = args.tag.empty() ? checkpoint_name(counters.global_steps) : args.tag,
       .step = counters.global_steps,
       .texts = std::move(texts),
       .keep = args.keep,
       .keeps_all_since = counters.skipped_in_a_row > 0
                              ? "steps are being skipped, since no gradient is finite"
                              : ""});
}

Task<std::optional<CheckpointOutcome>> EngineCheckpoints::finish() {
  if (!checkpointer_) {
    co_return std::nullopt;
  }
  co_await checkpointer_->finish();
  co_return checkpointer_->take_outcome();
}

Task<std::optional<CheckpointOutcome>> EngineCheckpoints::advance(
    std::vector<Checkpointer::Phase> of_ranks) {
  if (!checkpointer_ || !checkpointer_->is_active()) {
    co_return std::nullopt;
  }
  co_await checkpointer_->advance(of_ranks);
  co_return checkpointer_->take_outcome();
}

// ---- loading

Task<LoadedCheckpoint> EngineCheckpoints::load(std::string folder, std::string tag, LoadArgs args) {
  co_await checkpointer().finish();
  CheckpointLoad load(checkpointer(), *parts_.rank);
  co_await load.inspect(tag.empty() ? folder : folder + "/" + tag, !tag.empty());
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

Task<LoadedCheckpoint> EngineCheckpoints::load_whole(CheckpointLoad* load, LoadArgs args) {
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
  loaded.notes = check_resume(saved, now, args, folder);
  if (!args.module_only) {
    std::ranges::move(changed_settings(saved, now), std::back_inserter(loaded.notes));
  }
  if (!saved.base.empty()) {
    now.base = co_await base_sums();
    check_base(saved, now, folder);
  }

  const UpdateConfig& optimizer = parts_.rank->layout().shape.update;
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

Task<> EngineCheckpoints::restore_tensors(const StateSource* source, bool moments,
                                          CheckpointLoad* load) {
  Rank& rank = *parts_.rank;
  co_await parts_.step->drain();
  parts_.change->is_open = true;
  for (std::size_t unit = 0; unit < rank.layout().model.units.size(); ++unit) {
    if (load != nullptr && !load->has_unit(unit)) {
      continue;
    }
    if (load != nullptr) {
      co_await load->fetch(unit);
    }
    co_await rank.loader().restore(unit, rank.optimizer().state_of(unit), source, moments);
  }
  co_await parts_.step->weights_replaced();
  if (const FrozenBase& base = rank.loader().frozen_base(); base.any()) {
    // Saves keep frozen values that the source does not give again.
    const std::vector<std::byte> of_source = co_await parts_.ranks->bytes(
        std::vector(1, base.is_of_source() ? std::byte{1} : std::byte{0}));
    if (std::ranges::find(of_source, std::byte{0}) != of_source.end()) {
      checkpointer().save_frozen();
    }
  }
  parts_.change->is_open = false;
}

Task<LoadedCheckpoint> EngineCheckpoints::load_foreign(ForeignState state) {
  co_await checkpointer().finish();
  co_await restore_tensors(&state.source, state.moments, nullptr);
  restore({.global_steps = state.global_steps,
           .applied_steps = state.optimizer_steps,
           .schedule_steps = state.schedule_steps,
           .skipped_steps = state.skipped_steps,
           .scaler = state.scaler,
           .lost_verdicts = parts_.step->speculation().history()});
  co_return LoadedCheckpoint{.path = state.path,
                             .step = state.global_steps,
                             .client_state = state.client_state,
                             .notes = state.notes};
}

/// With other sizes than the checkpoint's (--resume_ignore batch) the records may end amid a
/// micro-batch, which is made anew.
std::int64_t EngineCheckpoints::batches_taken_of(const RunState& state) const {
  const std::int64_t groups = parts_.groups.count;
  const std::int64_t size = parts_.config->batch.micro_batch_size;
  if (!*parts_.feed || state.micro_batch_size == 0 || state.epoch_micro_batches == 0 ||
      state.micro_batch_size == size) {
    return state.batches_taken / groups;
  }
  const std::int64_t seen =
      state.batches_taken % state.epoch_micro_batches * state.micro_batch_size;  // in this epoch
  const std::int64_t per_epoch = (*parts_.feed)->loader().batches_per_epoch();
  return state.epoch * per_epoch + std::min(per_epoch, seen / (size * groups));
}

void EngineCheckpoints::restore(const RunState& state) {
  RunCounters& counters = *parts_.counters;
  counters.global_steps = state.global_steps;
  counters.applied_steps = state.applied_steps;
  counters.schedule_offset = state.schedule_steps - state.applied_steps;
  counters.skipped_steps = state.skipped_steps;
  counters.skipped_in_a_row = state.skipped_in_a_row;
  // Where it is not known, data go on where as many steps of this run end.
  const bool is_known = state.step_micro_batches > 0;
  counters.micro_batches = is_known ? state.micro_batches / parts_.groups.count
                                    : state.global_steps * parts_.accumulation;
  parts_.step->speculation().restore(state.lost_verdicts);
  if (std::optional<LossScaler>& scaler = *parts_.scaler; scaler && state.scaler) {
    scaler->restore(*state.scaler);
  }
  counters.batches_taken = is_known ? batches_taken_of(state) : counters.micro_batches;
  if (std::optional<DataFeed>& feed = *parts_.feed) {
    feed->go_on_at(counters.batches_taken);
  }
}

}  // namespace tandem
