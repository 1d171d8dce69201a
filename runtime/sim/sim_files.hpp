// runtime/sim/sim_files.hpp — a disk in memory with the faults of real ones, as a back end of
// FileIo.
//
// SimDisk outlives ranks and crashes: a crash keeps what was fsynced (a file's bytes by fsync, its
// name by fsync_folder) and any part of what was not. SimFiles is one rank's way to a disk: each
// call takes a time drawn from the seed and may end short, interrupted, or with an error, as the
// Faults say. A write that does not fit writes what fits, then says ENOSPC.
// Thread rule: of the world's thread. Files die before their SimFiles; a SimFiles lives as long as
// the world runs.
//
//   SimDisk disk({.capacity_bytes = 1 << 20});
//   const SimFiles::Faults faults{.short_transfer = 0.3};
//   FileIo io(world.loop(rank), std::make_unique<SimFiles>(world, rank, disk, faults));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/io/file_backend.hpp"
#include "runtime/sim/sim_world.hpp"

namespace tandem {

class SimDisk {
 public:
  struct Options {
    std::uint64_t capacity_bytes = UINT64_MAX;
  };
  struct File {
    std::vector<std::byte> bytes;
    std::vector<std::byte> synced;  // what a crash keeps for certain
  };
  using Folder = std::map<std::string, std::shared_ptr<File>>;  // by path

  SimDisk() noexcept : SimDisk(Options()) {}
  explicit SimDisk(Options options) noexcept : options_(options) {}

  /// Power off, power on: names go back to the last fsync_folder, bytes to the last fsync, with
  /// unsynced pieces torn.
  void crash(Random& random);
  void set_capacity(std::uint64_t bytes) noexcept { options_.capacity_bytes = bytes; }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;
  /// The file's bytes; null if there is none of that name.
  [[nodiscard]] const std::vector<std::byte>* find(const std::string& path) const;
  /// Puts a whole file there, synced.
  void put(const std::string& path, std::vector<std::byte> bytes);

 private:
  friend class SimFiles;
  Options options_;
  Folder names_;
  Folder synced_names_;
};

class SimFiles final : public FileBackend {
 public:
  struct Faults {
    double short_transfer = 0;                           // chance that a transfer moves only a part
    double interrupted = 0;                              // ... that a call ends with EINTR
    double busy = 0;                                     // ... with EAGAIN
    double io_error = 0;                                 // ... with EIO
    Duration call_time = std::chrono::microseconds(50);  // on average
  };
  SimFiles(SimWorld& world, std::uint32_t rank, SimDisk& disk, Faults faults);

  void set_faults(Faults faults) noexcept { faults_ = faults; }
  [[nodiscard]] std::size_t open_files() const noexcept { return open_.size(); }

  void submit(FileOp& op) noexcept override;
  void cancel(FileOp& op) noexcept override;
  [[nodiscard]] std::string_view name() const noexcept override { return "simulated"; }
  [[nodiscard]] bool owns_descriptors() const noexcept override { return true; }
  void drop(int descriptor) noexcept override { open_.erase(descriptor); }

 private:
  void finish(std::uint64_t number);
  [[nodiscard]] std::int64_t call(FileOp& op);
  [[nodiscard]] std::int64_t open(const FileRequest& request);
  [[nodiscard]] std::int64_t read(FileOp& op, SimDisk::File& file, std::size_t bytes);
  [[nodiscard]] std::int64_t write(FileOp& op, SimDisk::File& file, std::size_t bytes);
  [[nodiscard]] std::int64_t rename(const FileRequest& request);

  SimWorld& world_;
  std::uint32_t rank_;
  SimDisk& disk_;
  Faults faults_;
  Random random_;
  std::map<int, std::shared_ptr<SimDisk::File>> open_;
  int next_descriptor_ = 3;
  std::map<std::uint64_t, FileOp*> under_way_;  // by number of submission
  std::uint64_t next_number_ = 0;
};

}  // namespace tandem
