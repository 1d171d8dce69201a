#include "actors/checkpoint/checkpoint_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <exception>
#include <filesystem>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "actors/storage/folder.hpp"
#include "actors/storage/hash_file.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kRemoved = ".tmp-old-";
constexpr std::string_view kNotFinite = "holds a value that is not finite";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMostTensorsTold = 8;  // of a file

std::string join(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

/// "step-00000020.tmp-...": a save, or a removal, that was killed.
bool is_left_over(std::string_view name) {
  const std::size_t end = name.find(kTemporary);
  return end != std::string_view::npos && step_of_checkpoint(name.substr(0, end)).has_value();
}

/// "step-00000020.tmp-old-...": it has lost its name to be removed.
bool is_removal(std::string_view name) { return name.find(kRemoved) != std::string_view::npos; }

/// The step of a checkpoint's name, or of one that was killed; -1: it is neither.
std::int64_t step_in_name(const std::string& name) {
  return step_of_checkpoint(name.substr(0, name.find(kTemporary))).value_or(-1);
}

Task<std::uint64_t> size_of(FileIo* io, std::string path) {
  IoFile file = co_await io->open(std::move(path), OpenMode::kReadFile);
  const std::uint64_t size = co_await io->size(file);
  co_await io->close(std::move(file));
  co_return size;
}

Task<> check_sizes(FileIo* io, std::string folder, const std::vector<ManifestFile>* files) {
  for (const ManifestFile& file : *files) {
    const std::uint64_t size = co_await size_of(io, join(folder, file.name));
    if (size != file.size_bytes) {
      throw user_error("checkpoint", "{} has {} bytes, its manifest says {}; use an older one",
                       file.name, size, file.size_bytes);
    }
  }
}

/// `name` as it should be; of a checkpoint that was copied under another one, no other is asked.
void check_step(std::int64_t step, std::int64_t of_name) {
  if (step != of_name) {
    throw user_error("checkpoint", "its manifest is of step {}; give the folder its own name back",
                     step);
  }
}

FoundSlices found_slices(Manifest manifest, std::string folder, std::string name) {
  return {.step = manifest.step,
          .path = std::move(folder),
          .name = std::move(name),
          .save = std::move(manifest.slices->save),
          .disk = manifest.slices->disk,
          .disks = manifest.slices->hosts.size()};
}

/// Adds the folder to those of slices or of whole ones; throws if it is neither. Under a temporary
/// name only slices count.
Task<> look_at(FileIo* io, std::string folder, std::int64_t step, bool is_temporary,
               NamedCheckpoints* into) {
  Manifest manifest = co_await read_manifest(io, folder);
  if (is_temporary && !manifest.slices) {
    co_return;
  }
  check_step(manifest.step, step);
  co_await check_sizes(io, folder, &manifest.files);
  if (std::string bad = first_not_finite(manifest.files); !bad.empty()) {
    into->not_finite.push_back({.path = std::move(folder), .tensor = std::move(bad)});
  } else if (manifest.slices) {
    into->slices.push_back(
        found_slices(std::move(manifest), std::move(folder), checkpoint_name(step)));
  } else {
    into->whole.push_back(std::move(folder));
  }
}

/// The checkpoints in a folder with these names, newest first.
Task<NamedCheckpoints> look_into(FileIo* io, std::string parent, std::vector<std::string> names) {
  NamedCheckpoints found;
  std::ranges::sort(names, std::ranges::greater(), [](const std::string& name) {
    return std::pair<std::int64_t, std::string_view>(step_in_name(name), name);
  });
  for (const std::string& name : names) {
    const std::int64_t step = step_in_name(name);
    const std::string path = join(parent, name);
    if (step < 0 || is_removal(name)) {
      continue;
    }
    std::string fault;
    try {
      co_await look_at(io, path, step, is_left_over(name), &found);
    } catch (const Error& error) {
      fault = error.what();
    }
    if (!fault.empty() && !is_left_over(name)) {
      found.broken.push_back(fmt::format("{}: {}", path, fault));
    }
  }
  for (const NotFinite& one : found.not_finite) {
    found.broken.push_back(fmt::format("{}: {} {}", one.path, one.tensor, kNotFinite));
  }
  std::ranges::reverse(found.broken);
  // The later one of two saves of a step comes first: names do not say which that is.
  std::ranges::sort(found.slices, std::ranges::greater(), [](const FoundSlices& one) {
    return std::tuple<std::int64_t, std::string_view, std::string_view>(one.step, one.save,
                                                                        one.path);
  });
  co_return found;
}

void compare(const std::string& path, const ManifestFile& expected, const ManifestFile& found,
             std::vector<std::string>& faults) {
  if (found.hash == expected.hash) {
    if (const std::string bad = first_not_finite({found}); !bad.empty()) {
      faults.push_back(fmt::format("{}{} {}", path, bad.substr(found.name.size()), kNotFinite));
    }
    return;
  }
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    if (found.tensors[i].hash != expected.tensors[i].hash) {
      others.push_back(i);
    }
  }
  const bool none_is = others.size() > 1 && others.size() == expected.tensors.size();
  if (others.empty() || none_is) {
    const std::string what =
        none_is ? fmt::format("none of its {} tensors is as saved: it has", others.size())
        : expected.tensors.empty() ? "has"
                                   : "its header differs: it has";
    faults.push_back(fmt::format("{}: {} the hash {}, not {}", path, what, found.hash.text(),
                                 expected.hash.text()));
    return;
  }
  const std::size_t told = std::min(others.size(), kMostTensorsTold);
  for (const std::size_t i : std::span(others).first(told)) {
    faults.push_back(fmt::format("{}: tensor \"{}\" has the hash {}, not {}", path,
                                 expected.tensors[i].name, found.tensors[i].hash.text(),
                                 expected.tensors[i].hash.text()));
  }
  if (told < others.size()) {
    faults.push_back(fmt::format("{}: and {} more of its {} tensors have other hashes", path,
                                 others.size() - told, expected.tensors.size()));
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

/// One failure does not stop the others; the first one is told at the end.
class Failures {
 public:
  void keep(const FileError& error) {
    if (!first_) {
      first_ = error;
    }
  }
  void rethrow() const {
    if (first_) {
      throw *first_;
    }
  }

 private:
  std::optional<FileError> first_;
};

Task<> remove_one(FileIo* io, std::string path, Failures* failures) {
  try {
    co_await io->remove_tree(std::move(path));
  } catch (const FileError& error) {
    failures->keep(error);
  }
}

/// The new path; empty: it keeps its name.
Task<std::string> take_name_away(FileIo* io, std::string path, Failures* failures) {
  std::string away = fmt::format("{}{}{}", path, kRemoved, fresh_nonce());
  try {
    co_await io->rename(std::move(path), away);
  } catch (const FileError& error) {
    failures->keep(error);
    away.clear();
  }
  co_return away;
}

}  // namespace

bool is_killed_save(std::string_view name) {
  const std::string_view middle = is_removal(name) ? kRemoved : kTemporary;
  return is_left_over(name) && is_nonce(name.substr(name.find(middle) + middle.size()));
}

std::string checkpoint_name(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::string temporary_checkpoint(const std::string& folder, const std::string& nonce) {
  return fmt::format("{}{}{}", folder, kTemporary, nonce);
}

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
  NamedCheckpoints found = co_await look_into(io, parent, co_await io->list_folder(parent));
  if (broken != nullptr) {
    broken->insert(broken->end(), found.broken.begin(), found.broken.end());
  }
  std::vector<FoundCheckpoint> whole;
  for (std::string& path : found.whole) {
    const std::int64_t step = step_in_name(fs::path(path).filename());
    whole.push_back({.step = step, .path = std::move(path)});
  }
  co_return whole;
}

Task<std::optional<std::vector<std::string>>> names_in(FileIo* io, std::string folder) {
  try {
    co_return co_await io->list_folder(std::move(folder));
  } catch (const FileError& error) {
    if (error.error_number() != ENOENT && error.error_number() != ENOTDIR) {
      throw;
    }
  }
  co_return std::nullopt;
}

Task<NamedCheckpoints> checkpoint_in(FileIo* io, std::string folder) {
  Manifest manifest;
  try {
    manifest = co_await read_manifest(io, folder);
  } catch (const Error&) {  // its next reader says it
  }
  if (!manifest.slices) {
    co_return NamedCheckpoints{.whole = {std::move(folder)}};
  }
  std::string name = fs::path(folder).lexically_normal().filename();
  co_return NamedCheckpoints{
      .slices = {found_slices(std::move(manifest), std::move(folder), std::move(name))}};
}

Task<NamedCheckpoints> named_checkpoints(FileIo* io, std::string folder) {
  std::optional<std::vector<std::string>> names = co_await names_in(io, folder);
  if (names && (std::ranges::binary_search(*names, kManifestName) ||
                std::ranges::binary_search(*names, kEarlierSlicesName))) {
    co_return co_await checkpoint_in(io, std::move(folder));
  }
  if (auto of_run = co_await names_in(io, join(folder, "checkpoints"))) {
    co_return co_await look_into(io, join(folder, "checkpoints"), std::move(*of_run));
  }
  if (!names) {
    co_return NamedCheckpoints();
  }
  co_return co_await look_into(io, std::move(folder), std::move(*names));
}

NamedCheckpoints named_checkpoints(const std::string& folder) {
  EventLoop loop({.name = "checkpoints"});
  FileIo io(loop);
  return loop.run(
      [](FileIo* files, std::string name) { return named_checkpoints(files, std::move(name)); },
      &io, folder);
}

std::vector<FoundFolder> newest_first(const NamedCheckpoints& named) {
  std::vector<FoundFolder> folders;
  for (const std::string& path : named.whole) {
    const std::string name = fs::path(path).lexically_normal().filename();
    folders.push_back({.step = step_in_name(name), .path = path});
  }
  for (const FoundSlices& slices : named.slices) {
    folders.push_back({.step = slices.step, .path = slices.path, .in_slices = true});
  }
  std::ranges::sort(folders, std::ranges::greater(), [](const FoundFolder& one) {
    return std::tuple<std::int64_t, bool, std::string_view>(one.step, !one.in_slices, one.path);
  });
  return folders;
}

Task<std::string> read_text(FileIo* io, std::string path) {
  IoFile file = co_await io->open(path, OpenMode::kReadFile);
  const std::uint64_t size = co_await io->size(file);
  if (size > kMostManifestBytes) {
    throw user_error("checkpoint", "{} has {} bytes, at most {}; this is no manifest", path, size,
                     kMostManifestBytes);
  }
  std::string text(size, '\0');
  text.resize(co_await io->read(file, 0, std::as_writable_bytes(std::span(text))));
  co_await io->close(std::move(file));
  co_return text;
}

std::string manifest_path(const std::string& folder) {
  std::error_code ignored;
  const std::string path = join(folder, kManifestName);
  const std::string earlier = join(folder, kEarlierSlicesName);
  return !fs::exists(path, ignored) && fs::exists(earlier, ignored) ? earlier : path;
}

Task<std::string> read_manifest_text(FileIo* io, std::string folder) {
  std::exception_ptr missing;
  try {
    co_return co_await read_text(io, join(folder, kManifestName));
  } catch (const FileError& error) {
    if (error.error_number() == EISDIR) {
      throw user_error("checkpoint", "{} is a folder, and no manifest; {} is no checkpoint",
                       join(folder, kManifestName), folder);
    }
    if (error.error_number() != ENOENT) {
      throw;
    }
    missing = std::current_exception();
  }
  try {
    co_return co_await read_text(io, join(folder, kEarlierSlicesName));
  } catch (const FileError&) {  // an earlier version did not save it either
  }
  std::rethrow_exception(missing);
}

Task<Manifest> read_manifest(FileIo* io, std::string folder) {
  const std::string text = co_await read_manifest_text(io, folder);
  co_return Manifest::parse(text, join(folder, Manifest::name_of(text)));
}

Task<std::vector<std::string>> verify_files(FileIo* io, std::string folder, Manifest manifest,
                                            std::uint32_t part, std::uint32_t parts,
                                            CpuPool* pool) {
  return verify_entries(io, std::move(folder), std::move(manifest.files), part, parts, pool);
}

Task<std::vector<std::string>> verify_entries(FileIo* io, std::string folder,
                                              std::vector<ManifestFile> files, std::uint32_t part,
                                              std::uint32_t parts, CpuPool* pool) {
  TANDEM_CHECK(part < parts, "a part of the parts");
  std::vector<std::string> faults;
  for (std::size_t i = part; i < files.size(); i += parts) {
    co_await verify_file(io, join(folder, files[i].name), &files[i], &faults, pool);
  }
  co_return faults;
}

Task<> remove_older(FileIo* io, std::string parent, int keep, std::int64_t newest) {
  const OwnFolder own(parent);
  Failures failures;
  for (const std::string& name : co_await io->list_folder(parent)) {
    if (is_killed_save(name) || is_abandoned_file(name)) {
      co_await remove_one(io, join(parent, name), &failures);
    }
  }
  NamedCheckpoints found = co_await look_into(io, parent, co_await io->list_folder(parent));
  std::vector<std::string> old = std::move(found.whole);
  // They do not count among those that stay, since no run can go on from them.
  std::vector<std::string> useless;
  for (NotFinite& one : found.not_finite) {
    useless.push_back(std::move(one.path));
  }
  for (FoundSlices& slices : found.slices) {
    old.push_back(std::move(slices.path));
  }
  // In the order of the run: what is of a later step is older than all of it.
  std::ranges::sort(old, std::ranges::greater(), [newest](const std::string& path) {
    const std::int64_t step = step_in_name(fs::path(path).filename());
    return std::pair(step <= newest, step);
  });
  old.erase(old.begin(),
            old.begin() + std::min<std::ptrdiff_t>(std::max(keep, 1), std::ssize(old)));
  old.insert(old.end(), useless.begin(), useless.end());
  for (std::string& path : old) {
    path = co_await take_name_away(io, std::move(path), &failures);
  }
  std::erase(old, "");
  if (!old.empty() && !planted(Bug::kRemovalNotSynced)) {
    co_await io->fsync_folder(parent);
  }
  for (const std::string& path : old) {
    co_await remove_one(io, path, &failures);
  }
  failures.rethrow();
}

}  // namespace tandem
