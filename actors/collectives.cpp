// actors/collectives.cpp — see collectives.hpp.
#include "actors/collectives.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/event_loop.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace {
double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(EventLoop::current().now() - start).count();
}
}  // namespace

Collectives::Collectives(Options options)
    : Actor("collectives"),
      options_(options),
      gathers_(options.max_ahead),
      reductions_(options.max_ahead) {
  TANDEM_CHECK(options.backend != nullptr, "collectives need a backend");
}

void Collectives::handle(AllGather request, ReplyTo<AllGather> reply) {
  if (failed_ != nullptr) {
    reply.fail(failed_);
    return;
  }
  gathers_.put(request.order, HeldGather{request, std::move(reply)});
  start_gathers();
}

void Collectives::handle(SkipGather skip) {
  if (failed_ == nullptr) {
    gathers_.put(skip.order, skip);
    start_gathers();
  }
}

void Collectives::handle(ReduceScatterAdd request, ReplyTo<ReduceScatterAdd> reply) {
  if (failed_ != nullptr) {
    reply.fail(failed_);
    return;
  }
  if (planted(Bug::kCollectiveOrder)) {
    request.order = reductions_.next_order() + reductions_.held();
  }
  reductions_.put(request.order, HeldReduction{request, std::move(reply)});
  start_reductions();
}

void Collectives::handle(AllReduceNorm request, ReplyTo<AllReduceNorm> reply) {
  if (failed_ != nullptr) {
    reply.fail(failed_);
    return;
  }
  if (planted(Bug::kCollectiveOrder)) {
    request.order = reductions_.next_order() + reductions_.held();
  }
  reductions_.put(request.order, HeldNorm{std::move(request), std::move(reply)});
  start_reductions();
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
  while (failed_ == nullptr && gathers_.ready()) {
    Gather next = gathers_.take();
    auto* held = std::get_if<HeldGather>(&next);
    if (held == nullptr) {
      ++counters_.gathers.skipped;
      continue;
    }
    const TimePoint start = EventLoop::current().now();
    try {
      co_await options_.backend->all_gather(held->request.arguments);
    } catch (...) {
      held->reply.fail(std::current_exception());
      fail_all(std::current_exception());
      throw;
    }
    ++counters_.gathers.operations;
    counters_.gathers.bytes += held->request.arguments.shard_bytes * options_.backend->world();
    counters_.gathers.busy_s += seconds_since(start);
    held->reply.send();
  }
  issuing_gathers_ = false;
}

Task<> Collectives::issue_reductions() {
  while (failed_ == nullptr && reductions_.ready()) {
    Reduction next = reductions_.take();
    const TimePoint start = EventLoop::current().now();
    if (auto* held = std::get_if<HeldReduction>(&next)) {
      co_await issue(*held);
    } else {
      co_await issue(std::get<HeldNorm>(next));
    }
    ++counters_.reductions.operations;
    counters_.reductions.busy_s += seconds_since(start);
  }
  issuing_reductions_ = false;
}

Task<> Collectives::issue(HeldReduction& held) {
  const ReduceArguments& arguments = held.request.arguments;
  GradientNorm norm;
  try {
    norm = co_await options_.backend->reduce_scatter_add(arguments);
  } catch (...) {
    held.reply.fail(std::current_exception());
    fail_all(std::current_exception());
    throw;
  }
  counters_.reductions.bytes +=
      arguments.shard_elements * options_.backend->world() * bytes_of(arguments.block_type);
  held.reply.send(std::move(norm));
}

Task<> Collectives::issue(HeldNorm& held) {
  GradientNorm norm;
  try {
    norm = co_await options_.backend->all_reduce_norm(held.request.local);
  } catch (...) {
    held.reply.fail(std::current_exception());
    fail_all(std::current_exception());
    throw;
  }
  held.reply.send(std::move(norm));
}

void Collectives::fail_all(std::exception_ptr error) {
  failed_ = error;
  gathers_.drop_all([&error](Gather& gather) {
    if (auto* held = std::get_if<HeldGather>(&gather)) {
      held->reply.fail(error);
    }
  });
  reductions_.drop_all([&error](Reduction& reduction) {
    std::visit([&error](auto& held) { held.reply.fail(error); }, reduction);
  });
}

}  // namespace tandem
