// actors/checkpoint/checkpoint_writer.hpp — writes a rank's master weights and moments into the
// files of a checkpoint while training goes on.
//
// A save freezes all units in the optimizer (FreezeUnits) and writes them in the order in which the
// next step will update them. A unit may change again (UnfreezeUnit) when its last byte has been
// written. If an update of a frozen unit is due earlier, the unit is copied into a bounded save
// buffer, from which it is written later, and may change at once. If the buffer has no room, the
// unit is written next, and the update waits for that. The file of state and the checkpoint may lie
// on a file system whose files can share extents (XFS, Btrfs). If fp32 arrays then have the same
// offsets within 4 KiB in both, their extents are shared instead of written, which takes only a
// system call.
//
// States of a unit: held -> (staging -> staged ->) writing -> written; the hold ends at staged, or
// at written.
// Invariant: a save contains the state after the last update that was requested before it. Values
// are fp32; read_master() and read_state() convert every layout exactly, and write_*() convert back
// to the same bits.
// Buffers: this actor reads the state from FreezeUnits to UnfreezeUnit. The CheckpointSave is lent
// until WriteCheckpoint's reply.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <vector>

#include "actors/checkpoint/checkpoint_save.hpp"
#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/memory/arena.hpp"
#include "actors/memory/state_file.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "runtime/actor.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event.hpp"

namespace tandem {

/// Numbers of a unit's arrays: the master weights, and the moments.
inline constexpr std::uint32_t kMasterArray = 0;
inline constexpr std::uint32_t kCheckpointArrays = 3;

/// Elements [begin, end) of one array of a unit's slice, and their position in a file.
struct CheckpointPiece {
  std::uint32_t file = 0;         // of the CheckpointPlan
  std::uint64_t data_offset = 0;  // bytes, behind the file's header
  std::uint32_t array = kMasterArray;
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A unit's state in host memory; arrays that lie on a device are copied into `memory`.
struct HostState {
  UpdateBuffers buffers;
  std::vector<HostBuffer> memory;
};

/// Freezes the state that the next save writes; it does not change after the reply.
struct HoldForCheckpoint {
  using Reply = std::size_t;  // units held
};

struct WriteOutcome {
  std::size_t staged_bytes = 0;
  std::exception_ptr failure;  // the error of the files; null: none
};

/// After HoldForCheckpoint: writes this rank's pieces and makes them durable. When it replies, no
/// unit is frozen any more. A failure is part of the reply, because a handler that throws would end
/// the run.
struct WriteCheckpoint {
  using Reply = WriteOutcome;
  CheckpointSave* save = nullptr;
};

class CheckpointWriter : public Actor<CheckpointWriter, HoldForCheckpoint, WriteCheckpoint> {
 public:
  using OptimizerAddress = Address<FreezeUnits, AwaitFrozen, NextWanted, UnfreezeUnit>;

  struct Unit {
    std::vector<CheckpointPiece> pieces;  // ascending in their file; none: this rank writes nothing
    std::size_t elements = 0;             // of the slice
    bool is_updated = true;               // false: the unit is not trained, and never held
  };

  struct Options {
    CpuPool* pool = nullptr;  // outlives the actor
    OptimizerAddress optimizer;
    std::vector<Unit> units;
    std::vector<std::uint32_t> order;  // all units, in the order of their next updates
    /// Returns the unit's state in host memory. Called while the unit is frozen or not being
    /// updated.
    std::function<Task<HostState>(std::uint32_t unit)> state_of;
    // The file of state on NVMe, and a function that says where a unit's state lies. Null: there is
    // no file. Both outlive the actor.
    StateFile* state_file = nullptr;
    std::function<PlacedBuffers(std::uint32_t unit)> lies_at = {};
    std::size_t staging_bytes = 0;  // size of the save buffer, at most
    std::size_t piece_bytes = std::size_t{4} << 20;
  };

  explicit CheckpointWriter(Options options);

  /// Sets the pieces that the next save writes, for the same units. Call it between two saves, on
  /// the loop's thread.
  void use_units(std::vector<Unit> units);

  Task<std::size_t> handle(HoldForCheckpoint request);
  Task<WriteOutcome> handle(WriteCheckpoint request);

 private:
  enum class State : std::uint8_t { kHeld, kStaging, kStaged, kWriting, kWritten };

  /// fp32 values of the arrays that the unit's pieces need, [array][element of the slice].
  struct Staged {
    std::array<HostBuffer, kCheckpointArrays> arrays;
  };

  /// The elements [begin, end) of a piece, which are written with one call.
  struct Run {
    const CheckpointPiece* piece;
    std::size_t begin;
    std::size_t end;
  };

  Task<> write_all(CheckpointSave* save);
  Task<> write_held(CheckpointSave* save);
  static Task<> stage_wanted(CheckpointWriter* self);
  Task<> stage(std::uint32_t unit);
  Task<> copy_to_staging(std::uint32_t unit);
  [[nodiscard]] std::size_t staged_bytes_of(std::uint32_t unit) const;
  /// Returns the unit to write next; nullopt while all remaining units are being copied to the save
  /// buffer.
  [[nodiscard]] std::optional<std::uint32_t> next_unit();
  Task<> write(CheckpointSave* save, std::uint32_t unit);
  Task<> write_staged(CheckpointSave* save, std::uint32_t unit);
  /// Shares the pieces that can be shared; returns those that must be written.
  Task<std::vector<CheckpointPiece>> share(CheckpointSave* save, std::uint32_t unit);
  Task<bool> share_piece(CheckpointSave* save, CheckpointPiece piece,
                         Placed<const std::byte> in_file);
  Task<> check_as_written(Placed<const std::byte> in_file, std::size_t bytes);
  Task<> copy_edge(CheckpointSave* save, CheckpointPiece piece, std::uint64_t at,
                   Placed<const std::byte> in_file, std::size_t bytes);
  Task<> write_state(CheckpointSave* save, std::uint32_t unit,
                     const std::vector<CheckpointPiece>* pieces);
  static Task<> write_values(CheckpointSave* save, Run run, const float* values);
  Task<> fill(const UpdateBuffers* buffers, Run run, float* values);
  [[nodiscard]] std::vector<Run> runs_of(const std::vector<CheckpointPiece>& pieces) const;
  Task<> end_hold(std::uint32_t unit);

  Options options_;
  std::vector<State> states_;          // [unit]
  std::vector<bool> holds_;            // [unit] its hold has not ended
  std::vector<std::uint32_t> urgent_;  // wanted units that had no room in the save buffer
  std::map<std::uint32_t, Staged> staged_;
  std::size_t staged_bytes_ = 0;  // now
  std::size_t staged_in_all_ = 0;
  bool shares_ = false;                // until the file system says that it cannot
  Event staging_ended_;                // of any unit
  std::array<HostBuffer, 2> buffers_;  // one is filled while the other is written
};

}  // namespace tandem
