#include "engine/checkpoint/checkpoint_load.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

CheckpointLoad::CheckpointLoad(Checkpointer& meeting, Rank& rank) : meeting_(meeting), rank_(rank) {
  ranks_ = {
      .disks = &disks_, .rank = rank.layout().sharding.rank, .exchange = [this](std::string mine) {
        return meeting_.texts_of_all_ranks(std::move(mine));
      }};
}

Task<> CheckpointLoad::inspect(std::string folder, bool is_one) {
  disks_ = co_await meeting_.disks_of(folder);
  if (!disks_.are_several() && !fs::is_directory(folder)) {
    throw user_error("resume", "there is no folder {}; give a checkpoint or a folder of them",
                     folder);
  }
  found_ = co_await find_candidates(&ranks_, &meeting_.files(), folder, is_one);
  if (!found_.candidates.empty()) {
    co_return;
  }
  std::string broken = found_.broken.empty() ? "" : found_.broken.front();
  if (disks_.are_several()) {
    broken = co_await ranks_.first_word(std::move(broken));
  }
  throw user_error("resume", "{} holds no whole checkpoint{}{}; give another folder", folder,
                   disks_.are_several() ? " on any host" : "",
                   broken.empty() ? "" : fmt::format(" ({})", broken));
}

Task<std::string> CheckpointLoad::open(Candidate candidate) {
  path_ = candidate.path();
  std::string fault;
  held_ = co_await held_by_disks(&ranks_, &meeting_.files(), candidate, &fault);
  if (const std::string missing = fault.empty() && candidate.in_slices ? missing_in(held_) : "";
      !missing.empty()) {
    co_return fmt::format("{}: {}", path_, missing);
  }
  if (fault.empty()) {
    fault = co_await verify();
  }
  if (fault.empty()) {
    fault = co_await name_sealed(&candidate);
  }
  runs_.clear();
  for (const HeldCheckpoint& held : held_) {
    runs_.emplace_back(held);
  }
  co_return fault.empty() ? "" : fmt::format("{} is damaged: {}", path_, fault);
}

/// The ranks of a disk hash its files between them.
Task<std::string> CheckpointLoad::verify() {
  const HeldCheckpoint& here = held_[ranks_.own_disk()];
  std::string fault;
  if (!here.folder.empty()) {
    const std::vector<std::uint32_t> sharers = disks_.ranks_of(ranks_.own_disk());
    const auto part = std::ranges::find(sharers, ranks_.rank) - sharers.begin();
    try {
      const std::vector<std::string> faults = co_await verify_entries(
          &meeting_.files(), here.folder, here.files, static_cast<std::uint32_t>(part),
          static_cast<std::uint32_t>(sharers.size()), &rank_.copy_pool());
      fault = faults.empty() ? "" : faults.front();
    } catch (const Error& error) {
      fault = error.what();
    }
  }
  co_return co_await ranks_.first_word(std::move(fault));
}

/// A save that was cut off when all disks had sealed it: those that have not given it its name do
/// so now.
Task<std::string> CheckpointLoad::name_sealed(const Candidate* candidate) {
  const auto final_path = [&](std::size_t disk) {
    return fs::path(candidate->paths[disk]).parent_path() / candidate->name;
  };
  bool any_sealed = false;
  for (std::size_t disk = 0; disk < held_.size(); ++disk) {
    any_sealed = any_sealed || (candidate->in_slices && !held_[disk].folder.empty() &&
                                fs::path(held_[disk].folder).filename() != candidate->name);
  }
  if (!any_sealed) {
    co_return "";
  }
  std::string fault;
  const HeldCheckpoint& here = held_[ranks_.own_disk()];
  if (disks_.is_first_of_its_disk(ranks_.rank) && !here.folder.empty() &&
      here.folder != final_path(ranks_.own_disk())) {
    try {
      co_await give_name(&meeting_.files(), here.folder, final_path(ranks_.own_disk()));
    } catch (const Error& error) {
      fault = error.what();
    }
  }
  fault = co_await ranks_.first_word(std::move(fault));
  for (std::size_t disk = 0; disk < held_.size() && fault.empty(); ++disk) {
    if (!held_[disk].folder.empty()) {
      held_[disk].folder = final_path(disk);
    }
  }
  co_return fault;
}

