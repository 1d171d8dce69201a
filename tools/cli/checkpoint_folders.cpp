#include "tools/cli/checkpoint_folders.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "runtime/when_all.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

/// Every `parts`-th file of a checkpoint.
struct Share {
  FileIo* io;
  CpuPool* pool;
  const std::string* folder;
  const std::vector<ManifestFile>* files;
  std::uint32_t part;
  std::uint32_t parts;
};

Task<std::vector<std::string>> verify_share(Share share) {
  co_return co_await verify_entries(share.io, *share.folder, *share.files, share.part, share.parts,
                                    share.pool);
}

Task<Verified> verify_on(FileIo* io, CpuPool* pool, std::string folder) {
  const std::vector<ManifestFile> files = (co_await read_manifest(io, folder)).files;
  const auto parts = static_cast<std::uint32_t>(pool->threads());
  std::vector<Share> shares;
  for (std::uint32_t part = 0; part < parts; ++part) {
    shares.push_back({io, pool, &folder, &files, part, parts});
  }
  Verified verified{.files = files.size()};
  for (const ManifestFile& file : files) {
    verified.tensors += file.tensors.size();
    verified.bytes += file.size_bytes;
  }
  for (std::vector<std::string>& faults : co_await when_all(std::move(shares), &verify_share)) {
    verified.faults.insert(verified.faults.end(), faults.begin(), faults.end());
  }
  co_return verified;
}

}  // namespace

NamedCheckpoints checkpoints_in(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw user_error("checkpoint",
                     "there is no folder {}; give a checkpoint, a folder of them, or a run's",
                     folder);
  }
  NamedCheckpoints named = named_checkpoints(folder);
  if (named.whole.empty() && named.slices.empty() && named.broken.empty()) {
    throw user_error("checkpoint",
                     "{} has no {}, and holds no checkpoints either; give a checkpoint, a folder "
                     "of them, or a run's",
                     folder, kManifestName);
  }
  std::ranges::transform(named.broken, named.broken.begin(), &one_line);
  return named;
}

Verified verify_checkpoint(const std::string& folder) {
  EventLoop loop({.name = "verify", .stall_limit = {}});
  FileIo io(loop);
  CpuPool pool(loop, {.threads = machine::usable_cpus(), .name = "hash"});
  Verified verified = loop.run(&verify_on, &io, &pool, folder);
  std::ranges::transform(verified.faults, verified.faults.begin(), &one_line);
  return verified;
}

std::filesystem::path new_folder(const std::string& folder, std::string_view where) {
  namespace fs = std::filesystem;
  fs::path path = fs::absolute(folder).lexically_normal();
  path = path.has_filename() ? path : path.parent_path();
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  const bool free = type == fs::file_type::not_found ||
                    (type == fs::file_type::directory && fs::is_empty(path, error) && !error);
  if (!free) {
    throw user_error(where, "{} is there and is no empty folder; choose a new one", folder);
  }
  return path;
}

}  // namespace tandem
