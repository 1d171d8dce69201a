#include "engine/rank/boundaries.hpp"

#include <span>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include "runtime/util/check.hpp"

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

void Boundaries::made(std::size_t b, const at::Tensor& boundary) {
  Slot& slot = slots_[b];
  slot.bytes = boundary.nbytes();
  if (!leaves(b)) {
    return;
  }
  slot.stays = !boundary.is_non_overlapping_and_dense();
  if (slot.stays) {
    return;
  }
  slot.tensor = boundary.detach();
  slot.sizes = boundary.sizes().vec();
  slot.strides = boundary.strides().vec();
  slot.type = boundary.options().requires_grad(false);
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

void Boundaries::free(std::size_t b, at::Tensor& input) {
  if (leaves(b) && !slots_[b].stays) {
    slots_[b].tensor.reset();
    input.reset();
  }
}

Task<> Boundaries::bring(std::size_t b) {
  Slot& slot = slots_[b];
  if (!leaves(b) || std::exchange(slot.brought, true)) {
    co_return;
  }
  const auto make_room = [this, b, &slot] {
    if (slot.stays) {
      return;
    }
    std::byte* const room = place_->room(b);
    slot.tensor = room == nullptr ? at::empty_strided(slot.sizes, slot.strides, slot.type)
                                  : at::from_blob(room, slot.sizes, slot.strides, slot.type);
  };
  co_await compute_.run("room for boundary", make_room);
  hold(slot, true);
  begin("boundary comes back", b, Way::kBack);
}

Task<> Boundaries::there(std::size_t b) {
  co_await bring(b);
  co_await copied(b);
}

void Boundaries::take(std::size_t b, at::Tensor& input) {
  if (leaves(b) && !slots_[b].stays) {
    input = std::move(slots_[b].tensor);
    input.requires_grad_(true);
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
      const std::span<std::byte> tensor(static_cast<std::byte*>(slot.tensor.data_ptr()),
                                        slot.bytes);
      co_await (way == Way::kOut ? self->place_->take_away(b, tensor)
                                 : self->place_->bring_back(b, tensor));
    }
  } catch (...) {
    slot.failure = std::current_exception();
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
