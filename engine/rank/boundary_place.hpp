// engine/rank/boundary_place.hpp — where boundaries of segments lie between forward and backward,
// and how they get there.
//
// Beside an accelerator that is pinned host memory: a place for each boundary, made when the first
// micro-batch comes and grown when a larger one does. Copies go by pieces, two of a boundary at a
// time, so that what else uses the link waits for a few pieces at most; on their way back they go
// behind weights that can be copied by then (of StagedBackend's gathers). Where the CPU computes it
// is a file for each boundary, without a name, on NVMe, by way of stages in memory that read() and
// write() of a StateFile can use. Invariant: the bytes that come back are those that went, of the
// last micro-batch. Buffers: of a transfer, until its task ends. One transfer of a boundary is
// under way at a time. Failure: DeviceError; Error(kFailure) that names the boundary where the disk
// fails; Error(kRefused) where there is no room. Thread rule: the loop's thread; room(): any.
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
  /// Memory that the boundary comes back to, good until the next one but two has come back; null:
  /// any memory where segments compute.
  virtual std::byte* room(std::size_t boundary) {
    (void)boundary;
    return nullptr;
  }
  /// Host memory that it has by now.
  [[nodiscard]] virtual std::size_t host_bytes() const noexcept = 0;
};

/// Boundaries of a device's memory, in pinned host memory.
class HostBoundaries final : public BoundaryPlace {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

  /// `accelerator` outlives it; it is connected. `names`: [boundary], in traces.
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

/// Boundaries of host memory, in files.
class FileBoundaries final : public BoundaryPlace {
 public:
  struct Options {
    FileIo* io = nullptr;       // outlives it
    CpuPool* copies = nullptr;  // likewise
    std::string path;           // of the files, with a number behind it
    std::size_t block_bytes = std::size_t{1} << 20;
    BusyTime* busy = nullptr;        // as StateFile::open() has it
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
