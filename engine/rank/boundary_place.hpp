// engine/rank/boundary_place.hpp — the host memory or files in which boundaries between segments
// lie from forward to backward, and the copies to and from them.
//
// With an accelerator the place is pinned host memory: one buffer for each boundary, allocated at
// the first micro-batch and enlarged for a larger one. Copies go in pieces, at most two of a
// boundary at a time, so that other traffic on the link waits for a few pieces at most. On the way
// back a piece waits for the copies of weights that are already queued
// (CollectiveBackend::gathers_queued()).
// If the CPU computes, the place is an unnamed file on NVMe for each boundary; the bytes pass
// through transfer buffers that StateFile can read and write directly.
// Invariant: the bytes that come back are those that left, of the last micro-batch.
// Buffers: a transfer's memory is lent until its task ends; at most one transfer of a boundary is
// under way.
// Failure: DeviceError; Error(kFailure), which names the boundary, if the disk fails;
// Error(kRefused) if there is no room.
// Thread rule: the loop's thread; room(): any.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/memory/arena.hpp"
#include "actors/memory/busy_time.hpp"
#include "actors/memory/state_file.hpp"
#include "engine/device/accelerator.hpp"
#include "engine/types/boundary_share.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/device/device.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/task.hpp"
#include "runtime/util/name.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

class BoundaryPlace {
 public:
  virtual ~BoundaryPlace() = default;
  virtual Task<> take_away(std::size_t boundary, std::span<const std::byte> from) = 0;
  virtual Task<> bring_back(std::size_t boundary, std::span<std::byte> into) = 0;
  /// Returns the memory into which the boundary must be brought back, valid until the third
  /// boundary after it comes back; null: any memory where segments compute will do.
  virtual std::byte* room(std::size_t boundary) {
    (void)boundary;
    return nullptr;
  }
  /// Returns the bytes of host memory allocated so far.
  [[nodiscard]] virtual std::size_t host_bytes() const noexcept = 0;
};

/// Keeps boundaries of device memory in pinned host memory.
class HostBoundaries final : public BoundaryPlace {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

  /// `accelerator` is connected and outlives this object. `names`: [boundary], for traces.
  HostBoundaries(Accelerator& accelerator, std::vector<Name> names);
  ~HostBoundaries() override;

  Task<> take_away(std::size_t boundary, std::span<const std::byte> from) override;
  Task<> bring_back(std::size_t boundary, std::span<std::byte> into) override;
  [[nodiscard]] std::size_t host_bytes() const noexcept override;

 private:
  struct Slot {
    HostBuffer memory;
    bool pinned = false;
  };
  void unpin(Slot& slot) noexcept;

  Accelerator& accelerator_;
  DeviceStream to_host_;
  DeviceStream to_device_;
  std::vector<Name> names_;
  std::vector<Slot> slots_;  // [boundary]
};

/// Keeps boundaries of host memory in files.
class FileBoundaries final : public BoundaryPlace {
 public:
  struct Options {
    FileIo* io = nullptr;       // outlives it
    CpuPool* copies = nullptr;  // likewise
    std::string path;           // of the files; a number is appended
    std::size_t block_bytes = std::size_t{1} << 20;
    BusyTime* busy = nullptr;        // as in StateFile::Options
    std::vector<std::string> names;  // [boundary], for messages
  };
  explicit FileBoundaries(Options options);

  Task<> take_away(std::size_t boundary, std::span<const std::byte> from) override;
  Task<> bring_back(std::size_t boundary, std::span<std::byte> into) override;
  std::byte* room(std::size_t boundary) override { return stage_of(boundary).data(); }
  [[nodiscard]] std::size_t host_bytes() const noexcept override;

 private:
  [[nodiscard]] HostBuffer& stage_of(std::size_t boundary) {
    return stages_[planted(Bug::kBoundaryRoomShared) ? 0 : boundary % kBoundaryStages];
  }
  Task<> open(std::size_t boundary, std::size_t bytes);

  Options options_;
  std::array<HostBuffer, kBoundaryStages> stages_;
  std::vector<std::unique_ptr<StateFile>> files_;  // [boundary]
  std::size_t opened_ = 0;
};

}  // namespace tandem
