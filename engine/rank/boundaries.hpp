// engine/rank/boundaries.hpp — the boundaries between segments that activation checkpointing keeps,
// as far as they lie elsewhere between forward and backward (activation offload).
//
// Boundary b is the input of segment b; 1 to `leaving` leave (boundary_share.hpp).
// In forward:
//   behind visit b - 1   leave(): a copy of it begins; visits b and b + 1 run
//   before visit b + 2   left(): the copy is done; the visit begins with free()
// In backward:
//   before visit b + 1   bring(): a copy back begins
//   before visit b       there(): it is done; the visit begins with take(), and gone() is behind it
// So in forward a boundary has two visits to leave in, and three of those that leave are where
// segments compute; in backward it has one visit, which is longer, and there are two.
// Beside a simulated device it also counts what all boundaries take of the device's memory.
// The micro-batch (micro_batch.hpp) owns the boundaries; here is when they move.
// Invariant: segments see the same bits, strides and type as without it. A boundary that is no
// dense tensor stays.
// Failure: of a copy: thrown where it is awaited.
// Thread rule: the loop's thread, but for what is marked for the compute lane. On a GPU that is
// called behind the queued work before it, so memory made there is looked at behind an event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/device/accelerator.hpp"
#include "engine/rank/boundary_place.hpp"
#include "engine/rank/compute_queue.hpp"
#include "engine/rank/micro_batch.hpp"
#include "runtime/event.hpp"
#include "runtime/scope.hpp"
#include "runtime/task.hpp"

namespace tandem {

class Boundaries {
 public:
  struct Options {
    Scope* scope = nullptr;  // outlives it, as all that follows
    ComputeQueue* compute = nullptr;
    Accelerator* accelerator = nullptr;    // null: the CPU computes
    std::unique_ptr<BoundaryPlace> place;  // null: none leaves
    std::size_t leaving = 0;
    std::size_t segments = 0;
  };
  explicit Boundaries(Options options);

  // ---- forward ----
  /// Compute lane, at the end of visit b - 1.
  void made(std::size_t b, MicroBatch& batch);
  /// Behind visit b - 1.
  void leave(std::size_t b);
  /// Until no copy of it is under way.
  Task<> copied(std::size_t b);
  /// Until boundary b can be freed, before visit b + 2.
  Task<> left(std::size_t b);
  /// Compute lane, at the beginning of a visit behind left(b).
  void free(std::size_t b, MicroBatch& batch);

  // ---- backward ----
  /// Begins to bring it back, unless that has begun.
  Task<> bring(std::size_t b, std::shared_ptr<MicroBatch> batch);
  Task<> there(std::size_t b, std::shared_ptr<MicroBatch> batch);
  /// Compute lane, at the beginning of visit b.
  void take(std::size_t b, MicroBatch& batch);
  /// Behind visit b.
  void gone(std::size_t b);

  [[nodiscard]] bool leaves(std::size_t b) const noexcept { return b >= 1 && b <= leaving_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return place_ != nullptr ? place_->host_bytes() : 0;
  }

 private:
  struct Slot {
    std::span<std::byte> memory;  // while it is here; the lane's, but while it is copied
    std::size_t bytes = 0;
    bool stays = false;     // this micro-batch's is not dense
    bool brought = false;   // bring() has begun
    std::int64_t held = 0;  // of a simulated device's memory
    Event done{true};       // no copy is under way
    std::exception_ptr failure;
  };
  enum class Way : std::uint8_t { kOut, kBack };

  /// Behind `made`, the work that made the tensor.
  static Task<> move(Boundaries* self, std::size_t b, Way way, std::optional<DeviceEvent> made);
  void begin(Name what, std::size_t b, Way way);
  /// Counts the slot in or out of a simulated device's memory.
  void hold(Slot& slot, bool held);
  [[nodiscard]] bool counts() const noexcept {
    return accelerator_ != nullptr && accelerator_->is_simulated();
  }

  Scope& scope_;
  ComputeQueue& compute_;
  Accelerator* accelerator_;
  std::unique_ptr<BoundaryPlace> place_;
  std::size_t leaving_;
  std::vector<Slot> slots_;  // [boundary]
};

}  // namespace tandem
