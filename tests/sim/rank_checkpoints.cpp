#include "tests/sim/rank_checkpoints.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/system/nonce.hpp"
#include "tests/sim/training_rank.hpp"

namespace tandem::sim_test {
namespace {

constexpr std::array kArrays = {"master", "exp_avg", "exp_avg_sq"};

}  // namespace

RankCheckpoints::RankCheckpoints(TrainingRank& owner, CheckpointMeeting& meeting)
    : owner_(owner), meeting_(meeting) {}

void RankCheckpoints::start(Scope& actors) {
  Rank& rank = *owner_.training;
  layout_ = CheckpointLayout::of(owner_.layout);
  writer_ = std::make_unique<CheckpointWriter>(CheckpointWriter::Options{
      .pool = &owner_.copy_pool,
      .optimizer = rank.optimizer().address(),
      .units = layout_.units,
      .order = owner_.step->update_order(),
      .state_of =
          [&rank](std::uint32_t unit) {
            return rank.loader().state_of(unit, rank.optimizer().state_of(unit).buffers);
          },
      .state_file = rank.memory().state_file(),
      .lies_at = [&rank](std::uint32_t unit) { return rank.optimizer().state_of(unit).buffers; },
      .staging_bytes = owner_.random.below(20'000),
      .piece_bytes = kScaleGroup * sizeof(float) * (1 + owner_.random.below(4))});
  writer_->start(actors);
}

void RankCheckpoints::close() {
  if (writer_ != nullptr) {
    writer_->close();
  }
}

Task<bool> RankCheckpoints::agree(bool ok) {
  const std::vector<std::byte> all =
      co_await owner_.of_all_ranks({ok ? std::byte{1} : std::byte{0}});
  co_return std::ranges::find(all, std::byte{0}) == all.end();
}

Task<> RankCheckpoints::after_step() {
  const bool last = owner_.steps_done == owner_.plan.steps;
  if (save_ != nullptr && (last || owner_.steps_done >= write_until_)) {
    co_await finish();
  }
  if (save_ == nullptr && owner_.plan.saves_after(owner_.steps_done)) {
    co_await begin();
    if (save_ != nullptr && last) {
      co_await finish();
    }
  }
}

Task<> RankCheckpoints::begin() {
  const Plan& plan = owner_.plan;
  saved_step_ = owner_.steps_done;
  write_until_ = owner_.steps_done + 1 + plan.save_steps;
  const std::string folder =
      fmt::format("{}/{}", kParent, checkpoint_name(static_cast<std::int64_t>(owner_.steps_done)));
  save_ = std::make_unique<CheckpointSave>(
      &owner_.io,
      CheckpointPlan{.step = static_cast<std::int64_t>(owner_.steps_done),
                     .folder = folder,
                     .temporary = temporary_checkpoint(folder, nonce_text(meeting_.start)),
                     .files = layout_.files},
      owner_.rank, plan.ranks, &owner_.copy_pool);
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
  for (const PlannedFile& file : layout_.files) {
    co_await load_file(&file, found[0].path);
  }
  const StateSource source = [this](const ParameterSpec& parameter, std::uint32_t array,
                                    std::int64_t begin, std::int64_t end, float* out) {
    const std::vector<float>& values =
        loaded_.at(fmt::format("{} {}", kArrays[array], parameter.name));
    std::copy(values.begin() + begin, values.begin() + end, out);
  };
  Rank& rank = *owner_.training;
  for (std::size_t unit = 0; unit < owner_.plan.units(); ++unit) {
    co_await rank.loader().restore(unit, rank.optimizer().state_of(unit), &source, true);
  }
  co_await owner_.step->weights_replaced();
  co_return static_cast<std::uint64_t>(found[0].step);
}

Task<> RankCheckpoints::load_file(const PlannedFile* file, std::string path) {
  IoFile open = co_await owner_.io.open(path + "/" + file->name, OpenMode::kRead);
  std::uint64_t offset = file->header_bytes();
  const std::string array = file->name.substr(0, file->name.find_first_of("-."));
  for (const auto& tensor : file->tensors) {
    std::vector<float>& values = loaded_[fmt::format("{} {}", array, tensor.name)];
    values.resize(static_cast<std::size_t>(tensor.shape.at(0)));
    const auto bytes = std::as_writable_bytes(std::span(values));
    const std::size_t got = co_await owner_.io.read(open, offset, bytes);
    owner_.run.require(got == bytes.size(), "{} of {} ends too early", file->name, path);
    offset += bytes.size();
  }
  co_await owner_.io.close(std::move(open));
}

}  // namespace tandem::sim_test
