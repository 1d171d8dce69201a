// actors/memory/state_file.hpp — optimizer state, weights and gradients in a file, with reserved
// addresses.
//
// Arrays in the file have addresses in a reserved range without memory (Place::kFile). An address
// gives the position in the file, so arrays are placed, compared and passed like those in memory.
// An access to such an address faults at once. The file has its full size before the first step, so
// that a full disk shows then. Only this user can open it (0600). It has no name, so that no run
// leaves it behind; if the file system has no files without a name, the name is removed as soon as
// the file is open. Reads and writes bypass the page cache if the file system can.
// Invariant: bytes that were never written read as zeros, and written bytes are verified when they
// are read: a check sum in memory covers each 4096 bytes. A pool's threads compute the sums of
// large transfers, so that the loop stays free.
// Buffers: a transfer's memory is lent until its await returns. Simultaneous transfers must use
// different 4096-byte blocks of the file.
// Errors: FileError, also for a file that has become shorter or has other bytes; Error(kRefused) if
// the disk has no room at the start.
// Thread rule: the loop's thread; the FileIo and the pool outlive it.
// Cancel rule: transfers run to their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "actors/memory/busy_time.hpp"
#include "actors/memory/placed.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

class StateFile {
 public:
  /// The offsets, sizes and addresses of transfers are multiples of this.
  static constexpr std::size_t kAlignment = FileIo::kDirectAlignment;

  /// A copy between an array in the file and memory; both begin at multiples of kAlignment, and
  /// their sizes are rounded up to it.
  struct Transfer {
    Placed<const std::byte> in_file;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };

  /// Reserves addresses for `bytes`. Throws Error(kRefused) if the system refuses.
  explicit StateFile(std::size_t bytes);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  struct Options {
    FileIo* io = nullptr;
    CpuPool* pool = nullptr;      // its threads compute check sums
    std::string path;             // no file may have this name
    std::size_t piece_bytes = 0;  // moved by a call; a transfer's calls are issued together
    // Counts the time in which transfers are under way; several files may share it. Outlives the
    // file.
    BusyTime* busy = nullptr;
  };
  /// Makes the file in the path's folder. Uses the path's name only if the file system needs a
  /// name.
  Task<> open(Options options);
  /// Returns the size of the check sums of a file of `bytes`.
  [[nodiscard]] static constexpr std::size_t sums_bytes(std::size_t bytes) noexcept {
    return (bytes + kAlignment - 1) / kAlignment * sizeof(std::uint32_t);
  }

  [[nodiscard]] Placed<std::byte> data() const noexcept { return {Place::kFile, data_}; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool is_direct() const noexcept { return file_.is_direct(); }
  /// Returns the position in file() of an array's address.
  [[nodiscard]] std::uint64_t offset_of(Placed<const std::byte> array) const {
    const auto offset = static_cast<std::uint64_t>(array.file() - data_);
    TANDEM_CHECK_LT(offset, bytes_, "an array lies in the file");
    return offset;
  }
  [[nodiscard]] const IoFile& file() const noexcept { return file_; }

  /// `what`: the transfer's name in reports of long waits.
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
  /// Calls use_sum(block, sum) for each 4096 bytes of the piece, on a thread of the pool if it is
  /// large.
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

/// Returns the error of a run that ends because it cannot read or write (`done`) the data `what`.
[[nodiscard]] Error nvme_failure(std::string_view done, std::string_view what,
                                 const FileError& error);

}  // namespace tandem
