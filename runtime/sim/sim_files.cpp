#include "runtime/sim/sim_files.hpp"

#include <algorithm>
#include <cerrno>

namespace tandem {

SimFiles::SimFiles(SimWorld& world, std::uint32_t rank, SimDisk& disk, Faults faults)
    : world_(world),
      rank_(rank),
      disk_(disk),
      faults_(faults),
      random_(world.random().fork("files").fork(rank)) {}

void SimFiles::submit(FileOp& op) noexcept {
  const std::uint64_t number = next_number_++;
  under_way_[number] = &op;
  world_.after(time_of(op), rank_, [this, number] { finish(number); });
}

Duration SimFiles::time_of(const FileOp& op) {
  const FileRequest::Kind kind = op.request.kind;
  const bool reads = kind == FileRequest::Kind::kRead;
  if (faults_.bytes_per_s == 0 || (!reads && kind != FileRequest::Kind::kWrite)) {
    return Duration(random_.between(1, 2 * faults_.call_time.count()));
  }
  TimePoint& end = reads ? reads_end_ : writes_end_;
  const double seconds = static_cast<double>(op.bytes()) / faults_.bytes_per_s;
  end = std::max(end, world_.now()) + Duration(static_cast<std::int64_t>(seconds * 1e9));
  return end - world_.now();
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
  op.outcome = call(op, number);
  world_.note("file call", rank_, static_cast<std::uint64_t>(op.request.kind),
              static_cast<std::uint64_t>(op.outcome));
  world_.loop(rank_).post_from_any_thread(op);
}

std::int64_t SimFiles::call(FileOp& op, std::uint64_t number) {
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
  const bool fails = request.kind != Kind::kClose &&
                     (random_.chance(faults_.io_error) || number == faults_.error_at);
  failed_ += fails ? 1 : 0;
  if (fails && request.kind != Kind::kFsync) {
    return -EIO;
  }
  std::shared_ptr<SimDisk::Node> file;
  if (const auto found = open_.find(request.descriptor); found != open_.end()) {
    file = found->second;
  } else if (transfer || request.kind == Kind::kFsync || request.kind == Kind::kClose ||
             request.kind == Kind::kSize || request.kind == Kind::kReserve) {
    return -EBADF;
  }
  std::size_t bytes = transfer ? op.bytes() : 0;
  // Past the page cache whole blocks are moved.
  const std::size_t unit = request.direct ? FileOp::kDirectAlignment : 1;
  if (bytes > unit && random_.chance(faults_.short_transfer)) {
    bytes = unit * (1 + random_.below(bytes / unit - 1));
  }
  switch (request.kind) {
    case Kind::kOpen:
      return open(request);
    case Kind::kRead:
      return disk_.read(*file, op.offset(), op.into(), bytes);
    case Kind::kWrite:
      return disk_.write(*file, op.offset(), op.from(), bytes);
    case Kind::kFsync:
      return disk_.fsync(*file, fails);
    case Kind::kFsyncFolder:
      return disk_.fsync_folder(request.path);
    case Kind::kClose:
      open_.erase(request.descriptor);
      return 0;
    case Kind::kRename:
      return disk_.rename(request.path, request.new_path);
    case Kind::kExchange:
      return disk_.exchange(request.path, request.new_path);
    case Kind::kRemove:
    case Kind::kRemoveFolder:
      return disk_.remove(request.path, request.kind == Kind::kRemoveFolder);
    case Kind::kRemoveTree:
      return disk_.remove_tree(request.path);
    case Kind::kSize:
      return static_cast<std::int64_t>(file->bytes.size());
    case Kind::kReserve:
      return disk_.reserve(*file, request.bytes);
    case Kind::kMakeFolder:
      return disk_.make_folder(request.path);
    case Kind::kListFolder:
      return disk_.list_folder(request.path, op.request.names);
    case Kind::kFreeBytes:
      return static_cast<std::int64_t>(std::min<std::uint64_t>(disk_.free_bytes(), INT64_MAX));
  }
  return -EINVAL;
}

std::int64_t SimFiles::open(const FileRequest& request) {
  std::shared_ptr<SimDisk::Node> file;
  const std::int64_t result = disk_.open(request.path, request.mode, file);
  if (result < 0) {
    return result;
  }
  open_[next_descriptor_] = std::move(file);
  return next_descriptor_++;
}

}  // namespace tandem
