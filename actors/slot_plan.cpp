#include "actors/slot_plan.hpp"

#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

SlotPlan::SlotPlan(Options options)
    : options_(options), slots_(options.slots), visits_(options.max_in_flight + options.max_ahead) {
  TANDEM_CHECK(options.max_in_flight >= 1 && options.max_in_flight <= options.slots,
               "every visit in flight needs a slot of its own");
  TANDEM_CHECK(options.max_ahead >= 1, "the next visit must be able to ask");
}

void SlotPlan::request(std::uint64_t ticket, std::uint32_t unit, std::uint64_t version) {
  TANDEM_CHECK_LE(next_, ticket, "a ticket is used once");
  TANDEM_CHECK_LT(ticket - next_, options_.max_ahead, "a visit asks too far ahead of the plan");
  Visit& v = visit(ticket);
  TANDEM_CHECK(v.state == VisitState::kFree, "a ticket is used once");
  v = {VisitState::kRequested, unit, version, 0};
}

void SlotPlan::release(std::uint64_t ticket, std::uint64_t next_use) {
  TANDEM_CHECK(ticket >= floor_ && ticket < next_, "only a slot in use is released");
  TANDEM_CHECK_LT(ticket, next_use, "the next use comes later");
  Visit& v = visit(ticket);
  TANDEM_CHECK(v.state == VisitState::kDecided, "a slot is released once");
  v.state = VisitState::kReleased;
  Slot& slot = slots_[v.slot];
  if (slot.last_ticket == ticket && slot.unit != kNoUnit) {
    slot.next_use = next_use;
  }
  while (floor_ < next_ && visit(floor_).state == VisitState::kReleased) {
    visit(floor_).state = VisitState::kFree;
    ++floor_;
  }
}

std::optional<SlotDecision> SlotPlan::decide() {
  Visit& v = visit(next_);
  if (in_flight() >= options_.max_in_flight || v.state != VisitState::kRequested) {
    return std::nullopt;
  }
  SlotDecision decision{.ticket = next_};
  bool found = false;
  for (std::size_t i = 0; i < slots_.size() && v.unit != kNoUnit; ++i) {
    Slot& slot = slots_[i];
    if (slot.unit != v.unit) {
      continue;
    }
    if (slot.version == v.version || planted(Bug::kResidentTooOld)) {
      decision.slot = i;
      decision.resident = found = true;
    } else {
      slot.unit = kNoUnit;  // an older version is void: no visit asks for it again
      slot.next_use = kNoNextUse;
    }
  }
  if (!found) {
    decision.slot = victim(next_);
  }
  Slot& slot = slots_[decision.slot];
  slot = {v.unit, v.version, next_, kNoNextUse, true};
  v.slot = decision.slot;
  v.state = VisitState::kDecided;
  ++next_;
  return decision;
}

std::size_t SlotPlan::victim(std::uint64_t ticket) const {
  std::size_t best = slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.used && slot.last_ticket + options_.max_in_flight > ticket) {
      continue;
    }
    if (!slot.used) {
      return i;  // never used: nothing is given up
    }
    if (best == slots_.size() || slot.next_use > slots_[best].next_use) {
      best = i;
    }
  }
  TANDEM_CHECK_LT(best, slots_.size(), "fewer visits in flight than slots leave a victim");
  return best;
}

}  // namespace tandem
