#include "actors/collectives/collectives.hpp"

#include <algorithm>
#include <chrono>

#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {
namespace {

/// What the flight recorder keeps of an operation; kNone where nothing travels between ranks.
template <class Request>
flight::Entry entry_of(const Request& request, std::uint32_t world) noexcept {
  flight::Entry entry{.what = Request::kWhat, .bytes = request.bytes(world)};
  if constexpr (requires { request.unit; }) {
    entry.unit = request.unit;
  }
  if constexpr (std::is_same_v<Request, AllGather>) {
    entry.what = request.arguments.is_replicated ? flight::What::kNone : Request::kWhat;
  }
  return entry;
}

/// What the log keeps of it.
CommsKey key_of(const flight::Entry& entry, std::uint32_t world) noexcept {
  return {.group = entry.group,
          .ranks = world,
          .what = entry.what,
          .bytes = entry.what == flight::What::kNorm ? sizeof(NormLimbs) : entry.bytes,
          .unit = entry.unit};
}

void record(flight::Entry entry, flight::Edge edge) noexcept {
  if (entry.what != flight::What::kNone) {
    entry.edge = edge;
    flight::record(entry);
  }
}

}  // namespace

Collectives::Collectives(Options options)
    : Actor("collectives"),
      options_(options),
      gathers_{.name = "gathers", .inbox = OrderedInbox<Gathers::Operation>(options.max_ahead)},
      reductions_{.name = "reductions",
                  .inbox = OrderedInbox<Reductions::Operation>(options.max_ahead)} {
  TANDEM_CHECK(options.backend != nullptr, "collectives need a backend");
  norms_.resize(options.backend->world());
}

void Collectives::handle(SkipGather skip) {
  if (failed_ == nullptr) {
    hold(gathers_, skip.order, Skipped{});
  }
}

template <class AnySequence>
void Collectives::hold(AnySequence& sequence, std::uint64_t order,
                       typename AnySequence::Operation operation) {
  if (std::is_same_v<AnySequence, Reductions> && planted(Bug::kCollectiveOrder)) {
    order = sequence.inbox.next_order() + sequence.inbox.held();
  }
  sequence.inbox.put(order, std::move(operation));
  sequence.counters.held_max = std::max(sequence.counters.held_max, sequence.inbox.held());
  if (!sequence.issuing && sequence.inbox.ready()) {
    sequence.issuing = true;
    scope().spawn(sequence.name, &Collectives::issue_ready<AnySequence>, this, &sequence);
  }
}

template void Collectives::hold(Gathers&, std::uint64_t, Gathers::Operation);
template void Collectives::hold(Reductions&, std::uint64_t, Reductions::Operation);

template <class AnySequence>
Task<> Collectives::issue_ready(AnySequence* sequence) {
  while (failed_ == nullptr && sequence->inbox.ready()) {
    typename AnySequence::Operation next = sequence->inbox.take();
    co_await std::visit(
        [this, sequence](auto& operation) {
          return this->issue(&operation, &sequence->counters, &sequence->shared);
        },
        next);
  }
  sequence->issuing = false;
}

template <class Request>
Task<> Collectives::issue(Held<Request>* held, SequenceCounters* counters, std::uint64_t* shared) {
  const TimePoint start = EventLoop::current().now();
  flight::Entry entry = entry_of(held->request, options_.backend->world());
  entry.group = options_.group;
  entry.number = entry.what == flight::What::kNone ? 0 : (*shared)++;
  record(entry, flight::Edge::kBegins);
  CommsLog* const log =
      entry.what != flight::What::kNone && options_.backend->world() > 1 ? options_.log : nullptr;
  const Duration stood =
      log != nullptr ? log->stood_still(kSequenceOf<Request>, start) : Duration(0);
  const auto count = [&] {
    const TimePoint end = EventLoop::current().now();
    record(entry, flight::Edge::kEnds);
    ++counters->operations;
    counters->bytes += held->request.bytes(options_.backend->world());
    counters->busy_s += std::chrono::duration<double>(end - start).count();
    if (log != nullptr) {
      log->add(key_of(entry, options_.backend->world()), end - start,
               log->stood_still(kSequenceOf<Request>, end) - stood);
    }
  };
  try {
    if constexpr (std::is_void_v<typename Request::Reply>) {
      co_await carry_out(held->request);
      count();
      held->reply.send();
    } else {
      typename Request::Reply result = co_await carry_out(held->request);
      count();
      held->reply.send(std::move(result));
    }
  } catch (...) {
    record(entry, flight::Edge::kFails);
    held->reply.fail(std::current_exception());
    fail_all(std::current_exception());
    throw;
  }
}

Task<> Collectives::issue(Skipped*, SequenceCounters* counters, std::uint64_t*) {
  ++counters->skipped;
  co_return;
}

Task<GradientNorm> Collectives::carry_out(AllReduceNorm request) {
  own_norm_ = NormLimbs::of(request.local);
  co_await options_.backend->exchange({.mine = reinterpret_cast<const std::byte*>(&own_norm_),
                                       .all = reinterpret_cast<std::byte*>(norms_.data()),
                                       .bytes = sizeof(NormLimbs)});
  co_return merge_norms(norms_);
}

void Collectives::fail_all(std::exception_ptr error) {
  failed_ = error;
  const auto fail = [&error](auto& operation) {
    if constexpr (requires { operation.reply; }) {
      operation.reply.fail(error);
    }
  };
  gathers_.inbox.drop_all([&fail](Gathers::Operation& held) { std::visit(fail, held); });
  reductions_.inbox.drop_all([&fail](Reductions::Operation& held) { std::visit(fail, held); });
}

}  // namespace tandem
