#include "tests/sim/rank_checkpoints.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "tests/sim/training_rank.hpp"

namespace tandem::sim_test {
namespace {

constexpr std::array<std::string_view, 3> kArrays = {"master", "exp_avg", "exp_avg_sq"};

Task<Disks> known(Disks disks) { co_return disks; }

/// A save that was cut off before all disks had sealed it; until then no disk gives it its name.
bool may_lack_slices(const Candidate& candidate) {
  return candidate.in_slices && std::ranges::none_of(candidate.paths, [&](const auto& path) {
           return path.ends_with("/" + candidate.name);
         });
}

}  // namespace

RankCheckpoints::RankCheckpoints(TrainingRank& owner, CheckpointMeeting& meeting)
    : owner_(owner), meeting_(meeting) {}

Checkpointer::Machine RankCheckpoints::machine() {
  return {.find_disks = [this](const TextExchange&,
                               const std::string&) { return known(owner_.plan.disks()); },
          .make_folder = [](const std::string&) {},
          .new_id =
              [this] {
                return ContentHash{(meeting_.start << 32) + ++ids_,
                                   owner_.random.next() + meeting_.start}
                    .text();
              }};
}

void RankCheckpoints::start() {
  const std::size_t staging_bytes = owner_.random.below(20'000);
  const std::size_t piece_bytes = kScaleGroup * sizeof(float) * (1 + owner_.random.below(4));
  saves_ = std::make_unique<Checkpointer>(
      *owner_.training, owner_.io, owner_.step->update_order(),
      CheckpointExchange{
          .bytes =
              [this](std::vector<std::byte> mine) { return owner_.of_all_ranks(std::move(mine)); },
          .rank = owner_.rank,
          .world = owner_.plan.ranks},
      Checkpointer::Options{.staging_bytes = staging_bytes,
                            .piece_bytes = piece_bytes,
                            .hosts = owner_.plan.host_names(),
                            .machine = machine()});
}

Task<> RankCheckpoints::end() {
  if (saves_ != nullptr) {
    co_await saves_->end();
  }
}

void RankCheckpoints::take_outcome() {
  const std::optional<CheckpointOutcome> outcome = saves_->take_outcome();
  if (outcome && owner_.rank == 0) {
    if (outcome->saved()) {
      meeting_.committed_step = static_cast<std::uint64_t>(outcome->step);
    } else {
      meeting_.save_error = outcome->error;
    }
  }
}

Task<> RankCheckpoints::after_step() {
  const bool last = owner_.steps_done == owner_.plan.steps;
  if (saves_->is_active()) {  // the engine's step carries the phases
    const std::vector<std::byte> all =
        co_await owner_.of_all_ranks({static_cast<std::byte>(saves_->phase())});
    std::vector<SavePhase> of_ranks(all.size());
    std::memcpy(of_ranks.data(), all.data(), all.size());
    co_await saves_->advance(of_ranks);
  }
  if (last || owner_.steps_done >= write_until_) {
    co_await saves_->finish();
  }
  take_outcome();
  if (!saves_->is_active() && owner_.plan.saves_after(owner_.steps_done)) {
    write_until_ = owner_.steps_done + 1 + owner_.plan.save_steps;
    const auto step = static_cast<std::int64_t>(owner_.steps_done);
    co_await saves_->begin({.parent = kParent,
                            .name = checkpoint_name(step),
                            .step = step,
                            .texts = {{"state.json", fmt::format("{{\"step\": {}}}\n", step)}},
                            .keep = owner_.plan.keep});
    if (last) {
      co_await saves_->finish();
    }
    take_outcome();
  }
}

Task<std::uint64_t> RankCheckpoints::load() {
  CheckpointLoad load(*saves_, *owner_.training);
  std::exception_ptr none;
  try {
    co_await load.inspect(kParent, false);
  } catch (const FileError&) {
    throw;
  } catch (const Error&) {
    none = std::current_exception();
  }
  if (!load.broken().empty()) {
    const bool unread = load.broken()[0].find("Input/output error") != std::string::npos;
    owner_.run.require(unread && none, "a start finds {}", load.broken()[0]);
    std::rethrow_exception(none);
  }
  for (const Candidate& candidate : load.candidates()) {
    const std::string fault = co_await load.open(candidate);
    if (fault.empty()) {
      co_await restore(&load);
      co_return static_cast<std::uint64_t>(load.step());
    }
    owner_.run.require(may_lack_slices(candidate), "a start finds {}", fault);
  }
  co_return 0;
}

Task<> RankCheckpoints::restore(CheckpointLoad* load) {
  CheckpointSource read(kArrays.size());
  for (const ManifestFile& file : load->here().files) {
    co_await load_file(&file, load->here().folder, &read);
  }
  load->take({kArrays.begin(), kArrays.end()}, std::move(read));
  const StateSource source = load->source();
  Rank& rank = *owner_.training;
  for (std::size_t unit = 0; unit < owner_.plan.units(); ++unit) {
    co_await load->fetch(unit);
    co_await rank.loader().restore(unit, rank.optimizer().state_of(unit), &source, true);
  }
  co_await owner_.step->weights_replaced();
}

Task<> RankCheckpoints::load_file(const ManifestFile* file, std::string path,
                                  CheckpointSource* into) {
  IoFile open = co_await owner_.io.open(path + "/" + file->name, OpenMode::kRead);
  const auto array = std::ranges::find(kArrays, array_of_file(file->name)) - kArrays.begin();
  for (const ManifestTensor& tensor : file->tensors) {
    const TensorRun run =
        TensorRun::parse(tensor.name).value_or(TensorRun{tensor.name, 0, tensor.shape.at(0)});
    std::vector<float> values(static_cast<std::size_t>(run.end - run.begin));
    const auto bytes = std::as_writable_bytes(std::span(values));
    const std::size_t got = co_await owner_.io.read(open, tensor.begin_byte, bytes);
    owner_.run.require(got == bytes.size(), "{} of {} ends too early", file->name, path);
    into->keep(static_cast<std::uint32_t>(array), run.tensor, run.begin, std::move(values));
  }
  co_await owner_.io.close(std::move(open));
}

}  // namespace tandem::sim_test
