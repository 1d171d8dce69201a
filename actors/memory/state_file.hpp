// actors/memory/state_file.hpp — optimizer state, weights and gradients in a file, under addresses
// of their own.
//
// Arrays that lie in the file have addresses in a range that is reserved and never backed: an
// address says where in the file its bytes are, and code that places, compares and hands on arrays
// needs no other form of them. A touch of such an address faults at once.
// The file has its full size before the first step, so that a full disk shows then. It is this
// user's alone (0600) and has no name, so that no other process opens it and no run, however it
// ends, leaves it behind; where a file system has no files without a name, it loses its name as
// soon as it is open. It is read and written past the page cache, where the file system can.
// Invariant: what was never written reads as zeros, and what was written is read as it was: each
// block has a check sum in memory, 4 bytes for 4096. A pool's threads sum up what is large, so that
// the loop goes on meanwhile.
// Buffers: of a transfer, until its await returns. Transfers that are under way at the same time
// touch different blocks of the file.
// Errors: FileError, also of a file that has become shorter or holds other bytes; Error(kRefused)
// where the disk has no room at the start. Thread rule: the loop's thread; the FileIo and the
// pool outlive it. Cancel rule: transfers run to their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/memory/busy_time.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

class StateFile {
 public:
  /// Offsets, sizes and addresses of transfers are multiples of it.
  static constexpr std::size_t kAlignment = FileIo::kDirectAlignment;

  /// Between an array in the file and memory; both begin at multiples of kAlignment, and have room
  /// for whole blocks of it.
  struct Transfer {
    std::byte* in_file = nullptr;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  /// Reserves addresses. Throws Error(kRefused) where the system has none left.
  explicit StateFile(std::size_t bytes);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  struct Options {
    FileIo* io = nullptr;
    CpuPool* pool = nullptr;      // its threads sum up blocks
    std::string path;             // nothing may have this name
    std::size_t piece_bytes = 0;  // of a call; pieces of a transfer are asked for together
    // Counts the time in which one of the file's transfers, or of another file's that has the same,
    // is under way; outlives it.
    BusyTime* busy = nullptr;
  };
  /// Makes the file in the folder of the path, under that name where the file system needs one.
  Task<> open(Options options);
  /// Memory of the check sums of a file of `bytes`.
  [[nodiscard]] static constexpr std::size_t sums_bytes(std::size_t bytes) noexcept {
    return (bytes + kAlignment - 1) / kAlignment * sizeof(std::uint32_t);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool holds(const void* array) const noexcept {
    return !std::less<>()(array, static_cast<const void*>(data_)) &&
           std::less<>()(array, static_cast<const void*>(data_ + bytes_));
  }
  [[nodiscard]] bool is_direct() const noexcept { return file_.is_direct(); }
  /// Where in file() an array's address is.
  [[nodiscard]] std::uint64_t offset_of(const void* array) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(array) - data_);
  }
  [[nodiscard]] const IoFile& file() const noexcept { return file_; }

  /// `what`: names the transfer in a report of what waits too long.
  Task<> read(std::vector<Transfer> transfers, Name what = "state file");
  Task<> write(std::vector<Transfer> transfers, Name what = "state file");

  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }
  [[nodiscard]] std::uint64_t bytes_written() const noexcept { return bytes_written_; }

 private:
  /// The bytes that one call moves.
  struct Piece {
    StateFile* file;
    Transfer transfer;
  };
  [[nodiscard]] std::vector<Piece> pieces_of(const std::vector<Transfer>& transfers);
  using MovePiece = Task<> (*)(Piece piece);
  Task<> transfer(std::vector<Transfer> transfers, Name what, MovePiece move_piece);
  static Task<> read_piece(Piece piece);
  static Task<> write_piece(Piece piece);
  /// use_sum(block, sum) for each block of the piece, on a thread of the pool where it is large.
  template <class UseSum>
  Task<> sum_up(Transfer piece, UseSum use_sum);

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Options options_;
  IoFile file_;
  std::vector<std::uint32_t> sums_;  // [block]
  std::uint64_t bytes_read_ = 0;
  std::uint64_t bytes_written_ = 0;
};

/// The error of a run that cannot read or write `what` there, and ends.
[[nodiscard]] Error nvme_failure(std::string_view done, std::string_view what,
                                 const FileError& error);

}  // namespace tandem
