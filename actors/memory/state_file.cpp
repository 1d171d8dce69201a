#include "actors/memory/state_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {
namespace {

// Below it the way to another thread and back costs more than the sums.
constexpr std::size_t kSummedByTheLoop = std::size_t{64} << 10;

std::uint32_t sum_of(const std::byte* block) noexcept {
  return static_cast<std::uint32_t>(XXH3_64bits(block, StateFile::kAlignment));
}

constexpr std::size_t aligned(std::size_t bytes) { return round_up(bytes, StateFile::kAlignment); }

/// Nothing where the file system cannot: no direct transfers (EINVAL), or no files without a name.
Task<IoFile> try_open(FileIo* io, std::string path, OpenMode mode, bool direct) {
  try {
    if (direct) {
      co_return co_await io->open_direct(std::move(path), mode);
    }
    co_return co_await io->open(std::move(path), mode);
  } catch (const FileError& error) {
    const int number = error.error_number();
    const bool no_direct = direct && number == EINVAL;
    const bool no_nameless = mode == OpenMode::kNameless &&
                             (number == EOPNOTSUPP || number == EISDIR || number == EINVAL);
    if (!no_direct && !no_nameless) {
      throw;
    }
  }
  co_return IoFile();
}

Task<> remove_if_there(FileIo* io, std::string path) {
  try {
    co_await io->remove(std::move(path));
  } catch (const FileError& error) {
    if (error.error_number() != ENOENT) {
      throw;
    }
  }
}

/// A file for this user alone, that no name leads to: another user who could open it would read
/// weights for as long as the run lasts.
Task<IoFile> open_private(FileIo* io, std::string path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const OwnFolder own(folder);
  for (const bool direct : {true, false}) {
    if (IoFile file = co_await try_open(io, folder, OpenMode::kNameless, direct); file.is_open()) {
      co_return file;
    }
  }
  IoFile file = co_await try_open(io, path, OpenMode::kPrivate, true);
  if (!file.is_open()) {  // made under its name, unless the file system looked at the flag first
    co_await remove_if_there(io, path);
    file = co_await io->open(path, OpenMode::kPrivate);
  }
  co_await io->remove(path);
  co_return file;
}

}  // namespace

StateFile::StateFile(std::size_t bytes) : bytes_(aligned(bytes)) {
  if (bytes_ == 0) {
    return;
  }
  void* reserved =
      ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    const int error = errno;
    throw failure(ExitCode::kRefused, "nvme",
                  "cannot reserve addresses for {} bytes of a state file: {}; use a smaller "
                  "model or more ranks",
                  bytes_, std::strerror(error));
  }
  data_ = static_cast<std::byte*>(reserved);
  const std::vector<std::byte> zeros(kAlignment);
  sums_.assign(bytes_ / kAlignment, sum_of(zeros.data()));
}

StateFile::~StateFile() {
  if (data_ != nullptr) {
    TANDEM_CHECK(::munmap(data_, bytes_) == 0, "what was reserved is given back");
  }
}

Task<> StateFile::open(Options options) {
  TANDEM_CHECK(options_.io == nullptr, "a state file is opened once");
  TANDEM_CHECK(options.io != nullptr && options.pool != nullptr, "a state file has its helpers");
  options.piece_bytes = std::max(aligned(options.piece_bytes), kAlignment);
  options_ = std::move(options);
  file_ = co_await open_private(options_.io, options_.path);
  int error = 0;
  try {
    co_await options_.io->reserve(file_, bytes_);
  } catch (const FileError& failed) {
    error = failed.error_number();
    if (error != ENOSPC && error != EDQUOT && error != EFBIG) {
      throw;
    }
  }
  if (error != 0) {
    throw failure(
        ExitCode::kRefused, "nvme",
        "cannot reserve {} bytes for what lies on NVMe in {}: {}; free some, give another "
        "folder with --nvme_path, or leave more of the state in memory",
        bytes_, options_.path, std::strerror(error));
  }
}

std::vector<StateFile::Piece> StateFile::pieces_of(const std::vector<Transfer>& transfers) {
  std::vector<Piece> pieces;
  for (const Transfer& transfer : transfers) {
    TANDEM_CHECK(options_.io != nullptr, "a transfer is of an open file");
    const std::size_t bytes = aligned(transfer.bytes);
    for (std::size_t at = 0; at < bytes; at += options_.piece_bytes) {
      pieces.push_back({this,
                        {transfer.in_file + at, transfer.memory + at,
                         std::min(options_.piece_bytes, bytes - at)}});
    }
  }
  return pieces;
}

Task<> StateFile::read(std::vector<Transfer> transfers, Name what) {
  return transfer(std::move(transfers), what, &StateFile::read_piece);
}

Task<> StateFile::write(std::vector<Transfer> transfers, Name what) {
  return transfer(std::move(transfers), what, &StateFile::write_piece);
}

Task<> StateFile::transfer(std::vector<Transfer> transfers, Name what, MovePiece move_piece) {
  std::optional<BusyTime::Working> working;
  if (options_.busy != nullptr) {
    working.emplace(*options_.busy);
  }
  Scope pieces(EventLoop::current(), "state file");
  for (const Piece& piece : pieces_of(transfers)) {
    pieces.spawn(what, move_piece, piece);
  }
  co_await pieces.join();
}

Error nvme_failure(std::string_view done, std::string_view what, const FileError& error) {
  return failure(ExitCode::kFailure, "nvme",
                 "cannot {} the {}: {}; resume from the last checkpoint, on another disk", done,
                 what, error.what());
}

template <class UseSum>
Task<> StateFile::sum_up(Transfer piece, UseSum use_sum) {
  const std::size_t first = offset_of(piece.in_file) / kAlignment;
  const auto sum_all = [piece, first, use_sum] {
    for (std::size_t block = 0; block < piece.bytes / kAlignment; ++block) {
      use_sum(first + block, sum_of(piece.memory + block * kAlignment));
    }
  };
  if (piece.bytes <= kSummedByTheLoop) {
    sum_all();
  } else {
    co_await options_.pool->run(sum_all, "check sums");
  }
}

Task<> StateFile::read_piece(Piece piece) {
  StateFile& self = *piece.file;
  const Transfer& move = piece.transfer;
  const std::uint64_t offset = self.offset_of(move.in_file);
  const std::size_t got =
      co_await self.options_.io->read(self.file_, offset, {move.memory, move.bytes});
  if (got < move.bytes) {
    throw FileError(fmt::format("[file] {} ends at byte {}, and the run's file has {} bytes: "
                                "another program has cut it",
                                self.options_.path, offset + got, self.bytes_),
                    EIO);
  }
  co_await self.sum_up(move, [&self](std::size_t block, std::uint32_t sum) {
    if (sum != self.sums_[block]) {
      throw FileError(fmt::format("[file] {} has other bytes in the {} at byte {} than the run has "
                                  "written: the disk or another program has changed them",
                                  self.options_.path, kAlignment, block * kAlignment),
                      EIO);
    }
  });
  self.bytes_read_ += got;
}

Task<> StateFile::write_piece(Piece piece) {
  StateFile& self = *piece.file;
  const Transfer& move = piece.transfer;
  const std::uint64_t offset = self.offset_of(move.in_file);
  co_await self.sum_up(move,
                       [&self](std::size_t block, std::uint32_t sum) { self.sums_[block] = sum; });
  co_await self.options_.io->write(self.file_, offset, {move.memory, move.bytes});
  self.bytes_written_ += move.bytes;
}

}  // namespace tandem
