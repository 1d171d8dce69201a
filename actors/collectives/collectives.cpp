#include "actors/collectives/collectives.hpp"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace {
double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(EventLoop::current().now() - start).count();
}

// Of the whole block that an operation is about.
std::uint64_t block_bytes(const GatherArguments& a, std::uint32_t world) noexcept {
  return a.is_replicated ? a.shard_bytes : a.shard_bytes * world;
}
std::uint64_t block_bytes(const BroadcastArguments& a, std::uint32_t) noexcept { return a.bytes; }
std::uint64_t block_bytes(const AllToAllArguments& a, std::uint32_t world) noexcept {
  return a.bytes * world;
}
std::uint64_t block_bytes(const ExchangeArguments& a, std::uint32_t world) noexcept {
  return a.bytes * world;
}
std::uint64_t reduced_bytes(const ReduceArguments& a) noexcept {
  return a.shard_elements * bytes_of(a.block_type);
}

template <class Request>
std::uint64_t bytes_of_blocks(const Request& request, std::uint32_t world) noexcept {
  if constexpr (std::is_same_v<Request, ReduceScatterAdd>) {
    return reduced_bytes(request.arguments) * world;
  } else if constexpr (std::is_same_v<Request, AllReduceAdd>) {
    return reduced_bytes(request.arguments);
  } else if constexpr (std::is_same_v<Request, AllReduceNorm>) {
    return 0;
  } else {
    return block_bytes(request.arguments, world);
  }
}
}  // namespace

Collectives::Collectives(Options options)
    : Actor("collectives"),
      options_(options),
      gathers_(options.max_ahead),
      reductions_(options.max_ahead) {
  TANDEM_CHECK(options.backend != nullptr, "collectives need a backend");
  norms_.resize(options.backend->world());
}

template <class Request>
void Collectives::take_gather(Request request, ReplyTo<Request> reply) {
  if (failed_ != nullptr) {
    reply.fail(failed_);
    return;
  }
  const std::uint64_t order = request.order;
  gathers_.put(order, Held<Request>{std::move(request), std::move(reply)});
  start_gathers();
}

template <class Request>
void Collectives::take_reduction(Request request, ReplyTo<Request> reply) {
  if (failed_ != nullptr) {
    reply.fail(failed_);
    return;
  }
  std::uint64_t order = request.order;
  if (planted(Bug::kCollectiveOrder)) {
    order = reductions_.next_order() + reductions_.held();
  }
  reductions_.put(order, Held<Request>{std::move(request), std::move(reply)});
  start_reductions();
}

void Collectives::handle(SkipGather skip) {
  if (failed_ == nullptr) {
    gathers_.put(skip.order, skip);
    start_gathers();
  }
}

void Collectives::handle(AllGather request, ReplyTo<AllGather> reply) {
  take_gather(request, std::move(reply));
}
void Collectives::handle(Broadcast request, ReplyTo<Broadcast> reply) {
  take_gather(request, std::move(reply));
}
void Collectives::handle(AllToAll request, ReplyTo<AllToAll> reply) {
  take_gather(request, std::move(reply));
}
void Collectives::handle(ReduceScatterAdd request, ReplyTo<ReduceScatterAdd> reply) {
  take_reduction(request, std::move(reply));
}
void Collectives::handle(AllReduceNorm request, ReplyTo<AllReduceNorm> reply) {
  take_reduction(std::move(request), std::move(reply));
}
void Collectives::handle(AllReduceAdd request, ReplyTo<AllReduceAdd> reply) {
  take_reduction(request, std::move(reply));
}
void Collectives::handle(Exchange request, ReplyTo<Exchange> reply) {
  take_reduction(request, std::move(reply));
}

void Collectives::start_gathers() {
  counters_.gathers.held_max = std::max(counters_.gathers.held_max, gathers_.held());
  if (!issuing_gathers_ && gathers_.ready()) {
    issuing_gathers_ = true;
    scope().spawn("gathers", &Collectives::issue_gathers, this);
  }
}

void Collectives::start_reductions() {
  counters_.reductions.held_max = std::max(counters_.reductions.held_max, reductions_.held());
  if (!issuing_reductions_ && reductions_.ready()) {
    issuing_reductions_ = true;
    scope().spawn("reductions", &Collectives::issue_reductions, this);
  }
}

