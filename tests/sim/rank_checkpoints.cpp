#include "tests/sim/rank_checkpoints.hpp"

#include <algorithm>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/system/nonce.hpp"
#include "tests/sim/training_rank.hpp"

namespace tandem::sim_test {
namespace {

constexpr std::array kArrays = {"master", "exp_avg", "exp_avg_sq"};

std::vector<PlannedFile> files_of(const Plan& plan) {
  std::vector<PlannedFile> files;
  for (const char* array : kArrays) {
    files.push_back({.name = fmt::format("{}.safetensors", array), .tensors = {}});
    for (std::uint32_t unit = 0; unit < plan.units; ++unit) {
      files.back().tensors.push_back({.name = fmt::format("unit{}", unit),
                                      .type = TensorType::kF32,
                                      .shape = {static_cast<std::int64_t>(plan.elements[unit])}});
    }
  }
  return files;
}

/// Elements of the unit before the rank's slice, and in it without the padding.
struct Slice {
  std::size_t begin;
  std::size_t elements;
};
Slice slice_of(const Plan& plan, std::uint32_t unit, std::uint32_t rank) {
  const UnitLayout layout = plan.layout(unit);
  const std::size_t begin = std::min(layout.shard_begin(rank), layout.elements);
  return {begin, std::min(layout.shard_elements, layout.elements - begin)};
}

std::vector<CheckpointWriter::Unit> units_of(const Plan& plan, std::uint32_t rank) {
  std::vector<CheckpointWriter::Unit> units(plan.units);
  for (std::uint32_t array = 0; array < kArrays.size(); ++array) {
    std::uint64_t unit_offset = 0;
    for (std::uint32_t unit = 0; unit < plan.units; ++unit) {
      const Slice slice = slice_of(plan, unit, rank);
      units[unit].elements = plan.layout(unit).shard_elements;
      if (slice.elements > 0) {
        units[unit].pieces.push_back({.file = array,
                                      .data_offset = unit_offset + slice.begin * sizeof(float),
                                      .array = array,
                                      .begin = 0,
                                      .end = slice.elements});
      }
      unit_offset += plan.elements[unit] * sizeof(float);
    }
  }
  return units;
}

}  // namespace

RankCheckpoints::RankCheckpoints(TrainingRank& owner, CheckpointMeeting& meeting)
    : owner_(owner), meeting_(meeting) {}

void RankCheckpoints::start(Scope& actors) {
  std::vector<std::uint32_t> order(owner_.plan.units);
  for (std::uint32_t i = 0; i < owner_.plan.units; ++i) {
    order[i] = owner_.plan.units - 1 - i;
  }
  writer_ = std::make_unique<CheckpointWriter>(CheckpointWriter::Options{
      .pool = &owner_.pool,
      .optimizer = owner_.optimizer->address(),
      .units = units_of(owner_.plan, owner_.rank),
      .order = std::move(order),
      .state_of = [this](std::uint32_t unit) { return state_of(unit); },
      .staging_bytes = owner_.random.below(20'000),
      .piece_bytes = kStateBlock * sizeof(float) * (1 + owner_.random.below(4))});
  writer_->start(actors);
}

Task<HostState> RankCheckpoints::state_of(std::uint32_t unit) {
  return owner_.arrays.state_of(unit, owner_.optimizer->state_of(unit).buffers);
}

Task<bool> RankCheckpoints::agree(bool ok) {
  GradientNorm failed;
  failed.first_bad_element = ok ? -1 : 0;
  const std::uint64_t sequence = owner_.first_sequence();
  ++agreements_;
  const GradientNorm all =
      co_await owner_.collectives.address().ask(AllReduceNorm{sequence, failed});
  co_return all.first_bad_element < 0;
}

Task<> RankCheckpoints::after_step() {
  const bool last = owner_.step == owner_.plan.steps;
  if (save_ != nullptr && (last || owner_.step >= write_until_)) {
    co_await finish();
  }
  if (save_ == nullptr && owner_.plan.saves_after(owner_.step)) {
    co_await begin();
    if (save_ != nullptr && last) {
      co_await finish();
    }
  }
}

Task<> RankCheckpoints::begin() {
  const Plan& plan = owner_.plan;
  saved_step_ = owner_.step;
  write_until_ = owner_.step + 1 + plan.save_steps;
  const std::string folder =
      fmt::format("{}/{}", kParent, checkpoint_name(static_cast<std::int64_t>(owner_.step)));
  save_ = std::make_unique<CheckpointSave>(
      &owner_.io,
      CheckpointPlan{.step = static_cast<std::int64_t>(owner_.step),
                     .folder = folder,
                     .temporary = temporary_checkpoint(folder, nonce_text(meeting_.start)),
                     .files = files_of(plan)},
      owner_.rank, plan.ranks, &owner_.pool);
  bool ok = true;
  try {
    if (owner_.rank == 0) {
      co_await save_->create();
    }
  } catch (const Error&) {
    ok = false;
  }
  ok = co_await agree(ok);
  try {
    if (ok) {
      co_await save_->open();
    }
  } catch (const Error&) {
    ok = false;
  }
  if (!co_await agree(ok)) {
    if (owner_.rank == 0) {
      ++meeting_.failed_saves;
      co_await save_->discard();
    }
    save_.reset();
    co_return;
  }
  (void)co_await writer_->address().ask(HoldForCheckpoint{});
  written_.reset();
  write_failed_ = false;
  owner_.main_scope.spawn("checkpoint", &RankCheckpoints::write, this);
}

/// Beside the steps.
Task<> RankCheckpoints::write(RankCheckpoints* self) {
  try {
    const WriteOutcome outcome =
        co_await self->writer_->address().ask(WriteCheckpoint{self->save_.get()});
    self->write_failed_ = outcome.failure != nullptr;
  } catch (...) {  // the files failed, or the rank ends
    self->write_failed_ = true;
  }
  self->written_.set();
}

Task<> RankCheckpoints::finish() {
  co_await written_;
  bool ok = co_await agree(!write_failed_);
  try {
    if (ok) {
      for (ManifestFile& file : co_await save_->hash()) {
        meeting_.entries.push_back(std::move(file));
      }
    }
  } catch (const Error&) {
    ok = false;
  }
  ok = co_await agree(ok);
  if (owner_.rank == 0) {
    try {
      if (ok) {
        co_await save_->commit(std::move(meeting_.entries), {});
        meeting_.committed_step = saved_step_;
        co_await remove_older(&owner_.io, kParent, 2, INT64_MAX);
      }
    } catch (const Error&) {
      ok = false;
    }
    meeting_.entries.clear();
  }
  ok = co_await agree(ok);
  if (owner_.rank == 0 && !ok) {
    ++meeting_.failed_saves;
    co_await save_->discard();
  }
  save_.reset();
}

Task<std::uint64_t> RankCheckpoints::load() {
  std::vector<std::string> broken;
  const std::vector<FoundCheckpoint> found =
      co_await find_checkpoints(&owner_.io, kParent, &broken);
  owner_.run.require(broken.empty(), "a start finds {}", broken.empty() ? "" : broken[0]);
  if (found.empty()) {
    co_return 0;
  }
  const std::vector<PlannedFile> files = files_of(owner_.plan);
  for (std::uint32_t array = 0; array < files.size(); ++array) {
    co_await load_array(&files[array], found[0].path, array);
  }
  co_return static_cast<std::uint64_t>(found[0].step);
}

Task<> RankCheckpoints::load_array(const PlannedFile* file, std::string path, std::uint32_t array) {
  IoFile open = co_await owner_.io.open(path + "/" + file->name, OpenMode::kRead);
  std::uint64_t offset = file->header_bytes();
  for (std::uint32_t unit = 0; unit < owner_.plan.units; ++unit) {
    const Slice slice = slice_of(owner_.plan, unit, owner_.rank);
    float* into = owner_.arrays.memory(unit, static_cast<RankArrays::Kind>(array));
    const auto bytes = std::as_writable_bytes(std::span(into, slice.elements));
    const std::size_t got =
        co_await owner_.io.read(open, offset + slice.begin * sizeof(float), bytes);
    owner_.run.require(got == bytes.size(), "{} of {} ends too early", file->name, path);
    if (array == 0) {
      std::copy_n(into, slice.elements, owner_.arrays.memory(unit, RankArrays::kWeight));
    }
    offset += owner_.plan.elements[unit] * sizeof(float);
  }
  co_await owner_.io.close(std::move(open));
}

}  // namespace tandem::sim_test
