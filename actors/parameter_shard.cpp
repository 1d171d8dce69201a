#include "actors/parameter_shard.hpp"

#include <chrono>
#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {
double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(EventLoop::current().now() - start).count();
}
}  // namespace

ParameterShard::ParameterShard(Options options)
    : Actor(options.name), options_(std::move(options)), version_(options_.version) {
  TANDEM_CHECK(options_.shard != nullptr || options_.layout.shard_elements == 0,
               "a shard's bytes are handed in");
  if (block_is_shard()) {
    block_version_ = version_;  // UpdateStarts and ParamReady keep it true
  }
}

bool ParameterShard::shard_lies_in_block() const noexcept {
  const Placed<const std::byte> end =
      options_.block + options_.layout.padded_elements * bytes_of(options_.type);
  return options_.block != nullptr && options_.shard.place() == options_.block.place() &&
         options_.shard.identity() >= options_.block.identity() &&
         options_.shard.identity() < end.identity();
}

bool ParameterShard::block_is_shard() const noexcept {
  return options_.layout.world == 1 && shard_lies_in_block();
}

void ParameterShard::handle(AcquireUnit request, ReplyTo<AcquireUnit> reply) {
  TANDEM_CHECK_LE(version_, request.version, "an older version than the shard's is gone");
  TANDEM_CHECK_LE(next_ticket_, request.ticket, "the visits of a unit come in plan order");
  TANDEM_CHECK(!updating_ || request.version > version_, "no visit of a version under update");
  next_ticket_ = request.ticket + 1;
  pending_.push({request, std::move(reply), EventLoop::current().now()});
  serve_if_possible();
}

Task<> ParameterShard::handle(ReleaseUnit release) {
  TANDEM_CHECK(!held_.empty(), "only a held visit is released");
  const std::uint64_t ticket = held_.pop();
  if (options_.block == nullptr) {
    co_await options_.slots.send(ReleaseSlot{ticket, release.next_use}, scope().stop_token());
  }
}

void ParameterShard::handle(UpdateStarts update) {
  TANDEM_CHECK_LT(version_, update.version, "versions go up");
  TANDEM_CHECK(!updating_ && !gathering_, "a shard is not overwritten while a gather reads it");
  TANDEM_CHECK(!shard_lies_in_block() || held_.empty(), "nor while a visit holds its block");
  updating_ = true;
}

void ParameterShard::handle(ParamReady ready) {
  TANDEM_CHECK_LT(version_, ready.version, "versions go up");
  TANDEM_CHECK(!gathering_, "a shard is not overwritten while a gather reads it");
  updating_ = false;
  version_ = ready.version;
  if (block_is_shard()) {
    block_version_ = version_;
  }
  version_since_ = EventLoop::current().now();
  serve_if_possible();
}

void ParameterShard::handle(UpdateRolledBack update) {
  TANDEM_CHECK(updating_ && update.version > version_, "only an update under way is undone");
  updating_ = false;
}

void ParameterShard::serve_if_possible() {
  if (serving_ || pending_.empty()) {
    return;
  }
  TANDEM_CHECK_LE(version_, pending_.front().request.version, "a visit missed its version");
  if (pending_.front().request.version == version_) {
    serving_ = true;
    scope().spawn(options_.name, &ParameterShard::serve, this);
  }
}

/// Serves visits as long as the next one's version is there; ends otherwise, and is started again
/// by ParamReady.
Task<> ParameterShard::serve() {
  while (!pending_.empty() && pending_.front().request.version == version_) {
    Pending visit = pending_.pop();
    counters_.version_waiting_s += seconds_since(visit.since);
    std::exception_ptr error;
    try {
      const Placed<std::byte> block = co_await acquire(visit.request);
      held_.push(visit.request.ticket);
      visit.reply->send(block);
    } catch (...) {
      error = std::current_exception();
    }
    if (error != nullptr) {
      visit.reply->fail(error);
    }
  }
  serving_ = false;
}

Task<Placed<std::byte>> ParameterShard::acquire(AcquireUnit request) {
  const std::uint64_t order =
      request.gather_order == kSameAsTicket ? request.ticket : request.gather_order;
  SlotGrant grant{.data = options_.block, .resident = block_version_ == request.version};
  if (options_.block == nullptr) {
    grant = co_await options_.slots.ask(AcquireSlot{request.ticket, options_.unit, request.version},
                                        scope().stop_token());
  }
  ++counters_.acquired;
  if (grant.resident) {
    ++counters_.resident;
    co_await options_.collectives.send(SkipGather{order}, scope().stop_token());
  } else {
    TANDEM_CHECK(!updating_ && version_ == request.version, "a gather reads the wanted version");
    TANDEM_CHECK(options_.block == nullptr || held_.empty(),
                 "a block is not overwritten while a visit holds it");
    co_await gather(order, grant.data);
    block_version_ = request.version;
  }
  co_return grant.data;
}

Task<> ParameterShard::gather(std::uint64_t order, Placed<std::byte> into) {
  gathering_ = true;
  const TimePoint start = EventLoop::current().now();
  const std::size_t shard_bytes = options_.layout.shard_elements * bytes_of(options_.type);
  std::exception_ptr error;
  try {
    co_await options_.collectives.ask(AllGather{order,
                                                {.shard = options_.shard,
                                                 .block = into,
                                                 .shard_bytes = shard_bytes,
                                                 .is_replicated = options_.layout.world == 1},
                                                options_.unit},
                                      scope().stop_token());
  } catch (...) {
    error = std::current_exception();
  }
  gathering_ = false;
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  counters_.gather_waiting_s += seconds_since(start);
}

}  // namespace tandem
