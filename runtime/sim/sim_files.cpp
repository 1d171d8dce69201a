#include "runtime/sim/sim_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tandem {
namespace {
constexpr std::size_t kSectorBytes = 512;  // what a crash tears between
}

void SimDisk::crash(Random& random) {
  names_ = synced_names_;
  for (auto& [path, file] : names_) {
    // A file of which nothing was synced may have any part of it; sectors are whole.
    std::vector<std::byte> kept = file->synced;
    if (kept != file->bytes) {
      for (std::size_t at = 0; at < file->bytes.size(); at += kSectorBytes) {
        const std::size_t end = std::min(at + kSectorBytes, file->bytes.size());
        if (random.chance(0.5)) {
          kept.resize(std::max(kept.size(), end));
          std::copy(file->bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    file->bytes.begin() + static_cast<std::ptrdiff_t>(end),
                    kept.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
    }
    file->bytes = file->synced = kept;
  }
}

std::uint64_t SimDisk::used_bytes() const noexcept {
  std::uint64_t used = 0;
  for (const auto& [path, file] : names_) {
    used += file->bytes.size();
  }
  return used;
}

const std::vector<std::byte>* SimDisk::find(const std::string& path) const {
  const auto found = names_.find(path);
  return found == names_.end() ? nullptr : &found->second->bytes;
}

void SimDisk::put(const std::string& path, std::vector<std::byte> bytes) {
  auto file = std::make_shared<File>();
  file->bytes = file->synced = std::move(bytes);
  names_[path] = synced_names_[path] = std::move(file);
}

SimFiles::SimFiles(SimWorld& world, std::uint32_t rank, SimDisk& disk, Faults faults)
    : world_(world),
      rank_(rank),
      disk_(disk),
      faults_(faults),
      random_(world.random().fork("files").fork(rank)) {}

void SimFiles::submit(FileOp& op) noexcept {
  const std::uint64_t number = next_number_++;
  under_way_[number] = &op;
  world_.after(Duration(random_.between(1, 2 * faults_.call_time.count())), rank_,
               [this, number] { finish(number); });
}

void SimFiles::cancel(FileOp& op) noexcept {
  const auto found =
      std::ranges::find_if(under_way_, [&](const auto& entry) { return entry.second == &op; });
  // Half of them have begun already, and end as if nothing had been asked.
  if (found != under_way_.end() && random_.chance(0.5)) {
    under_way_.erase(found);
    op.outcome = -ECANCELED;
    world_.loop(rank_).post_from_any_thread(op);
  }
}

void SimFiles::finish(std::uint64_t number) {
  const auto found = under_way_.find(number);
  if (found == under_way_.end()) {
    return;  // cancelled
  }
  FileOp& op = *found->second;
  under_way_.erase(found);
  op.outcome = call(op);
  world_.note("file call", rank_, static_cast<std::uint64_t>(op.request.kind),
              static_cast<std::uint64_t>(op.outcome));
  world_.loop(rank_).post_from_any_thread(op);
}

std::int64_t SimFiles::call(FileOp& op) {
  using Kind = FileRequest::Kind;
  const FileRequest& request = op.request;
  if (random_.chance(faults_.interrupted)) {
    if (request.kind == Kind::kClose) {
      open_.erase(request.descriptor);  // as on Linux: closed all the same
    }
    return -EINTR;
  }
  const bool transfer = request.kind == Kind::kRead || request.kind == Kind::kWrite;
  if (transfer && random_.chance(faults_.busy)) {
    return -EAGAIN;
  }
  if (request.kind != Kind::kClose && random_.chance(faults_.io_error)) {
    return -EIO;
  }
  std::shared_ptr<SimDisk::File> file;
  if (const auto found = open_.find(request.descriptor); found != open_.end()) {
    file = found->second;
  } else if (transfer || request.kind == Kind::kFsync || request.kind == Kind::kClose ||
             request.kind == Kind::kSize) {
    return -EBADF;
  }
  std::size_t bytes = transfer ? op.bytes() : 0;
  if (bytes > 1 && random_.chance(faults_.short_transfer)) {
    bytes = 1 + random_.below(bytes - 1);
  }
  switch (request.kind) {
    case Kind::kOpen:
      return open(request);
    case Kind::kRead:
      return read(op, *file, bytes);
    case Kind::kWrite:
      return write(op, *file, bytes);
    case Kind::kFsync:
      file->synced = file->bytes;
      return 0;
    case Kind::kFsyncFolder:
      disk_.synced_names_ = disk_.names_;
      return 0;
    case Kind::kClose:
      open_.erase(request.descriptor);
      return 0;
    case Kind::kRename:
      return rename(request);
    case Kind::kRemove:
      return disk_.names_.erase(request.path) == 1 ? 0 : -ENOENT;
    case Kind::kSize:
      return static_cast<std::int64_t>(file->bytes.size());
  }
  return -EINVAL;
}

std::int64_t SimFiles::open(const FileRequest& request) {
  auto found = disk_.names_.find(request.path);
  if (found == disk_.names_.end()) {
    if (request.mode == OpenMode::kRead) {
      return -ENOENT;
    }
    found = disk_.names_.emplace(request.path, std::make_shared<SimDisk::File>()).first;
  } else if (request.mode == OpenMode::kCreate) {
    found->second->bytes.clear();
  }
  open_[next_descriptor_] = found->second;
  return next_descriptor_++;
}

std::int64_t SimFiles::read(FileOp& op, SimDisk::File& file, std::size_t bytes) {
  if (op.offset() >= file.bytes.size()) {
    return 0;
  }
  bytes = std::min<std::size_t>(bytes, file.bytes.size() - op.offset());
  std::memcpy(op.into(), file.bytes.data() + op.offset(), bytes);
  return static_cast<std::int64_t>(bytes);
}

std::int64_t SimFiles::write(FileOp& op, SimDisk::File& file, std::size_t bytes) {
  const std::uint64_t used = disk_.used_bytes();
  const std::uint64_t free =
      disk_.options_.capacity_bytes - std::min(used, disk_.options_.capacity_bytes);
  const std::uint64_t end_before = file.bytes.size();
  if (op.offset() + bytes > end_before && op.offset() + bytes - end_before > free) {
    const std::uint64_t last = end_before + free;
    if (last <= op.offset()) {
      return -ENOSPC;
    }
    bytes = last - op.offset();
  }
  file.bytes.resize(std::max<std::uint64_t>(file.bytes.size(), op.offset() + bytes));
  std::memcpy(file.bytes.data() + op.offset(), op.from(), bytes);
  return static_cast<std::int64_t>(bytes);
}

std::int64_t SimFiles::rename(const FileRequest& request) {
  const auto found = disk_.names_.find(request.path);
  if (found == disk_.names_.end()) {
    return -ENOENT;
  }
  std::shared_ptr<SimDisk::File> file = found->second;
  disk_.names_.erase(found);
  disk_.names_[request.new_path] = std::move(file);
  return 0;
}

}  // namespace tandem
