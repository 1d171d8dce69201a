#include "actors/slot_pool.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

SlotPool::SlotPool(Options options)
    : Actor(options.name),
      options_(options),
      plan_(options.plan),
      waiting_(options.plan.max_ahead) {
  TANDEM_CHECK(reinterpret_cast<std::uintptr_t>(options.memory.identity()) % 64 == 0 &&
                   options.slot_bytes % 64 == 0,
               "slots are aligned for SIMD and DMA");
}

void SlotPool::handle(AcquireSlot request, ReplyTo<AcquireSlot> reply) {
  plan_.request(request.ticket, request.unit, request.version);
  Waiting& waiting = waiting_[request.ticket % waiting_.size()];
  waiting.reply.emplace(std::move(reply));
  waiting.since = EventLoop::current().now();
  grant_what_can_be();
}

void SlotPool::handle(ReleaseSlot release) {
  plan_.release(release.ticket, release.next_use);
  grant_what_can_be();
}

void SlotPool::grant_what_can_be() {
  while (const auto decision = plan_.decide()) {
    Waiting& waiting = waiting_[decision->ticket % waiting_.size()];
    ++counters_.grants;
    counters_.resident += decision->resident ? 1 : 0;
    counters_.waiting_s +=
        std::chrono::duration<double>(EventLoop::current().now() - waiting.since).count();
    counters_.in_flight_max = std::max(counters_.in_flight_max, plan_.in_flight());
    ReplyTo<AcquireSlot> reply = std::move(*waiting.reply);
    waiting.reply.reset();
    reply.send(
        SlotGrant{options_.memory + decision->slot * options_.slot_bytes, decision->resident});
  }
}

}  // namespace tandem
