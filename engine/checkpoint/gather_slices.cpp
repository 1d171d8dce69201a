#include "engine/checkpoint/gather_slices.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/checkpoint/save_whole.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/folder.hpp"
#include "engine/checkpoint/checkpoint_search.hpp"
#include "engine/checkpoint/checkpoint_source.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostText = std::uint64_t{1} << 30;

/// The parts of one save.
struct Save {
  std::int64_t step = 0;
  std::string id;
  std::vector<HeldCheckpoint> parts;
};

/// Newest first.
std::vector<Save> saves_in(const std::vector<std::string>& sources) {
  std::vector<Save> saves;
  for (const std::string& source : sources) {
    for (const FoundSlices& found : named_checkpoints(source).slices) {
      auto save = std::ranges::find(saves, found.save, &Save::id);
      if (save == saves.end()) {
        save = saves.insert(save, {.step = found.step, .id = found.save, .parts = {}});
      }
      save->parts.push_back(HeldCheckpoint::parse(
          found.path, read_file(manifest_path(found.path), "checkpoint", kMostText)));
    }
  }
  std::ranges::sort(saves, std::ranges::greater(), [](const Save& save) {
    return std::pair<std::int64_t, std::string_view>(save.step, save.id);
  });
  return saves;
}

/// The newest that is whole.
Save whole_save(const std::vector<std::string>& sources, std::vector<std::string>& notes) {
  std::vector<Save> saves = saves_in(sources);
  for (Save& save : saves) {
    const std::string missing = missing_in(save.parts);
    if (missing.empty()) {
      return std::move(save);
    }
    notes.push_back(fmt::format("of step {} {}", save.step, missing));
  }
  throw user_error("checkpoint", "{}; name the folders of all hosts",
                   notes.empty() ? "there are no slices in these folders" : notes.front());
}

/// Reads elements of the whole tensors from the parts.
class Parts {
 public:
  explicit Parts(const Save& save) {
    std::vector<std::string> arrays;
    for (const PlannedFile& file : save.parts.front().whole) {
      const std::string array(array_of_file(file.name));
      if (std::ranges::find(arrays_, array) == arrays_.end()) {
        arrays_.push_back(array);
      }
    }
    for (const HeldCheckpoint& part : save.parts) {
      runs_.emplace_back(part);
      files_.push_back(std::make_unique<CheckpointSource>(part, arrays_));
    }
  }

  void read(std::string_view array, const std::string& tensor, ElementRun run, float* out) const {
    const auto number =
        static_cast<std::uint32_t>(std::ranges::find(arrays_, array) - arrays_.begin());
    std::vector<ElementRun> left = {run};
    for (std::size_t part = 0; part < files_.size(); ++part) {
      std::vector<ElementRun> still;
      for (const ElementRun& one : left) {
        for (const ElementRun& there : runs_[part].of(array, tensor)) {
          const std::int64_t begin = std::max(one.begin, there.begin);
          const std::int64_t end = std::min(one.end, there.end);
          if (begin < end) {
            files_[part]->read(number, tensor, begin, end, out + (begin - run.begin));
          }
        }
        const auto more = runs_[part].missing(array, tensor, one);
        still.insert(still.end(), more.begin(), more.end());
      }
      left = std::move(still);
    }
  }

 private:
  std::vector<std::string> arrays_;
  std::vector<HeldRuns> runs_;
  std::vector<std::unique_ptr<CheckpointSource>> files_;
};

/// The files beside the tensors.
std::vector<PlannedText> texts_of(const HeldCheckpoint& part) {
  std::vector<PlannedText> texts;
  for (const ManifestFile& file : part.files) {
    if (array_of_file(file.name).empty()) {
      texts.push_back({.name = file.name,
                       .text = read_file(part.folder + "/" + file.name, "checkpoint", kMostText)});
    }
  }
  return texts;
}

Task<> gather(FileIo* io, CpuPool* pool, const Save* from, std::string folder) {
  for (const HeldCheckpoint& part : from->parts) {
    const std::vector<std::string> faults =
        co_await verify_entries(io, part.folder, part.files, 0, 1, pool);
    if (!faults.empty()) {
      throw user_error("checkpoint", "{}; copy it again, or gather an older one", faults.front());
    }
  }
  const Parts parts(*from);
  const CheckpointPlan plan{.step = from->step,
                            .folder = folder,
                            .temporary = temporary_checkpoint(folder, fresh_nonce()),
                            .files = from->parts.front().whole};
  const auto fill = [&](std::size_t file, std::size_t tensor, std::int64_t begin, std::int64_t end,
                        float* out) {
    const PlannedFile& of = plan.files[file];
    parts.read(array_of_file(of.name), of.tensors[tensor].name, {.begin = begin, .end = end}, out);
  };
  co_await save_whole(io, pool, &plan, fill, texts_of(from->parts.front()));
}

}  // namespace

Gathered gather_slices(const std::vector<std::string>& sources, const std::string& folder) {
  Gathered gathered;
  const Save save = whole_save(sources, gathered.notes);
  make_writable_folder(fs::absolute(folder).parent_path(), "checkpoint");
  EventLoop loop({.name = "gather", .stall_limit = {}});
  FileIo io(loop);
  CpuPool pool(loop, {.threads = machine::usable_cpus(), .name = "hash"});
  loop.run(&gather, &io, &pool, &save, folder);
  gathered.step = save.step;
  gathered.folders = save.parts.size();
  return gathered;
}

}  // namespace tandem
