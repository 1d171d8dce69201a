#include "engine/checkpoint/checkpoint_protocol.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

/// Texts differ in length; each rank sends as much as the one with most.
Task<std::vector<std::string>> CheckpointExchange::texts(std::string mine) const {
  const std::uint64_t own = mine.size();
  std::vector<std::byte> size(sizeof(own));
  std::memcpy(size.data(), &own, sizeof(own));
  const std::vector<std::byte> all_sizes = co_await bytes(std::move(size));
  std::vector<std::uint64_t> sizes(world);
  std::memcpy(sizes.data(), all_sizes.data(), world * sizeof(own));
  const std::uint64_t most = *std::ranges::max_element(sizes);
  std::vector<std::byte> padded(most);
  std::ranges::copy(std::as_bytes(std::span(mine)), padded.begin());
  const std::vector<std::byte> all = co_await bytes(std::move(padded));
  std::vector<std::string> texts;
  texts.reserve(world);
  for (std::size_t r = 0; r < world; ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + r * most, sizes[r]);
  }
  co_return texts;
}

// ---- the steps of a save

RankSave::RankSave(Parts parts, SaveRequest request)
    : parts_(std::move(parts)), request_(std::move(request)) {}

void RankSave::plan(const std::vector<std::string>& ids, std::optional<ManifestSlices> slices) {
  const auto id = ContentHash::parse(ids.front());
  TANDEM_CHECK(id.has_value(), "rank 0 sends an identifier");
  const std::string folder = request_.parent + "/" + request_.name;
  CheckpointPlan plan{.step = request_.step,
                      .folder = folder,
                      .temporary = temporary_checkpoint(folder, nonce_text(id->low)),
                      .files = parts_.layout->files,
                      .slices = std::move(slices)};
  if (plan.slices) {
    plan.slices->save = ids.front();
  }
  const auto place = std::ranges::find(parts_.sharers, parts_.rank) - parts_.sharers.begin();
  files_ = std::make_unique<CheckpointSave>(
      parts_.io, std::move(plan), static_cast<std::uint32_t>(place),
      static_cast<std::uint32_t>(parts_.sharers.size()), parts_.pool);
}

Task<> RankSave::create() {
  parts_.make_folder(request_.parent);
  co_await files_->create();
}

Task<> RankSave::open_and_hold() {
  co_await files_->open();
  co_await parts_.writer->address().ask(HoldForCheckpoint{});
  held.set();
}

Task<> RankSave::write() {
  const WriteOutcome written =
      co_await parts_.writer->address().ask(WriteCheckpoint{.save = files_.get()});
  staged_bytes_ = written.staged_bytes;
  if (written.failure) {
    std::rethrow_exception(written.failure);
  }
}

Task<std::string> RankSave::hash() {
  co_return Manifest{.step = request_.step, .files = co_await files_->hash()}.json();
}

void RankSave::take_entries(const std::vector<std::string>& of_ranks) {
  for (std::uint32_t r = 0; r < of_ranks.size(); ++r) {
    std::vector<ManifestFile> files =
        Manifest::parse(of_ranks[r], fmt::format("the entries of rank {}", r)).files;
    if (const std::string bad = first_not_finite(files); !bad.empty()) {
      request_.keeps_all_since = fmt::format(
          "this one is not to be resumed from, {} holds a value that is not finite", bad);
    }
    if (std::ranges::find(parts_.sharers, r) != parts_.sharers.end()) {
      std::ranges::move(files, std::back_inserter(entries_));
    }
  }
}

Task<> RankSave::seal() { co_await files_->seal(std::move(entries_), std::move(request_.texts)); }

Task<> RankSave::take_name() { co_await files_->take_name(); }

Task<> RankSave::remove_older() {
  if (request_.keep == 0) {
    co_return;
  }
  if (!request_.keeps_all_since.empty()) {
    warning_ = request_.keeps_all_since;
    co_return;
  }
  try {
    co_await tandem::remove_older(parts_.io, request_.parent, request_.keep, request_.step);
  } catch (const std::exception& cause) {
    warning_ = cause.what();
  }
}

Task<> RankSave::discard() {
  if (parts_.sharers.front() == parts_.rank && files_ && !must_stay_) {
    co_await files_->discard();
  }
}

// ---- what both protocols do

std::unique_ptr<CheckpointProtocol> CheckpointProtocol::of(Disks disks, CheckpointExchange ranks) {
  return disks.are_several() ? several_disks_protocol(std::move(disks), std::move(ranks))
                             : shared_disk_protocol(std::move(disks), std::move(ranks));
}

Task<std::string> CheckpointProtocol::first_word(std::string mine) const {
  const std::vector<std::string> all = co_await ranks_.texts(std::move(mine));
  const auto found = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  if (found == all.end()) {
    co_return "";
  }
  const std::string& host =
      disks_.hosts[disks_.of_rank[static_cast<std::size_t>(found - all.begin())]];
  co_return host.empty() ? *found : fmt::format("on host {}: {}", host, *found);
}

Task<> CheckpointProtocol::write_files(RankSave* save) {
  if (is_first()) {
    co_await save->create();
  }
  co_await save->votes.all_have(SavePhase::kMade);
  co_await save->open_and_hold();

  // From here on training goes on.
  co_await save->write();  // and syncs
  if (!planted(Bug::kHashedBeforeWritten)) {
    co_await save->votes.all_have(SavePhase::kWritten);
  }
  const std::string entries = co_await save->hash();
  save->take_entries(co_await save->votes.all_have(SavePhase::kHashed, entries));
}

Task<std::vector<HeldCheckpoint>> CheckpointProtocol::read_manifests(FileIo* io,
                                                                     Candidate candidate,
                                                                     std::string* fault) {
  const std::string& path = candidate.paths[own_disk()];
  std::string text;
  std::string own_fault;
  if (!path.empty()) {
    try {
      text = co_await read_manifest_text(io, path);
    } catch (const Error& error) {
      own_fault = error.what();
    }
  }
  const std::vector<std::string> texts = co_await of_disks(std::move(text));
  std::vector<HeldCheckpoint> held(texts.size());
  for (std::size_t disk = 0; disk < texts.size() && own_fault.empty(); ++disk) {
    try {
      if (!candidate.paths[disk].empty()) {
        held[disk] = HeldCheckpoint::parse(candidate.paths[disk], texts[disk]);
      }
    } catch (const Error& error) {
      own_fault = error.what();
    }
  }
  *fault = co_await first_word(std::move(own_fault));
  co_return held;
}

}  // namespace tandem
