// actors/collectives/nccl/nccl_launch.cpp — NcclBackend's turns, NCCL's answers to its calls, and
// its failures.
#include <chrono>
#include <exception>

#include <fmt/format.h>

#include "actors/collectives/nccl/nccl_backend.hpp"
#include "actors/collectives/shm/shm_sync.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

NcclBackend::Busy::Busy(NcclBackend& backend, std::size_t comm, ShmHeader operation)
    : backend_(backend), comm_(comm) {
  CommStream& at = backend.comms_[comm];
  TANDEM_CHECK(!at.busy, "one operation of a sequence is under way at a time");
  TANDEM_CHECK(comm == kGathers || backend.options_.reduces, "a group that only exchanges");
  at.busy = true;
  at.operation = operation;
  at.since = backend.loop_.now();
  const Duration limit = operation.kind == ShmKind::kNone ? backend.options_.connect_timeout
                                                          : backend.options_.timeout;
  backend.watchdog_.operation_begins(comm, backend.loop_.now() + limit);
  backend.watch();
}

NcclBackend::Busy::~Busy() {
  backend_.watchdog_.operation_ends(comm_);
  backend_.comms_[comm_].busy = false;
}

// ---- turns ----
Task<> NcclBackend::take_turn(CommStream* comm) {
  comm->came = ++arrivals_;
  notice_failures();
  if (!broken_ && !grant_turn(*comm)) {
    co_await wait_for(comm, Wait::kTurn);
  }
  co_await throw_if_broken(comm);
}

bool NcclBackend::grant_turn(CommStream& comm) {
  if (launching_) {
    return false;
  }
  const NcclLaunch own{static_cast<std::uint32_t>(index_of(comm)), comm.operation};
  if (rank() == 0) {
    for (const CommStream& other : comms_) {
      if (other.wait == Wait::kTurn && other.came < comm.came) {
        return false;
      }
    }
    if (options_.peers != nullptr) {
      if (next_turn_ >= NcclPeers::kMostAhead &&
          options_.peers->behind(next_turn_ - NcclPeers::kMostAhead + 1)) {
        return false;
      }
      options_.peers->decide(next_turn_, own);
    }
  } else {
    const std::optional<NcclLaunch> decided = options_.peers->decided(next_turn_);
    if (!decided || decided->comm != own.comm) {
      return false;
    }
    if (!decided->operation.agrees_with(own.operation)) {
      fail(0, fmt::format("rank 0 is at {} of {} bytes where rank {} is at {} of {} bytes",
                          describe(decided->operation), decided->operation.bytes, rank(),
                          describe(own.operation), own.operation.bytes));
      return false;
    }
  }
  launching_ = true;
  if (options_.peers != nullptr) {
    options_.peers->has_begun(next_turn_ + 1);
  }
  return true;
}

void NcclBackend::end_turn(CommStream& comm) noexcept {
  ++comm.operation.phase;  // the operation's next launch is another one
  launching_ = false;
  ++next_turn_;
  (void)end_waits();
}

// ---- NCCL's answers ---- A communicator may pass a launch to a thread of its own, which connects
// ranks first.
Task<> NcclBackend::settle(CommStream* comm) {
  notice_failures();
  if (comm->result == NcclResult::kInProgress && !broken_) {
    co_await wait_for(comm, Wait::kNccl);
  }
  co_await throw_if_broken(comm);
  if (comm->result != NcclResult::kSuccess) {
    fail(kUnknownRank, fmt::format("NCCL says \"{}\"", api_.text_of(comm->result)));
    co_await throw_if_broken(comm);
  }
}

// The event comes after NCCL's kernels in the stream. An abort ends kernels as if they were done,
// so the failure is checked again.
Task<> NcclBackend::finish(CommStream* comm) { return reach(comm, comm->stream.record()); }

Task<> NcclBackend::reach(CommStream* comm, DeviceEvent point) {
  try {
    co_await point.wait(released_.token());
  } catch (const Stopped&) {      // everything is aborted: throw_if_broken() says why
  } catch (const DeviceError&) {  // the device keeps its error, which is looked at next
  }
  co_await throw_if_broken(comm);
}

Task<> NcclBackend::wait_for(CommStream* comm, Wait what) {
  comm->wait = what;
  comm->woken.reset();
  watch();
  co_await comm->woken;
}

bool NcclBackend::progress() noexcept {
  if (!options_.watchdog.own_thread) {
    watchdog_.check(loop_.now());
  }
  notice_failures();
  const bool found = end_waits();
  if (broken_ && watchdog_.released() && !released_.stop_requested()) {
    released_.request_stop();
  }
  if (!comms_[kGathers].busy && !comms_[kReductions].busy) {
    rest();
  }
  return found;
}

// In the order in which they came.
bool NcclBackend::end_waits() noexcept {
  const std::size_t first = comms_[kReductions].came < comms_[kGathers].came ? 1 : 0;
  const bool one = end_wait(comms_[first]);
  return end_wait(comms_[1 - first]) || one;
}

bool NcclBackend::end_wait(CommStream& comm) noexcept {
  bool ended = false;
  if (comm.wait == Wait::kNothing) {
    return false;
  }
  if (broken_) {
    ended = watchdog_.released();
  } else if (comm.wait == Wait::kTurn) {
    ended = grant_turn(comm);
  } else if (comm.wait == Wait::kNccl) {
    NcclResult state = NcclResult::kSuccess;
    const NcclResult asked = call(comm, [&state](const NcclApi& api, void* communicator, void*) {
      return api.async_error(communicator, &state);
    });
    comm.result = asked == NcclResult::kSuccess ? state : asked;
    ended = comm.result != NcclResult::kInProgress;
  }
  if (ended) {
    comm.wait = Wait::kNothing;
    comm.woken.set();
  }
  return ended;
}

