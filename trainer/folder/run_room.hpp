// trainer/folder/run_room.hpp — the room that a run needs on the disk of its output
// folder, and on that of its checkpoints where a link or a mount leads them elsewhere: asked for
// before the first step, and held until it is used.
//
// Invariant: while hold() has effect, what the run itself writes beside (metrics, traces, events)
// finds no room before it touches that of the model and of the last checkpoint.
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

  /// From now on, where `there` checkpoints lie: beyond what lies there, the most at any time.
  [[nodiscard]] std::int64_t bytes(std::int64_t there) const;
  /// Beside the model's.
  [[nodiscard]] std::int64_t checkpoints_bytes(std::int64_t there) const {
    return bytes(there) - model_bytes;
  }
};

class RunRoom {
 public:
  /// The room of a rank that writes to no disk.
  RunRoom() = default;
  /// `needs`: those of each disk that this rank answers for.
  explicit RunRoom(std::vector<RoomNeeds> needs) : needs_(std::move(needs)) {}

  /// Holds what the run needs from now on, or what is free of it, in files without a name. They are
  /// this user's alone, and go with the process. Where the file system cannot reserve, nothing.
  void hold();
  /// For what it was held for.
  void give_back() noexcept { held_.clear(); }

 private:
  void hold(const RoomNeeds& needs);
  [[nodiscard]] bool hold_piece(const std::string& folder, std::uint64_t bytes);

  std::vector<RoomNeeds> needs_;
  std::vector<FileHandle> held_;
};

/// Adds to the plan what the run will have on the disk of its output folder, or of its checkpoints,
/// beyond what lies there now: its model with `weight_bytes` per weight and `beside_bytes` of other
/// files, which lies beside an older one until it is whole, reports, and the checkpoints that stay,
/// with the one being written. With several disks it is the one with least room beyond that.
/// RunPlan::require_fit() then throws where the disk has less room. Returns this rank's room, not
/// yet held. Throws Error(kRefused) where the disk has too few inodes or the limit of a file's
/// size is too low. A collective.
[[nodiscard]] RunRoom plan_disk(RunPlan& plan, const Model& model, const RunFlags& flags,
                                const Config& config, std::size_t weight_bytes,
                                std::int64_t beside_bytes, Communicator& ranks, const Disks& disks);

}  // namespace tandem
