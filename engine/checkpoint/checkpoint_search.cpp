#include "engine/checkpoint/checkpoint_search.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

// Between the fields of what a disk says; no path has it.
constexpr char kEnd = '\0';

struct Entry {
  std::int64_t step = 0;
  bool in_slices = false;
  std::string id;
  std::string name;
  std::string path;
};

std::string hash_text(std::string_view text) {
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(text)));
  return hasher.result().text();
}

/// The folders of slices that `folder` was, and was not yet named on this disk.
Task<std::vector<FoundSlices>> sealed_for(FileIo* io, std::string folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  const std::string name = path.filename();
  std::vector<FoundSlices> sealed;
  for (const std::string& other : co_await io->list_folder(path.parent_path())) {
    const std::string at = path.parent_path() / other;
    std::error_code ignored;
    if (other.starts_with(name + ".tmp-") && other.find(".tmp-old-") == std::string::npos &&
        fs::is_regular_file(at + "/" + std::string(kSlicesName), ignored)) {
      for (FoundSlices& slices : (co_await named_checkpoints(io, at)).slices) {
        slices.name = name;
        sealed.push_back(std::move(slices));
      }
    }
  }
  co_return sealed;
}

/// The entries of this disk, newest first.
Task<std::vector<Entry>> own_entries(FileIo* io, std::string folder, bool is_one, bool hashes,
                                     std::vector<std::string>* broken) {
  NamedCheckpoints named;
  std::error_code ignored;
  if (is_one && !fs::is_regular_file(folder + "/" + std::string(kSlicesName), ignored)) {
    if (!hashes || fs::is_directory(folder, ignored)) {
      named.whole = {folder};
    }
  } else {
    named = co_await named_checkpoints(io, folder);
  }
  if (is_one && hashes) {
    for (FoundSlices& slices : co_await sealed_for(io, folder)) {
      named.slices.push_back(std::move(slices));
    }
  }
  std::vector<Entry> entries;
  for (std::string& path : named.whole) {
    Entry entry{.name = fs::path(path).lexically_normal().filename(), .path = path};
    entry.step = step_of_checkpoint(entry.name).value_or(0);
    if (hashes) {
      try {
        entry.id = hash_text(co_await read_text(io, path + "/" + std::string(kManifestName)));
      } catch (const Error& error) {
        broken->push_back(fmt::format("{}: {}", path, error.what()));
        continue;
      }
    }
    entries.push_back(std::move(entry));
  }
  for (FoundSlices& slices : named.slices) {
    entries.push_back({.step = slices.step,
                       .in_slices = true,
                       .id = std::move(slices.save),
                       .name = std::move(slices.name),
                       .path = std::move(slices.path)});
  }
  broken->insert(broken->end(), named.broken.begin(), named.broken.end());
  co_return entries;
}

std::string text_of(const std::vector<Entry>& entries) {
  std::string text;
  for (const Entry& entry : entries) {
    const std::string kind = entry.in_slices ? "s" : "w";
    for (const std::string& field :
         {std::to_string(entry.step), kind, entry.id, entry.name, entry.path}) {
      text += field + kEnd;
    }
  }
  return text;
}

std::vector<Entry> entries_of(const std::string& text) {
  std::vector<std::string> fields;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(kEnd, begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<Entry> entries;
  for (std::size_t i = 0; i + 5 <= fields.size(); i += 5) {
    entries.push_back({.step = std::stoll(fields[i]),
                       .in_slices = fields[i + 1] == "s",
                       .id = fields[i + 2],
                       .name = fields[i + 3],
                       .path = fields[i + 4]});
  }
  return entries;
}

}  // namespace

std::string Candidate::path() const {
  for (const std::string& path : paths) {
    if (!path.empty()) {
      return fs::path(path).parent_path() / name;
    }
  }
  return name;
}

Task<std::vector<std::string>> RanksAtDisks::of_first_ranks(std::string mine) const {
  if (!disks->are_several()) {
    co_return std::vector{std::move(mine)};
  }
  std::vector<std::string> all =
      co_await exchange(disks->is_first_of_its_disk(rank) ? std::move(mine) : std::string());
  std::vector<std::string> by_disk;
  by_disk.reserve(disks->count());
  for (std::uint32_t disk = 0; disk < disks->count(); ++disk) {
    by_disk.push_back(std::move(all[disks->first_rank_of(disk)]));
  }
  co_return by_disk;
}

Task<std::string> RanksAtDisks::first_word(std::string mine) const {
  const std::vector<std::string> all = co_await exchange(std::move(mine));
  const auto found = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
  if (found == all.end()) {
    co_return "";
  }
  const std::string& host =
      disks->hosts[disks->of_rank[static_cast<std::size_t>(found - all.begin())]];
  co_return host.empty() ? *found : fmt::format("on host {}: {}", host, *found);
}