// ---- failing ----
void NcclBackend::notice_failures() noexcept {
  if (broken_) {
    return;
  }
  if (device_.error() != nullptr) {
    device_failed_ = device_.error();
    fail(rank(), fmt::format("rank {} aborted: its device failed", rank()));
    return;
  }
  // Peers first: they know which rank is at fault, NCCL only that one is.
  if (options_.peers != nullptr) {
    if (const std::optional<NcclLoss> loss = options_.peers->loss()) {
      fail(loss->failed_rank, loss->cause);
      return;
    }
  }
  if (watchdog_.has_failed()) {
    const NcclLoss loss = loss_by(*watchdog_.failure());
    fail(loss.failed_rank, loss.cause);
  }
}

NcclLoss NcclBackend::loss_by(const NcclWatchdog::Failure& failure) const {
  if (failure.comm >= comms_.size()) {
    return {kUnknownRank, failure.what};
  }
  const CommStream& comm = comms_[failure.comm];
  if (!failure.late) {
    return {kUnknownRank, fmt::format("{} in {}", failure.what, describe_comm(comm))};
  }
  const bool connecting = comm.operation.kind == ShmKind::kNone;
  const double limit =
      std::chrono::duration<double>(connecting ? options_.connect_timeout : options_.timeout)
          .count();
  if (comm.awaits_operands) {
    return {rank(), fmt::format("the GPU of rank {} did not come to {} within {:.3g} s", rank(),
                                describe_comm(comm), limit)};
  }
  const std::optional<std::uint32_t> missing = awaited_by(comm);
  if (missing) {
    const NcclLoss end = options_.peers->failed_behind(*missing);
    return {end.failed_rank, fmt::format("rank {} did not arrive at {} within {:.3g} s{}", *missing,
                                         describe_comm(comm), limit, end.cause)};
  }
  if (comm.wait == Wait::kTurn && !launching_) {
    return {rank(), fmt::format("rank {} is at {} for {:.3g} s, where it is another operation's "
                                "turn, for which it has not asked",
                                rank(), describe_comm(comm), limit)};
  }
  return {kUnknownRank,
          fmt::format("{} did not end within {:.3g} s{}", describe_comm(comm), limit,
                      connecting ? ""
                                 : ", and all ranks have begun it: a GPU or NCCL's links "
                                   "stand still")};
}

std::optional<std::uint32_t> NcclBackend::awaited_by(const CommStream& comm) const noexcept {
  if (options_.peers == nullptr || comm.operation.kind == ShmKind::kNone || comm.awaits_operands) {
    return std::nullopt;
  }
  NcclPeers& peers = *options_.peers;
  if (comm.wait == Wait::kTurn && !launching_) {
    if (rank() != 0) {
      // It has not said whose turn it is. If it is the other sequence's, this rank has not asked
      // for that yet.
      return peers.decided(next_turn_) ? std::nullopt : std::optional(peers.decider());
    }
    return next_turn_ < NcclPeers::kMostAhead
               ? std::nullopt
               : peers.behind(next_turn_ - NcclPeers::kMostAhead + 1);
  }
  return peers.waits_for(next_turn_ + (launching_ ? 1 : 0));
}

// A shorter wait does not count as holding up a rank.
Awaited NcclBackend::awaited(Duration at_least) const noexcept {
  Awaited all;
  for (const CommStream& comm : comms_) {
    if (comm.busy && loop_.now() - comm.since >= at_least) {
      if (const std::optional<std::uint32_t> rank = awaited_by(comm)) {
        all.add(*rank);
      }
    }
  }
  return all;
}

void NcclBackend::fail(std::uint32_t failed_rank, std::string_view why) noexcept {
  if (broken_) {
    return;
  }
  const std::string cause(why);
  broken_ = NcclLoss{failed_rank, cause};
  if (options_.peers != nullptr) {
    options_.peers->announce_failure(failed_rank, cause);
  }
  watchdog_.abort(cause);
  watch();
}

void NcclBackend::abort(std::string_view why) noexcept {
  fail(rank(), fmt::format("rank {} aborted: {}", rank(), why));
}

std::string NcclBackend::describe_comm(const CommStream& comm) const {
  if (comm.operation.kind == ShmKind::kNone) {
    return fmt::format("the connection for {}",
                       index_of(comm) == kGathers ? "gathers" : "reductions");
  }
  return describe(comm.operation);
}

// Returns when nothing writes into the operation's buffers any more: after NCCL's kernels there may
// be some of ours, which end by themselves. If the device does not finish them within the time of
// an abort, the rank ends without waiting.
Task<> NcclBackend::throw_if_broken(CommStream* comm) {
  notice_failures();
  if (!broken_) {
    co_return;
  }
  if (!watchdog_.released()) {
    co_await wait_for(comm, Wait::kRelease);
  }
  if (watchdog_.aborted()) {
    const DeviceEvent last = comm->stream.record();
    const TimePoint limit = loop_.now() + options_.watchdog.abort_limit;
    while (!last.done() && loop_.now() < limit) {
      co_await sleep_for(std::chrono::microseconds(100));
    }
  }
  if (device_failed_ != nullptr) {
    std::rethrow_exception(device_failed_);
  }
  std::string where;
  if (broken_->failed_rank < options_.hosts.size()) {
    where = fmt::format("; rank {} is on host {}", broken_->failed_rank,
                        options_.hosts[broken_->failed_rank]);
  }
  throw PeerLost(fmt::format("[collectives] {}; {} cannot end on rank {}{}", broken_->cause,
                             describe_comm(*comm), rank(), where),
                 broken_->failed_rank);
}

}  // namespace tandem
