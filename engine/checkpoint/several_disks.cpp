// The protocol of hosts with disks of their own: each disk has its ranks' slices, the first rank of
// a disk makes and names its folder, and ranks send each other the elements that their disks lack.
//
// Invariant: no disk's folder gets its name before all are sealed, and no older one is removed
// before all have their names. A sealed folder counts as saved. So whenever the run is killed or
// the power fails, all disks have one step in common. A checkpoint that all disks have sealed stays
// even if the save fails then, because one of them may have its name already. Every rank knows the
// layout and the content of each disk, so each knows what every rank sends. They send in rounds of
// kRoundBytes per rank; a rank's memory grows by its own slice of one unit.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "engine/checkpoint/checkpoint_protocol.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {
namespace {

constexpr std::size_t kRoundBytes = std::size_t{64} << 10;

/// A run of elements that the ranks of one disk send to ranks with other disks.
struct Transfer {
  std::uint32_t array = 0;
  std::size_t parameter = 0;  // of the unit
  ElementRun run;
  std::int64_t at = 0;        // its position among the elements that its disk sends
  std::vector<float> values;  // here; empty: this rank does not need it
};

/// The parts of a unit that one disk sends, cut among its ranks.
struct Stream {
  std::vector<Transfer> transfers;
  std::int64_t elements = 0;
  std::vector<std::uint32_t> ranks;

  [[nodiscard]] ElementRun part_of(std::size_t place) const {
    TANDEM_CHECK(place < ranks.size(), "a stream is cut among the ranks of its disk");
    const auto count = static_cast<std::int64_t>(ranks.size());
    const auto at = static_cast<std::int64_t>(place);
    return {.begin = elements * at / count, .end = elements * (at + 1) / count};
  }
};

class SeveralDisks final : public CheckpointProtocol {
 public:
  SeveralDisks(Disks disks, CheckpointExchange ranks)
      : CheckpointProtocol(std::move(disks), std::move(ranks)) {}

  [[nodiscard]] CheckpointLayout layout(const RankLayout& layout, bool with_frozen) const override {
    return CheckpointLayout::of(layout, disks_.ranks_of(own_disk()), with_frozen);
  }

  Task<> save(RankSave* save) override {
    save->plan(
        co_await save->votes.all_have(SavePhase::kAgreed, save->own_id()),
        ManifestSlices{
            .save = {}, .disk = own_disk(), .hosts = disks_.hosts, .whole = save->layout().whole});
    co_await write_files(save);

    if (is_first()) {
      co_await save->seal();  // all of the slices are durable, the manifest last
    }
    if (!planted(Bug::kNamedBeforeSealed)) {
      co_await save->votes.all_have(SavePhase::kSealed);  // the commit
    }
    save->must_stay();
    if (is_first()) {
      co_await save->take_name();
    }
    co_await save->votes.all_have(SavePhase::kNamed);
    if (is_first()) {
      co_await save->remove_older();
    }
  }

  /// The first rank of each disk looks, and all ranks get its finds.
  Task<FoundCandidates> find(FileIo* io, std::string folder, bool is_one) override {
    FoundCandidates found;
    std::vector<DiskEntry> own;
    if (is_first()) {
      try {
        own = co_await entries_on_disk(io, std::move(folder), is_one, /*with_ids=*/true,
                                       &found.broken);
      } catch (const Error& error) {  // the others wait for this rank's word
        found.broken.emplace_back(error.what());
      }
    }
    std::vector<std::vector<DiskEntry>> of_all;
    for (const std::string& text : co_await of_disks(text_of(own))) {
      of_all.push_back(entries_of(text));
    }
    found.candidates = merged(std::move(of_all));
    co_return found;
  }

  Task<std::vector<std::string>> of_disks(std::string mine) override {
    std::vector<std::string> all =
        co_await ranks_.texts(is_first() ? std::move(mine) : std::string());
    std::vector<std::string> by_disk;
    by_disk.reserve(disks_.count());
    for (std::uint32_t disk = 0; disk < disks_.count(); ++disk) {
      by_disk.push_back(std::move(all[disks_.first_rank_of(disk)]));
    }
    co_return by_disk;
  }

  Task<> gather(OpenedCheckpoint opened, std::size_t unit) override;

 private:
  [[nodiscard]] std::vector<Stream> streams_of(const OpenedCheckpoint& opened,
                                               std::size_t unit) const;
};

std::vector<Stream> SeveralDisks::streams_of(const OpenedCheckpoint& opened,
                                             std::size_t unit) const {
  using Key = std::tuple<std::uint32_t, std::size_t, std::int64_t, std::int64_t>;
  const RankLayout& layout = *opened.layout;
  const std::vector<HeldRuns>& runs = *opened.runs;
  const std::vector<ParameterSpec>& parameters = layout.model.units[unit].parameters;
  std::vector<std::map<Key, bool>> wanted(disks_.count());  // by this rank
  for (std::uint32_t rank = 0; rank < layout.sharding.world; ++rank) {
    const HeldRuns& own = runs[disks_.of_rank[rank]];
    for (std::uint32_t array = 0; array < opened.arrays->size(); ++array) {
      const std::string& name = (*opened.arrays)[array];
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (!layout.has_array(parameters[i], array)) {
          continue;
        }
        std::vector<ElementRun> left =
            own.missing(name, parameters[i].name, kept_by(layout, rank, unit, i));
        for (std::uint32_t disk = 0; disk < disks_.count(); ++disk) {
          std::vector<ElementRun> still;
          for (const ElementRun& run : left) {
            for (const ElementRun& there : runs[disk].of(name, parameters[i].name)) {
              const std::int64_t begin = std::max(run.begin, there.begin);
              const std::int64_t end = std::min(run.end, there.end);
              if (begin < end) {
                wanted[disk][{array, i, begin, end}] |= rank == ranks_.rank;
              }
            }
            const auto parts = runs[disk].missing(name, parameters[i].name, run);
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
void fill(const OpenedCheckpoint& opened, std::size_t unit, const Stream& stream, ElementRun part,
          float* out) {
  for (const Transfer& transfer : stream.transfers) {
    const std::int64_t begin = std::max(part.begin, transfer.at);
    const std::int64_t end =
        std::min(part.end, transfer.at + transfer.run.end - transfer.run.begin);
    if (begin < end) {
      const std::int64_t first = transfer.run.begin + begin - transfer.at;
      opened.source->read(transfer.array,
                          opened.layout->model.units[unit].parameters[transfer.parameter].name,
                          first, first + end - begin, out + (begin - part.begin));
    }
  }
}

void take_part(Stream& stream, ElementRun part, const float* values) {
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

Task<> SeveralDisks::gather(OpenedCheckpoint opened, std::size_t unit) {
  std::vector<Stream> streams = streams_of(opened, unit);
  std::int64_t most = 0;
  std::vector<ElementRun> parts(ranks_.world);  // [rank] that it sends
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
    fill(opened, unit, streams[own_disk()], in_round(parts[ranks_.rank]),
         reinterpret_cast<float*>(mine.data()));
    const std::vector<std::byte> all = co_await ranks_.bytes(std::move(mine));
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
        opened.source->lend(transfer.array,
                            opened.layout->model.units[unit].parameters[transfer.parameter].name,
                            transfer.run.begin, std::move(transfer.values));
      }
    }
  }
}

}  // namespace

std::unique_ptr<CheckpointProtocol> several_disks_protocol(Disks disks, CheckpointExchange ranks) {
  return std::make_unique<SeveralDisks>(std::move(disks), std::move(ranks));
}

}  // namespace tandem
