#include "actors/storage/checkpoint_folder.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "actors/storage/hash_file.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 30;

std::string join(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

/// "step-00000020.tmp-...": a save, or a removal, that was killed.
bool is_left_over(std::string_view name) {
  const std::size_t end = name.find(kTemporary);
  return end != std::string_view::npos && step_of_checkpoint(name.substr(0, end)).has_value();
}

Task<std::uint64_t> size_of(FileIo* io, std::string path) {
  IoFile file = co_await io->open(std::move(path), OpenMode::kRead);
  const std::uint64_t size = co_await io->size(file);
  co_await io->close(std::move(file));
  co_return size;
}

/// Throws if it is not whole.
Task<> check_whole(FileIo* io, std::string folder, std::int64_t step) {
  const Manifest manifest = co_await read_manifest(io, folder);
  if (manifest.step != step) {
    throw user_error("checkpoint", "its manifest is of step {}; give the folder its own name back",
                     manifest.step);
  }
  for (const ManifestFile& file : manifest.files) {
    const std::uint64_t size = co_await size_of(io, join(folder, file.name));
    if (size != file.size_bytes) {
      throw user_error("checkpoint", "{} has {} bytes, its manifest says {}; use an older one",
                       file.name, size, file.size_bytes);
    }
  }
}

/// Why it is not whole; empty: it is.
Task<std::string> fault_of(FileIo* io, std::string folder, std::int64_t step) {
  try {
    co_await check_whole(io, folder, step);
  } catch (const Error& error) {
    co_return error.what();
  }
  co_return "";
}

void compare(const std::string& path, const ManifestFile& expected, const ManifestFile& found,
             std::vector<std::string>& faults) {
  if (found.hash == expected.hash) {
    return;
  }
  const std::size_t before = faults.size();
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    if (found.tensors[i].hash != expected.tensors[i].hash) {
      faults.push_back(fmt::format("{}: tensor \"{}\" has the hash {}, not {}", path,
                                   expected.tensors[i].name, found.tensors[i].hash.text(),
                                   expected.tensors[i].hash.text()));
    }
  }
  if (faults.size() == before) {
    faults.push_back(fmt::format("{}: {} the hash {}, not {}", path,
                                 expected.tensors.empty() ? "has" : "its header differs: it has",
                                 found.hash.text(), expected.hash.text()));
  }
}

Task<> verify_file(FileIo* io, std::string path, const ManifestFile* expected,
                   std::vector<std::string>* faults, CpuPool* pool) {
  try {
    const std::uint64_t size = co_await size_of(io, path);
    if (size != expected->size_bytes) {
      faults->push_back(fmt::format("{}: has {} bytes, not {}", path, size, expected->size_bytes));
      co_return;
    }
    compare(path, *expected, co_await hash_file(io, path, *expected, pool), *faults);
  } catch (const Error& error) {
    faults->push_back(fmt::format("{}: {}", path, error.what()));
  }
}

Task<> remove_folder_of_files(FileIo* io, std::string folder) {
  for (const std::string& name : co_await io->list_folder(folder)) {
    co_await io->remove(join(folder, name));
  }
  co_await io->remove_folder(std::move(folder));
}

}  // namespace

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<std::int64_t> step_of_checkpoint(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step >= 0 && checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

Task<std::vector<FoundCheckpoint>> find_checkpoints(FileIo* io, std::string parent,
                                                    std::vector<std::string>* broken) {
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : co_await io->list_folder(parent)) {
    const auto step = step_of_checkpoint(name);
    if (!step) {
      continue;
    }
    const std::string path = join(parent, name);
    const std::string fault = co_await fault_of(io, path, *step);
    if (fault.empty()) {
      found.push_back({.step = *step, .path = path});
    } else if (broken != nullptr) {
      broken->push_back(fmt::format("{}: {}", path, fault));
    }
  }
  std::ranges::sort(found, std::ranges::greater(), &FoundCheckpoint::step);
  co_return found;
}

Task<NamedCheckpoints> named_checkpoints(FileIo* io, std::string folder) {
  std::error_code ignored;
  if (fs::is_regular_file(join(folder, kManifestName), ignored)) {
    co_return NamedCheckpoints{.whole = {std::move(folder)}, .broken = {}};
  }
  if (std::string of_run = join(folder, "checkpoints"); fs::is_directory(of_run, ignored)) {
    folder = std::move(of_run);
  }
  NamedCheckpoints named;
  if (fs::is_directory(folder, ignored)) {
    for (FoundCheckpoint& found : co_await find_checkpoints(io, folder, &named.broken)) {
      named.whole.push_back(std::move(found.path));
    }
  }
  co_return named;
}

NamedCheckpoints named_checkpoints(const std::string& folder) {
  EventLoop loop({.name = "checkpoints"});
  FileIo io(loop);
  return loop.run([](FileIo* files, std::string name) { return named_checkpoints(files, name); },
                  &io, folder);
}

Task<Manifest> read_manifest(FileIo* io, std::string folder) {
  const std::string path = join(folder, kManifestName);
  IoFile file = co_await io->open(path, OpenMode::kRead);
  const std::uint64_t size = co_await io->size(file);
  if (size > kMostManifestBytes) {
    throw user_error("checkpoint", "{} has {} bytes, at most {}; this is no manifest", path, size,
                     kMostManifestBytes);
  }
  std::string text(size, '\0');
  text.resize(co_await io->read(file, 0, std::as_writable_bytes(std::span(text))));
  co_await io->close(std::move(file));
  co_return Manifest::parse(text, path);
}

Task<std::vector<std::string>> verify_files(FileIo* io, std::string folder, Manifest manifest,
                                            std::uint32_t part, std::uint32_t parts,
                                            CpuPool* pool) {
  TANDEM_CHECK(part < parts, "a part of the parts");
  std::vector<std::string> faults;
  for (std::size_t i = part; i < manifest.files.size(); i += parts) {
    const ManifestFile& file = manifest.files[i];
    co_await verify_file(io, join(folder, file.name), &file, &faults, pool);
  }
  co_return faults;
}

Task<> remove_older(FileIo* io, std::string parent, int keep) {
  for (const std::string& name : co_await io->list_folder(parent)) {
    if (is_left_over(name)) {
      co_await remove_folder_of_files(io, join(parent, name));
    }
  }
  std::vector<FoundCheckpoint> old = co_await find_checkpoints(io, parent, nullptr);
  old.erase(old.begin(),
            old.begin() + std::min<std::ptrdiff_t>(std::max(keep, 1), std::ssize(old)));
  for (FoundCheckpoint& checkpoint : old) {
    const std::string away = fmt::format("{}{}old", checkpoint.path, kTemporary);
    co_await io->rename(std::exchange(checkpoint.path, away), away);
  }
  if (!old.empty() && !planted(Bug::kRemovalNotSynced)) {
    co_await io->fsync_folder(parent);
  }
  for (const FoundCheckpoint& checkpoint : old) {
    co_await remove_folder_of_files(io, checkpoint.path);
  }
}

}  // namespace tandem
