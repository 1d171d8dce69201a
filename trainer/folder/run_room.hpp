// trainer/folder/run_room.hpp — checks, before the first step, the disk space that a run needs in
// its output folder and, if a link or a mount leads elsewhere, in its checkpoints' folder; reserves
// it until it is used.
//
// Invariant: after hold(), writes of metrics, traces and events fail for lack of space before they
// use the space of the model and of the last checkpoint.
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/storage/file.hpp"
#include "engine/checkpoint/disks.hpp"
#include "engine/config/config.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/plan/run_plan.hpp"
#include "engine/types/model.hpp"
#include "trainer/flags/run_flags.hpp"

namespace tandem {

/// The files that a run adds to one disk.
struct RoomNeeds {
  std::string folder;                 // on that disk
  std::string checkpoints;            // where they lie
  std::int64_t model_bytes = 0;       // with what is beside its weights; 0: another disk's
  std::int64_t checkpoint_bytes = 0;  // of one
  std::int64_t keep = 0;              // checkpoints that stay; 0: none are saved

  /// Returns the most additional bytes at any later time, if `there` checkpoints already lie there.
  [[nodiscard]] std::int64_t bytes(std::int64_t there) const;
  /// Beside the model's.
  [[nodiscard]] std::int64_t checkpoints_bytes(std::int64_t there) const {
    return bytes(there) - model_bytes;
  }
};

class RunRoom {
 public:
  /// For a rank that writes to no disk.
  RunRoom() = default;
  /// `needs`: one entry for each disk for which this rank is responsible.
  explicit RunRoom(std::vector<RoomNeeds> needs) : needs_(std::move(needs)) {}

  /// Reserves the space that the run still needs, or as much of it as is free, in files without a
  /// name. Only this user can access them, and they vanish with the process. Does nothing if the
  /// file system cannot reserve.
  void hold();
  /// Releases the space for its use.
  void give_back() noexcept { held_.clear(); }

 private:
  void hold(const RoomNeeds& needs);
  [[nodiscard]] bool hold_piece(const std::string& folder, std::uint64_t bytes);

  std::vector<RoomNeeds> needs_;
  std::vector<FileHandle> held_;
};

/// Adds to the plan the additional space that the run needs on the disk of its output folder or of
/// its checkpoints: its model with `weight_bytes` per weight and `beside_bytes` of other files,
/// which lies beside an older one until it is complete, reports, and the checkpoints that stay,
/// with the one being written. With several disks it takes the one with the least space to spare.
/// RunPlan::require_fit() then throws if the disk has too little. Returns this rank's room, not yet
/// reserved. Throws Error(kRefused) if the disk has too few inodes or the limit on file size is too
/// low. Collective.
[[nodiscard]] RunRoom plan_disk(RunPlan& plan, const Model& model, const RunFlags& flags,
                                const Config& config, std::size_t weight_bytes,
                                std::int64_t beside_bytes, Communicator& ranks, const Disks& disks);

}  // namespace tandem
