// runtime/sim/sim_files.hpp — a disk in memory with the faults of real ones, as a back end of
// FileIo.
//
// SimFiles is one rank's access to a SimDisk: each call takes a time drawn from the seed and may
// end short, interrupted, or with an error, as the Faults say. A write that does not fit writes
// what fits; the next one fails with ENOSPC.
// Thread rule: the world's thread. Files must be destroyed before their SimFiles, which must live
// as long as the world runs.
//
//   SimDisk disk({.capacity_bytes = 1 << 20});
//   const SimFiles::Faults faults{.short_transfer = 0.3};
//   FileIo io(world.loop(rank), std::make_unique<SimFiles>(world, rank, disk, faults));
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "runtime/io/file_backend.hpp"
#include "runtime/sim/sim_disk.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

class SimFiles final : public FileBackend {
 public:
  struct Faults {
    double short_transfer = 0;                           // chance that a transfer moves only a part
    double interrupted = 0;                              // ... that a call ends with EINTR
    double busy = 0;                                     // ... with EAGAIN
    double io_error = 0;                                 // ... with EIO
    std::uint64_t error_at = UINT64_MAX;                 // the call, from 0, that ends with EIO
    Duration call_time = std::chrono::microseconds(50);  // on average
    // Reads share this rate, and writes have as much; 0: each call takes call_time, however many
    // there are.
    double bytes_per_s = 0;
  };
  SimFiles(SimWorld& world, std::uint32_t rank, SimDisk& disk, Faults faults);

  void set_faults(Faults faults) noexcept { faults_ = faults; }
  [[nodiscard]] std::size_t open_files() const noexcept { return open_.size(); }
  /// Returns the number of calls so far.
  [[nodiscard]] std::uint64_t calls() const noexcept { return next_number_; }
  /// Returns the number of these that ended with EIO.
  [[nodiscard]] std::uint64_t failed_calls() const noexcept { return failed_; }
  [[nodiscard]] std::size_t calls_under_way() const noexcept { return under_way_.size(); }

  void submit(FileOp& op) noexcept override;
  void cancel(FileOp& op) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return "simulated"; }
  [[nodiscard]] bool owns_descriptors() const noexcept override { return true; }
  void drop(int descriptor) noexcept override { open_.erase(descriptor); }

 private:
  [[nodiscard]] Duration time_of(const FileOp& op);
  void finish(std::uint64_t number);
  [[nodiscard]] std::int64_t call(FileOp& op, std::uint64_t number);
  [[nodiscard]] std::int64_t open(const FileRequest& request);

  SimWorld& world_;
  std::uint32_t rank_;
  SimDisk& disk_;
  Faults faults_;
  Random random_;
  std::map<int, std::shared_ptr<SimDisk::Node>> open_;
  int next_descriptor_ = 3;
  std::map<std::uint64_t, FileOp*> under_way_;  // by number of submission
  std::uint64_t next_number_ = 0;
  std::uint64_t failed_ = 0;
  TimePoint reads_end_;  // at a rate: of the last read that was submitted
  TimePoint writes_end_;
};

}  // namespace tandem
