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
  const auto others = co_await names_in(io, path.parent_path());
  for (const std::string& other : others.value_or(std::vector<std::string>())) {
    if (other.starts_with(name + ".tmp-") && other.find(".tmp-old-") == std::string::npos) {
      for (FoundSlices& slices : (co_await checkpoint_in(io, path.parent_path() / other)).slices) {
        slices.name = name;
        sealed.push_back(std::move(slices));
      }
    }
  }
  co_return sealed;
}

}  // namespace

Task<std::vector<DiskEntry>> entries_on_disk(FileIo* io, std::string folder, bool is_one,
                                             bool with_ids, std::vector<std::string>* broken) {
  NamedCheckpoints named;
  if (!is_one) {
    named = co_await named_checkpoints(io, folder);
  } else if (!with_ids || co_await names_in(io, folder)) {
    named = co_await checkpoint_in(io, folder);
  }
  if (is_one && with_ids) {
    for (FoundSlices& slices : co_await sealed_for(io, folder)) {
      named.slices.push_back(std::move(slices));
    }
  }
  std::vector<DiskEntry> entries;
  for (std::string& path : named.whole) {
    DiskEntry entry{.name = fs::path(path).lexically_normal().filename(), .path = path};
    entry.step = step_of_checkpoint(entry.name).value_or(0);
    if (with_ids) {
      try {
        entry.id = hash_text(co_await read_manifest_text(io, path));
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

std::string text_of(const std::vector<DiskEntry>& entries) {
  std::string text;
  for (const DiskEntry& entry : entries) {
    const std::string kind = entry.in_slices ? "s" : "w";
    for (const std::string& field :
         {std::to_string(entry.step), kind, entry.id, entry.name, entry.path}) {
      text += field + kEnd;
    }
  }
  return text;
}

std::vector<DiskEntry> entries_of(const std::string& text) {
  std::vector<std::string> fields;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(kEnd, begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<DiskEntry> entries;
  for (std::size_t i = 0; i + 5 <= fields.size(); i += 5) {
    entries.push_back({.step = std::stoll(fields[i]),
                       .in_slices = fields[i + 1] == "s",
                       .id = fields[i + 2],
                       .name = fields[i + 3],
                       .path = fields[i + 4]});
  }
  return entries;
}

std::string Candidate::path() const {
  for (const std::string& path : paths) {
    if (!path.empty()) {
      return fs::path(path).parent_path() / name;
    }
  }
  return name;
}

std::vector<Candidate> merged(std::vector<std::vector<DiskEntry>> of_disks) {
  std::vector<Candidate> candidates;
  for (std::size_t disk = 0; disk < of_disks.size(); ++disk) {
    for (DiskEntry& entry : of_disks[disk]) {
      auto same = std::ranges::find_if(candidates, [&](const Candidate& one) {
        return one.in_slices == entry.in_slices && one.id == entry.id && one.name == entry.name;
      });
      if (same == candidates.end()) {
        same = candidates.insert(same, {.step = entry.step,
                                        .in_slices = entry.in_slices,
                                        .id = entry.id,
                                        .name = entry.name,
                                        .paths = std::vector<std::string>(of_disks.size())});
      }
      same->paths[disk] = std::move(entry.path);
    }
  }
  std::ranges::sort(candidates, std::ranges::greater(), [](const Candidate& one) {
    return std::tuple<std::int64_t, bool, std::string_view>(one.step, !one.in_slices, one.id);
  });
  return candidates;
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