const HeldCheckpoint* CheckpointLoad::any() const {
  const auto found =
      std::ranges::find_if(held_, [](const auto& held) { return !held.folder.empty(); });
  TANDEM_CHECK(found != held_.end(), "a checkpoint that was opened lies on a disk");
  return &*found;
}

Task<std::string> CheckpointLoad::text(std::string name) {
  const HeldCheckpoint& here = held_[ranks_.own_disk()];
  std::string text;
  if (!here.folder.empty()) {
    text = co_await read_text(&meeting_.files(), here.folder + "/" + name);
  }
  std::vector<std::string> texts = co_await ranks_.of_first_ranks(std::move(text));
  co_return std::move(texts[static_cast<std::size_t>(any() - held_.data())]);
}

void CheckpointLoad::take(std::vector<std::string> arrays) {
  TANDEM_CHECK(!arrays.empty(), "weights are read at least");
  arrays_ = std::move(arrays);
  require_shapes(*any(), rank_.layout(), arrays_);
  source_.emplace(held_[ranks_.own_disk()], arrays_);
}

bool CheckpointLoad::has_unit(std::size_t unit) const {
  const UnitSpec& spec = rank_.layout().model.units[unit];
  if (!spec.frozen() || spec.parameters.empty()) {
    return true;
  }
  return std::ranges::any_of(any()->whole, [&](const PlannedFile& file) {
    return array_of_file(file.name) == arrays_.front() &&
           std::ranges::find(file.tensors, spec.parameters.front().name, &TensorPlan::name) !=
               file.tensors.end();
  });
}

// ---- what comes from other disks

ElementRun CheckpointLoad::Stream::part_of(std::size_t place) const {
  TANDEM_CHECK(place < ranks.size(), "a stream is cut among the ranks of its disk");
  const auto count = static_cast<std::int64_t>(ranks.size());
  const auto at = static_cast<std::int64_t>(place);
  return {.begin = elements * at / count, .end = elements * (at + 1) / count};
}

std::vector<CheckpointLoad::Stream> CheckpointLoad::streams_of(std::size_t unit) const {
  using Key = std::tuple<std::uint32_t, std::size_t, std::int64_t, std::int64_t>;
  const RankLayout& layout = rank_.layout();
  const std::vector<ParameterSpec>& parameters = layout.model.units[unit].parameters;
  std::vector<std::map<Key, bool>> wanted(disks_.count());  // by this rank
  for (std::uint32_t rank = 0; rank < layout.sharding.world; ++rank) {
    const HeldRuns& own = runs_[disks_.of_rank[rank]];
    for (std::uint32_t array = 0; array < arrays_.size(); ++array) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!layout.has_array(parameters[i], array)) {
          continue;
        }
        std::vector<ElementRun> left =
            own.missing(arrays_[array], parameters[i].name, kept_by(layout, rank, unit, i));
        for (std::uint32_t disk = 0; disk < disks_.count(); ++disk) {
          std::vector<ElementRun> still;
          for (const ElementRun& run : left) {
            for (const ElementRun& there : runs_[disk].of(arrays_[array], parameters[i].name)) {
              const std::int64_t begin = std::max(run.begin, there.begin);
              const std::int64_t end = std::min(run.end, there.end);
              if (begin < end) {
                wanted[disk][{array, i, begin, end}] |= rank == ranks_.rank;
              }
            }
            const auto parts = runs_[disk].missing(arrays_[array], parameters[i].name, run);
            still.insert(still.end(), parts.begin(), parts.end());
          }
          left = std::move(still);
        }
      }
    }
  }
  std::vector<Stream> streams(disks_.count());
  for (std::uint32_t disk = 0; disk < disks_.count(); ++disk) {
    Stream& stream = streams[disk];
    stream.ranks = disks_.ranks_of(disk);
    for (const auto& [key, is_mine] : wanted[disk]) {
      const auto [array, parameter, begin, end] = key;
      Transfer& transfer = stream.transfers.emplace_back(
          Transfer{array, parameter, {.begin = begin, .end = end}, stream.elements, {}});
      transfer.values.resize(is_mine ? static_cast<std::size_t>(end - begin) : 0);
      stream.elements += end - begin;
    }
  }
  return streams;
}