Task<FoundCandidates> find_candidates(const RanksAtDisks* ranks, FileIo* io, std::string folder,
                                      bool is_one) {
  FoundCandidates found;
  const bool several = ranks->disks->are_several();
  std::vector<std::vector<Entry>> of_disks;
  std::vector<Entry> own;
  std::error_code ignored;
  if (!several) {
    own = co_await own_entries(io, folder, is_one, several, &found.broken);
  } else if (ranks->disks->is_first_of_its_disk(ranks->rank) &&
             fs::is_directory(is_one ? fs::path(folder).parent_path() : fs::path(folder),
                              ignored)) {
    try {
      own = co_await own_entries(io, folder, is_one, several, &found.broken);
    } catch (const Error& error) {  // the others wait for this rank's word
      found.broken.emplace_back(error.what());
    }
  }
  if (several) {
    for (const std::string& text : co_await ranks->of_first_ranks(text_of(own))) {
      of_disks.push_back(entries_of(text));
    }
  } else {
    of_disks.push_back(std::move(own));
  }
  for (std::size_t disk = 0; disk < of_disks.size(); ++disk) {
    for (Entry& entry : of_disks[disk]) {
      auto same = std::ranges::find_if(found.candidates, [&](const Candidate& one) {
        return one.in_slices == entry.in_slices && one.id == entry.id && one.name == entry.name;
      });
      if (same == found.candidates.end()) {
        same = found.candidates.insert(same, {.step = entry.step,
                                              .in_slices = entry.in_slices,
                                              .id = entry.id,
                                              .name = entry.name,
                                              .paths = std::vector<std::string>(of_disks.size())});
      }
      same->paths[disk] = std::move(entry.path);
    }
  }
  std::ranges::sort(found.candidates, std::ranges::greater(), [](const Candidate& one) {
    return std::tuple<std::int64_t, bool, std::string_view>(one.step, !one.in_slices, one.id);
  });
  co_return found;
}

Task<std::vector<HeldCheckpoint>> held_by_disks(const RanksAtDisks* ranks, FileIo* io,
                                                Candidate candidate, std::string* fault) {
  const std::string& path = candidate.paths[ranks->own_disk()];
  const std::string_view name = candidate.in_slices ? kSlicesName : kManifestName;
  std::string text;
  std::string own_fault;
  if (!path.empty()) {
    try {
      text = co_await read_text(io, fmt::format("{}/{}", path, name));
    } catch (const Error& error) {
      own_fault = error.what();
    }
  }
  const std::vector<std::string> texts = co_await ranks->of_first_ranks(std::move(text));
  std::vector<HeldCheckpoint> held(texts.size());
  for (std::size_t disk = 0; disk < texts.size() && own_fault.empty(); ++disk) {
    try {
      if (!candidate.paths[disk].empty()) {
        held[disk] = HeldCheckpoint::parse(candidate.paths[disk], candidate.in_slices, texts[disk]);
      }
    } catch (const Error& error) {
      own_fault = error.what();
    }
  }
  *fault = co_await ranks->first_word(std::move(own_fault));
  co_return held;
}

std::string missing_in(const std::vector<HeldCheckpoint>& held) {
  std::vector<HeldRuns> runs;
  const HeldCheckpoint* any = nullptr;
  for (const HeldCheckpoint& one : held) {
    runs.emplace_back(one);
    any = one.folder.empty() ? any : &one;
  }
  if (any == nullptr) {
    return "it lies nowhere";
  }
  for (const PlannedFile& file : any->whole) {
    for (const TensorPlan& tensor : file.tensors) {
      std::vector<ElementRun> left = {{.begin = 0, .end = tensor.numel()}};
      for (const HeldRuns& of_disk : runs) {
        std::vector<ElementRun> still;
        for (const ElementRun& run : left) {
          const auto parts = of_disk.missing(array_of_file(file.name), tensor.name, run);
          still.insert(still.end(), parts.begin(), parts.end());
        }
        left = std::move(still);
      }
      if (std::ranges::any_of(left, [](const ElementRun& run) { return run.begin < run.end; })) {
        std::vector<std::string> absent;
        for (std::size_t disk = 0; disk < any->hosts.size(); ++disk) {
          if (std::ranges::none_of(held, [&](const HeldCheckpoint& one) {
                return !one.folder.empty() && one.disk == disk;
              })) {
            absent.push_back(any->hosts[disk]);
          }
        }
        return fmt::format("the slices of host {} are missing", fmt::join(absent, ", "));
      }
    }
  }
  return "";
}

}  // namespace tandem
