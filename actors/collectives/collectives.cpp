#include "actors/collectives/collectives.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "actors/collectives/awaited.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/io/net.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {
namespace {

/// The flight recorder's entry for an operation; kNone where nothing travels between ranks.
template <class Request>
flight::Entry entry_of(const Request& request, std::uint32_t world) noexcept {
  flight::Entry entry{.what = Request::kWhat, .bytes = request.bytes(world)};
  if constexpr (requires { request.unit; }) {
    entry.unit = request.unit;
  }
  if constexpr (std::is_same_v<Request, AllGather>) {
    entry.what = request.arguments.is_replicated ? flight::Kind::kNone : Request::kWhat;
  }
  return entry;
}

/// The log's key for it.
CommsKey key_of(const flight::Entry& entry, std::uint32_t world) noexcept {
  return {.group = entry.group,
          .ranks = world,
          .what = entry.what,
          .bytes = entry.what == flight::Kind::kNorm ? sizeof(NormLimbs) : entry.bytes,
          .unit = entry.unit};
}

bool is_reduction(flight::Kind what) noexcept {
  return what != flight::Kind::kAllGather && what != flight::Kind::kAllToAll;
}

void record(flight::Entry entry, flight::Edge edge) noexcept {
  if (entry.what != flight::Kind::kNone) {
    entry.edge = edge;
    flight::record(entry);
  }
}

}  // namespace

Collectives::Collectives(Options options)
    : Actor("collectives"),
      options_(std::move(options)),
      gathers_{.name = options_.group == 0 ? Name("gathers") : Name("expert gathers"),
               .inbox = OrderedInbox<Gathers::Operation>(options_.max_ahead)},
      reductions_{.name = options_.group == 0 ? Name("reductions") : Name("expert reductions"),
                  .inbox = OrderedInbox<Reductions::Operation>(options_.max_ahead)} {
  TANDEM_CHECK(options_.backend != nullptr, "collectives need a backend");
  norms_.resize(options_.backend->world());
  for (const flight::Kind what :
       {flight::Kind::kAllGather, flight::Kind::kReduceScatter, flight::Kind::kAllReduce}) {
    for (std::uint32_t unit = 0; unit < options_.units.size(); ++unit) {
      names_.emplace(std::pair(what, unit),
                     fmt::format("{} {}", flight::name_of(what), options_.units[unit]));
    }
    names_.emplace(std::pair(what, flight::kNoUnit), flight::name_of(what));
  }
  for (const flight::Kind what :
       {flight::Kind::kAllToAll, flight::Kind::kNorm, flight::Kind::kExchange}) {
    names_.emplace(std::pair(what, flight::kNoUnit), flight::name_of(what));
  }
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
        [this, sequence](auto& operation) { return this->issue(&operation, sequence); }, next);
  }
  sequence->issuing = false;
}

template <class Request, class AnySequence>
Task<> Collectives::issue(Held<Request>* held, AnySequence* sequence) {
  const TimePoint start = EventLoop::current().now();
  const std::int64_t began_ns = trace::enabled() ? trace::now_ns() : 0;
  SequenceCounters* const counters = &sequence->counters;
  flight::Entry entry = entry_of(held->request, options_.backend->world());
  entry.group = options_.group;
  entry.number = entry.what == flight::Kind::kNone ? 0 : sequence->shared++;
  record(entry, flight::Edge::kBegins);
  CommsLog* const log =
      entry.what != flight::Kind::kNone && options_.backend->world() > 1 ? options_.log : nullptr;
  const Duration stood =
      log != nullptr ? log->stood_still(kSequenceOf<Request>, start) : Duration(0);
  Name name = "collective";
  if (began_ns != 0) {
    name = name_of(Request::kWhat, entry.unit);
    if constexpr (requires { held->request.arguments.name; }) {
      held->request.arguments.name = name;
    }
  }
  const auto count = [&] {
    const TimePoint end = EventLoop::current().now();
    record(entry, flight::Edge::kEnds);
    trace_operation(entry, sequence->name, name, began_ns);
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

/// Records the rank at fault, for readers of the flight recorder.
void Collectives::record_blame(const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& lost) {
    if (lost.rank() != kUnknownRank) {
      flight::blame(lost.rank());
    }
  } catch (...) {  // it is no rank's fault
  }
}

template <class AnySequence>
Task<> Collectives::issue(Skipped*, AnySequence* sequence) {
  ++sequence->counters.skipped;
  co_return;
}

Name Collectives::name_of(flight::Kind what, std::uint32_t unit) const {
  const auto found = names_.find(std::pair(what, unit));
  return found != names_.end() ? found->second : names_.at(std::pair(what, flight::kNoUnit));
}

/// A span, and where something travels an arrow from its begin here to its end at the next rank.
void Collectives::trace_operation(const flight::Entry& entry, Name track, Name name,
                                  std::int64_t began_ns) const {
  if (began_ns == 0 || !trace::enabled()) {
    return;
  }
  const std::int64_t end_ns = std::max(trace::now_ns(), began_ns + 1);
  trace::track_span(track, name, began_ns, end_ns);
  const std::uint32_t world = options_.backend->world();
  if (entry.what == flight::Kind::kNone || world == 1) {
    return;
  }
  // A number below 2^53, alike at both ends: operation, sequence, group, and the rank that it
  // leaves.
  const auto id_from = [&](std::uint32_t rank) {
    const std::uint64_t sequence = is_reduction(entry.what) ? 1 : 0;
    return ((entry.number << 1 | sequence) << 8 | entry.group) << 10 | rank;
  };
  const std::uint32_t rank = options_.backend->rank();
  trace::rank_arrow(track, /*leaves=*/true, began_ns, id_from(rank));
  trace::rank_arrow(track, /*leaves=*/false, end_ns - 1, id_from((rank + world - 1) % world));
}

Task<GradientNorm> Collectives::carry_out(AllReduceNorm request) {
  own_norm_ = NormLimbs::of(request.local);
  co_await options_.backend->exchange({.mine = reinterpret_cast<const std::byte*>(&own_norm_),
                                       .all = reinterpret_cast<std::byte*>(norms_.data()),
                                       .bytes = sizeof(NormLimbs)});
  co_return merge_norms(norms_);
}

Task<std::vector<std::byte>> Collectives::carry_out(Exchange request) {
  std::vector<std::byte> all(request.mine.size() * options_.backend->world());
  co_await options_.backend->exchange(
      {.mine = request.mine.data(), .all = all.data(), .bytes = request.mine.size()});
  co_return all;
}

void Collectives::fail_all(std::exception_ptr error) {
  if (failed_ == nullptr) {
    record_blame(error);
  }
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
