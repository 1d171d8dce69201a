#include "actors/memory/state_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {
namespace {

constexpr std::size_t aligned(std::size_t bytes) { return round_up(bytes, StateFile::kAlignment); }

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
}

StateFile::~StateFile() {
  if (data_ != nullptr) {
    TANDEM_CHECK(::munmap(data_, bytes_) == 0, "what was reserved is given back");
  }
}

Task<> StateFile::open(FileIo* io, std::string path, std::size_t piece_bytes, BusyTime* busy) {
  TANDEM_CHECK(io_ == nullptr, "a state file is opened once");
  io_ = io;
  busy_ = busy;
  piece_bytes_ = std::max(aligned(piece_bytes), kAlignment);
  bool passes_cache = true;
  try {
    file_ = co_await io->open_direct(path, OpenMode::kReadWrite);
  } catch (const FileError& error) {
    if (error.error_number() != EINVAL) {
      throw;
    }
    passes_cache = false;
  }
  if (!passes_cache) {
    file_ = co_await io->open(path, OpenMode::kReadWrite);
  }
  co_await io->remove(path);
  int error = 0;
  try {
    co_await io->reserve(file_, bytes_);
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
        bytes_, path, std::strerror(error));
  }
}

std::vector<StateFile::Piece> StateFile::pieces_of(const std::vector<Transfer>& transfers) {
  std::vector<Piece> pieces;
  for (const Transfer& transfer : transfers) {
    TANDEM_CHECK(holds(transfer.in_file) && io_ != nullptr, "a transfer is of an open file");
    const std::size_t bytes = aligned(transfer.bytes);
    for (std::size_t at = 0; at < bytes; at += piece_bytes_) {
      pieces.push_back(
          {this,
           {transfer.in_file + at, transfer.memory + at, std::min(piece_bytes_, bytes - at)}});
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
  if (busy_ != nullptr) {
    working.emplace(*busy_);
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

Task<> StateFile::read_piece(Piece piece) {
  StateFile& self = *piece.file;
  const Transfer& move = piece.transfer;
  const std::uint64_t offset = self.offset_of(move.in_file);
  const std::size_t got = co_await self.io_->read(self.file_, offset, {move.memory, move.bytes});
  if (got < move.bytes) {
    throw FileError(fmt::format("[file] {} ends at byte {}, and the run's file has {} bytes: "
                                "another program has cut it",
                                self.file_.path(), offset + got, self.bytes_),
                    EIO);
  }
  self.bytes_read_ += got;
}

Task<> StateFile::write_piece(Piece piece) {
  StateFile& self = *piece.file;
  const Transfer& move = piece.transfer;
  const std::uint64_t offset = self.offset_of(move.in_file);
  co_await self.io_->write(self.file_, offset, {move.memory, move.bytes});
  self.bytes_written_ += move.bytes;
}

}  // namespace tandem
