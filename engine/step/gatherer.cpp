#include "engine/step/gatherer.hpp"

#include <exception>

#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

Gatherer::Gatherer(Shards shards, std::size_t pools, Scope& scope, bool run_ahead)
    : shards_(shards), scope_(scope), run_ahead_(run_ahead), next_ticket_(pools) {}

void Gatherer::begin(const StepPlan& plan, std::uint64_t version) {
  TANDEM_CHECK_EQ(plan.tickets.size(), next_ticket_.size(), "a plan has tickets of each pool");
  pass_ = std::make_shared<Pass>();
  pass_->plan = &plan;
  pass_->version = version - (planted(Bug::kOldWeightsGathered) && version > 0 ? 1 : 0);
  pass_->first_ticket = next_ticket_;
  pass_->first_gather = next_gather_;
  for (std::size_t communicator = 0; communicator < next_gather_.size(); ++communicator) {
    next_gather_[communicator] += planted(Bug::kGatherOrderKept) ? 0 : plan.gathers[communicator];
  }
  for (std::size_t pool = 0; pool < next_ticket_.size(); ++pool) {
    next_ticket_[pool] += plan.tickets[pool];
  }
  pass_->slots.resize(plan.visits.size());
  pass_->there_since.resize(plan.visits.size());
  for (std::size_t v = 0; v < plan.visits.size(); ++v) {
    pass_->complete.push_back(std::make_unique<Event>());
  }
  if (run_ahead_) {
    scope_.spawn("gather ahead", &Gatherer::run_ahead, this, pass_);
  }
}

Task<> Gatherer::run_ahead(Gatherer* self, std::shared_ptr<Pass> pass) {
  // The failure belongs to the visit that needs the unit, so it is handed over there instead of
  // ending the scope.
  try {
    for (std::size_t v = 0; v < pass->plan->visits.size(); ++v) {
      co_await self->acquire_visit(pass, v);
      pass->complete[v]->set();
    }
  } catch (...) {
    pass->failure = std::current_exception();
    for (auto& event : pass->complete) {
      if (!planted(Bug::kGatherFailureUnsaid)) {
        event->set();
      }
    }
  }
}

Task<> Gatherer::acquire_visit(std::shared_ptr<Pass> pass, std::size_t v) {
  const Visit& visit = pass->plan->visits[v];
  pass->slots[v].reserve(visit.uses.size());
  for (const UnitUse& use : visit.uses) {
    const std::uint64_t order = pass->first_gather[use.communicator] + use.order;
    const std::uint64_t ticket =
        use.pool == kNoPool ? order : pass->first_ticket[use.pool] + use.ticket;
    const Placed<std::byte> block =
        co_await shards_[use.unit]->address().ask(AcquireUnit{pass->version, ticket, order});
    pass->slots[v].push_back(block.memory());
  }
  pass->there_since[v] = EventLoop::current().now();
}

Task<std::vector<std::byte*>> Gatherer::acquired(std::size_t v) {
  const std::shared_ptr<Pass> pass = pass_;
  TANDEM_CHECK(pass != nullptr && v < pass->slots.size(), "a visit is of the pass under way");
  if (run_ahead_) {
    co_await *pass->complete[v];
    if (pass->failure) {
      std::rethrow_exception(pass->failure);
    }
  } else {
    co_await acquire_visit(pass, v);
  }
  co_return pass->slots[v];
}

void Gatherer::release(std::size_t v) {
  TANDEM_CHECK_EQ(pass_->slots[v].size(), pass_->plan->visits[v].uses.size(),
                  "a visit releases the units that it has acquired");
  for (const UnitUse& use : pass_->plan->visits[v].uses) {
    const std::uint64_t next_use =
        use.pool == kNoPool ? kNoNextUse : pass_->first_ticket[use.pool] + use.next_use;
    const SendResult sent = shards_[use.unit]->address().try_send(ReleaseUnit{next_use});
    TANDEM_CHECK(sent != SendResult::kFull, "a shard takes as many releases as it granted leases");
  }
}

}  // namespace tandem
