// engine/rank/boundaries.hpp — offloads boundaries between segments: copies them away in forward
// and back in backward (activation offload).
//
// Boundary b is the input of segment b, which activation checkpointing keeps; visit b is segment
// b's visit. Boundaries 1 to `leaving` are offloaded (boundary_share.hpp).
// In forward:
//   after visit b - 1    leave() starts the copy away; visits b and b + 1 run
//   before visit b + 2   left() awaits the copy; the visit begins with free()
// In backward:
//   before visit b + 1   bring() starts the copy back
//   before visit b       there() awaits it; the visit begins with take(); gone() follows the visit
// So a copy away has two visits to finish in, and three offloaded boundaries are in the memory
// where segments compute. A copy back has one visit, which is longer, and two boundaries are there.
// With a simulated device, this class also counts the bytes of all boundaries in the device's
// memory.
// The micro-batch (micro_batch.hpp) owns the boundaries; this class moves them.
// Invariant: segments see the same bits, strides and type as without offload. A boundary that is
// not a dense tensor stays.
// Failure: an error of a copy is thrown where the copy is awaited.
// Thread rule: the loop's thread, except functions marked for the compute lane. On a GPU those are
// called in the order of the queued work, possibly only when the stream reaches them, so what they
// write to a slot is read after an event behind that work.
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
    Scope* scope = nullptr;  // outlives this object, as do the next two
    ComputeQueue* compute = nullptr;
    Accelerator* accelerator = nullptr;    // null: the CPU computes
    std::unique_ptr<BoundaryPlace> place;  // null: none is offloaded
    std::size_t leaving = 0;
    std::size_t segments = 0;
  };
  explicit Boundaries(Options options);

  // ---- forward ----
  /// Compute lane, at the end of visit b - 1: notes the size of boundary b and, if it is offloaded,
  /// its memory.
  void made(std::size_t b, MicroBatch& batch);
  /// After visit b - 1: starts the copy away if boundary b is offloaded.
  void leave(std::size_t b);
  /// Waits until no copy of boundary b is under way.
  Task<> copied(std::size_t b);
  /// Waits, before visit b + 2, until boundary b can be freed.
  Task<> left(std::size_t b);
  /// Compute lane, at the beginning of a visit after left(b): frees the boundary if it was copied
  /// away.
  void free(std::size_t b, MicroBatch& batch);

  // ---- backward ----
  /// Makes memory for boundary b and starts the copy back, unless that has begun.
  Task<> bring(std::size_t b, std::shared_ptr<MicroBatch> batch);
  /// Brings boundary b back and waits until it is there.
  Task<> there(std::size_t b, std::shared_ptr<MicroBatch> batch);
  /// Compute lane, at the beginning of visit b: hands the boundary to the segment's backward.
  void take(std::size_t b, MicroBatch& batch);
  /// After visit b, which has used the boundary.
  void gone(std::size_t b);

  [[nodiscard]] bool leaves(std::size_t b) const noexcept { return b >= 1 && b <= leaving_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return place_ != nullptr ? place_->host_bytes() : 0;
  }

 private:
  struct Slot {
    std::span<std::byte> memory;  // where segments compute; the lane's, except during a copy
    std::size_t bytes = 0;
    bool stays = false;     // it is not dense in this micro-batch
    bool brought = false;   // bring() has begun
    std::int64_t held = 0;  // bytes counted in a simulated device's memory
    Event done{true};       // no copy is under way
    std::exception_ptr failure;
  };
  enum class Way : std::uint8_t { kOut, kBack };

  /// Copies boundary b after `made`, the event of the work that made the tensor (absent: it is
  /// made).
  static Task<> move(Boundaries* self, std::size_t b, Way way, std::optional<DeviceEvent> made);
  void begin(Name what, std::size_t b, Way way);
  /// Adds the slot's bytes to those in a simulated device's memory, or takes them off.
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