Task<> Collectives::issue_gathers() {
  SequenceCounters* counters = &counters_.gathers;
  while (failed_ == nullptr && gathers_.ready()) {
    Gather next = gathers_.take();
    if (auto* gather = std::get_if<Held<AllGather>>(&next)) {
      co_await issue(gather, counters);
    } else if (auto* broadcast = std::get_if<Held<Broadcast>>(&next)) {
      co_await issue(broadcast, counters);
    } else if (auto* all_to_all = std::get_if<Held<AllToAll>>(&next)) {
      co_await issue(all_to_all, counters);
    } else {
      ++counters->skipped;
    }
  }
  issuing_gathers_ = false;
}

Task<> Collectives::issue_reductions() {
  SequenceCounters* counters = &counters_.reductions;
  while (failed_ == nullptr && reductions_.ready()) {
    Reduction next = reductions_.take();
    if (auto* reduction = std::get_if<Held<ReduceScatterAdd>>(&next)) {
      co_await issue(reduction, counters);
    } else if (auto* norm = std::get_if<Held<AllReduceNorm>>(&next)) {
      co_await issue(norm, counters);
    } else if (auto* all_reduce = std::get_if<Held<AllReduceAdd>>(&next)) {
      co_await issue(all_reduce, counters);
    } else {
      co_await issue(&std::get<Held<Exchange>>(next), counters);
    }
  }
  issuing_reductions_ = false;
}

template <class Request>
Task<> Collectives::issue(Held<Request>* held, SequenceCounters* counters) {
  const TimePoint start = EventLoop::current().now();
  try {
    if constexpr (std::is_void_v<typename Request::Reply>) {
      co_await carry_out(held->request);
      count(counters, held->request, start);
      held->reply.send();
    } else {
      typename Request::Reply result = co_await carry_out(held->request);
      count(counters, held->request, start);
      held->reply.send(std::move(result));
    }
  } catch (...) {
    held->reply.fail(std::current_exception());
    fail_all(std::current_exception());
    throw;
  }
}

template <class Request>
void Collectives::count(SequenceCounters* counters, const Request& request, TimePoint start) const {
  ++counters->operations;
  counters->bytes += bytes_of_blocks(request, options_.backend->world());
  counters->busy_s += seconds_since(start);
}

Task<> Collectives::carry_out(const AllGather& request) {
  return options_.backend->all_gather(request.arguments);
}
Task<> Collectives::carry_out(const Broadcast& request) {
  return options_.backend->broadcast(request.arguments);
}
Task<> Collectives::carry_out(const AllToAll& request) {
  return options_.backend->all_to_all(request.arguments);
}
Task<> Collectives::carry_out(const Exchange& request) {
  return options_.backend->exchange(request.arguments);
}
Task<GradientNorm> Collectives::carry_out(const ReduceScatterAdd& request) {
  return options_.backend->reduce_scatter_add(request.arguments);
}
Task<GradientNorm> Collectives::carry_out(const AllReduceAdd& request) {
  return options_.backend->all_reduce_add(request.arguments);
}
Task<GradientNorm> Collectives::carry_out(const AllReduceNorm& request) {
  return all_reduce_norm(request.local);
}

Task<GradientNorm> Collectives::all_reduce_norm(GradientNorm local) {
  own_norm_ = NormLimbs::of(local);
  co_await options_.backend->exchange({.mine = reinterpret_cast<const std::byte*>(&own_norm_),
                                       .all = reinterpret_cast<std::byte*>(norms_.data()),
                                       .bytes = sizeof(NormLimbs)});
  co_return merge_norms(norms_);
}

void Collectives::fail_all(std::exception_ptr error) {
  failed_ = error;
  const auto fail = [&error](auto& held) {
    if constexpr (requires { held.reply; }) {
      held.reply.fail(error);
    }
  };
  gathers_.drop_all([&fail](Gather& gather) { std::visit(fail, gather); });
  reductions_.drop_all([&fail](Reduction& reduction) { std::visit(fail, reduction); });
}

}  // namespace tandem