/// Elements `part` of what this rank's disk sends.
void CheckpointLoad::fill(std::size_t unit, const Stream& stream, ElementRun part,
                          float* out) const {
  for (const Transfer& transfer : stream.transfers) {
    const std::int64_t begin = std::max(part.begin, transfer.at);
    const std::int64_t end =
        std::min(part.end, transfer.at + transfer.run.end - transfer.run.begin);
    if (begin < end) {
      const std::int64_t first = transfer.run.begin + begin - transfer.at;
      source_->read(transfer.array,
                    rank_.layout().model.units[unit].parameters[transfer.parameter].name, first,
                    first + end - begin, out + (begin - part.begin));
    }
  }
}

void CheckpointLoad::take_part(Stream& stream, ElementRun part, const float* values) {
  for (Transfer& transfer : stream.transfers) {
    const std::int64_t begin = std::max(part.begin, transfer.at);
    const std::int64_t end =
        std::min(part.end, transfer.at + transfer.run.end - transfer.run.begin);
    if (begin < end && !transfer.values.empty()) {
      std::copy_n(values + (begin - part.begin), end - begin,
                  transfer.values.data() + (begin - transfer.at));
    }
  }
}

Task<> CheckpointLoad::fetch(std::size_t unit) {
  source_->drop_lent();
  if (!disks_.are_several()) {
    co_return;
  }
  std::vector<Stream> streams = streams_of(unit);
  std::int64_t most = 0;
  std::vector<ElementRun> parts(rank_.layout().sharding.world);  // [rank] that it sends
  for (const Stream& stream : streams) {
    for (std::size_t place = 0; place < stream.ranks.size(); ++place) {
      parts[stream.ranks[place]] = stream.part_of(place);
      most = std::max(most, parts[stream.ranks[place]].end - parts[stream.ranks[place]].begin);
    }
  }
  constexpr auto kRound = static_cast<std::int64_t>(kRoundBytes / sizeof(float));
  for (std::int64_t from = 0; from < most; from += kRound) {
    const std::int64_t size = std::min(kRound, most - from);
    const auto in_round = [&](const ElementRun& part) {
      const std::int64_t begin = std::min(part.begin + from, part.end);
      return ElementRun{.begin = begin, .end = std::min(begin + size, part.end)};
    };
    std::vector<std::byte> mine(static_cast<std::size_t>(size) * sizeof(float));
    fill(unit, streams[ranks_.own_disk()], in_round(parts[ranks_.rank]),
         reinterpret_cast<float*>(mine.data()));
    const std::vector<std::byte> all = co_await meeting_.bytes_of_all_ranks(std::move(mine));
    TANDEM_CHECK_EQ(all.size(), parts.size() * static_cast<std::size_t>(size) * sizeof(float),
                    "each rank sends a round's bytes");
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      take_part(streams[disks_.of_rank[rank]], in_round(parts[rank]),
                reinterpret_cast<const float*>(all.data()) + rank * static_cast<std::size_t>(size));
    }
  }
  for (Stream& stream : streams) {
    for (Transfer& transfer : stream.transfers) {
      if (!transfer.values.empty()) {
        source_->lend(transfer.array,
                      rank_.layout().model.units[unit].parameters[transfer.parameter].name,
                      transfer.run.begin, std::move(transfer.values));
      }
    }
  }
}

}  // namespace tandem
