#include "engine/rank/boundaries.hpp"

#include <span>
#include <utility>

#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

Boundaries::Boundaries(Options options)
    : scope_(*options.scope),
      compute_(*options.compute),
      accelerator_(options.accelerator),
      place_(std::move(options.place)),
      leaving_(options.leaving),
      slots_(options.segments) {
  TANDEM_CHECK(leaving_ == 0 || place_ != nullptr, "what leaves has a place to go to");
}

void Boundaries::made(std::size_t b, MicroBatch& batch) {
  TANDEM_CHECK(b > 0 && b < slots_.size(), "a boundary lies between two segments");
  Slot& slot = slots_[b];
  slot.bytes = batch.boundary_bytes(b);
  if (leaves(b)) {
    slot.memory = batch.keep_boundary(b);
    slot.stays = slot.memory.empty();
  }
}

void Boundaries::leave(std::size_t b) {
  hold(slots_[b], true);
  if (leaves(b)) {
    begin("boundary leaves", b, Way::kOut);
  }
}

Task<> Boundaries::left(std::size_t b) {
  co_await copied(b);
  if (leaves(b) && !slots_[b].stays) {
    hold(slots_[b], false);
  }
}

void Boundaries::free(std::size_t b, MicroBatch& batch) {
  if (leaves(b) && !slots_[b].stays) {
    slots_[b].memory = {};
    batch.free_boundary(b);
  }
}

Task<> Boundaries::bring(std::size_t b, std::shared_ptr<MicroBatch> batch) {
  Slot& slot = slots_[b];
  if (!leaves(b) || std::exchange(slot.brought, true)) {
    co_return;
  }
  const auto make_room = [this, b, &slot, batch] {
    if (!slot.stays) {
      slot.memory = batch->make_boundary(b, place_->room(b));
    }
  };
  co_await compute_.run("room for boundary", make_room);
  hold(slot, true);
  begin("boundary comes back", b, Way::kBack);
}

Task<> Boundaries::there(std::size_t b, std::shared_ptr<MicroBatch> batch) {
  co_await bring(b, std::move(batch));
  co_await copied(b);
}

void Boundaries::take(std::size_t b, MicroBatch& batch) {
  if (leaves(b) && !slots_[b].stays) {
    batch.take_boundary(b);
  }
}

void Boundaries::gone(std::size_t b) {
  slots_[b].brought = false;
  hold(slots_[b], false);
}

// ---- copies ----

void Boundaries::begin(Name what, std::size_t b, Way way) {
  std::optional<DeviceEvent> made;
  if (compute_.on_gpu()) {
    made = accelerator_->queued();
  }
  slots_[b].done.reset();
  scope_.spawn(what, &Boundaries::move, this, b, way, std::move(made));
}

Task<> Boundaries::move(Boundaries* self, std::size_t b, Way way, std::optional<DeviceEvent> made) {
  Slot& slot = self->slots_[b];
  // A failure belongs to the visit that awaits the boundary.
  try {
    if (made) {
      co_await made->wait();
    }
    if (!slot.stays) {
      Task<> moved = way == Way::kOut ? self->place_->take_away(b, slot.memory)
                                      : self->place_->bring_back(b, slot.memory);
      co_await std::move(moved);
    }
  } catch (...) {
    slot.failure = planted(Bug::kBoundaryFailureLost) ? nullptr : std::current_exception();
  }
  slot.done.set();
}

Task<> Boundaries::copied(std::size_t b) {
  Slot& slot = slots_[b];
  if (!slot.done.is_set()) {
    co_await slot.done;
  }
  if (slot.failure) {
    std::rethrow_exception(std::exchange(slot.failure, nullptr));
  }
}

void Boundaries::hold(Slot& slot, bool held) {
  if (!counts()) {
    return;
  }
  const std::int64_t bytes = held ? static_cast<std::int64_t>(slot.bytes) : 0;
  accelerator_->hold(bytes - std::exchange(slot.held, bytes));
}

}  // namespace tandem
