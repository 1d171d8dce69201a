#include "actors/collectives/nccl/nccl_watchdog.hpp"

#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/thread.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {
constexpr Duration kCheckAbortEvery = std::chrono::milliseconds(1);
}

struct NcclWatchdog::Communicators {
  std::timed_mutex calls;  // of the thread that is inside NCCL with one of them
  std::array<std::atomic<void*>, kComms> all{};
  std::atomic<bool> taken{false};  // by an abort: what comes later is not seen by it
  std::atomic<bool> aborted{false};

  /// A call that holds the lock for a second stands still inside NCCL: then the abort is what ends
  /// it.
  void abort(const NcclApi& api) {
    std::unique_lock lock(calls, std::chrono::seconds(1));
    taken = true;
    std::array<void*, kComms> to_abort{};
    for (std::size_t comm = 0; comm < kComms; ++comm) {
      to_abort[comm] = all[comm].exchange(nullptr);
    }
    if (lock.owns_lock()) {
      lock.unlock();
    }
    for (void* communicator : to_abort) {
      if (communicator != nullptr) {
        (void)api.abort(communicator);
      }
    }
    aborted = true;
  }
};

NcclWatchdog::NcclWatchdog(const NcclApi& api, Options options)
    : api_(api),
      options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : Clock::real()),
      communicators_(std::make_shared<Communicators>()),
      awake_(options_.check_every, clock_.now()) {
  if (options_.own_thread) {
    thread_ = thread::start("nccl watchdog", 0, 1, [this] { work(); });
  }
}

// Finalizing sends data that peers may still wait for; the wait for its end is bounded.
NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  for (auto& held : communicators_->all) {
    void* const communicator = state_ == State::kWatching ? held.exchange(nullptr) : nullptr;
    if (communicator == nullptr) {
      continue;
    }
    const TimePoint limit = Clock::real().now() + options_.abort_limit;
    NcclResult state = api_.finalize(communicator);
    while (state == NcclResult::kInProgress && Clock::real().now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (api_.async_error(communicator, &state) != NcclResult::kSuccess) {
        state = NcclResult::kInternalError;
      }
    }
    if (state == NcclResult::kSuccess) {
      (void)api_.destroy(communicator);
    }  // else it is left to the process's end: an abort may hang, and nothing waits for it
  }
}

// Either the abort finds this communicator, or this function finds the abort.
void NcclWatchdog::adopt(std::size_t comm, void* communicator) {
  communicators_->all[comm] = communicator;
  void* const left = communicators_->taken ? communicators_->all[comm].exchange(nullptr) : nullptr;
  if (left != nullptr) {
    run_abort([left, api = &api_] { (void)api->abort(left); });
  }
}

void* NcclWatchdog::open_calls(std::size_t comm) {
  communicators_->calls.lock();
  return communicators_->all[comm].load();
}

void NcclWatchdog::close_calls() { communicators_->calls.unlock(); }

void NcclWatchdog::operation_begins(std::size_t comm, TimePoint deadline) noexcept {
  const std::lock_guard lock(mutex_);
  comms_[comm] = {true, deadline};
}

void NcclWatchdog::operation_ends(std::size_t comm) noexcept {
  const std::lock_guard lock(mutex_);
  comms_[comm].busy = false;
}

std::optional<NcclWatchdog::Failure> NcclWatchdog::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclWatchdog::abort(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    fail(kComms, false, std::move(why));
  }
  changed_.notify_all();
}

// Under the lock.
void NcclWatchdog::fail(std::size_t comm, bool late, std::string what) {
  if (!failure_) {
    failure_ = Failure{comm, late, std::move(what)};
    has_failed_ = true;
  }
}

bool NcclWatchdog::aborted() const noexcept { return communicators_->aborted; }

void NcclWatchdog::work() {
  thread::set_name("nccl watchdog");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const bool aborting = state_ == State::kAborting;
    changed_.wait_for(lock, aborting ? kCheckAbortEvery : options_.check_every,
                      [this] { return stopping_ || (failure_ && state_ == State::kWatching); });
    lock.unlock();
    check(clock_.now());
    lock.lock();
  }
}

void NcclWatchdog::check(TimePoint now) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kWatching) {
    ask_communicators();
    check_deadlines(now);
    if (!failure_) {
      return;
    }
    state_ = State::kAborting;
    abort_deadline_ = now + options_.abort_limit;
    lock.unlock();
    run_abort([communicators = communicators_, api = &api_] { communicators->abort(*api); });
    lock.lock();
  }
  if (state_ != State::kAborting) {
    return;
  }
  if (!communicators_->aborted) {
    if (now < abort_deadline_) {
      return;
    }
    const std::string why = failure_->what;
    lock.unlock();
    end_process(why);
    lock.lock();
  }
  state_ = State::kReleased;
  released_ = true;
}

// Only an abort frees a communicator, and only this thread starts one.
void NcclWatchdog::ask_communicators() {
  for (std::size_t comm = 0; comm < kComms; ++comm) {
    void* const communicator = communicators_->all[comm].load();
    NcclResult state = NcclResult::kSuccess;
    if (communicator == nullptr) {
      continue;
    }
    const NcclResult asked = api_.async_error(communicator, &state);
    const NcclResult found = asked != NcclResult::kSuccess ? asked : state;
    if (found != NcclResult::kSuccess && found != NcclResult::kInProgress) {
      fail(comm, false, fmt::format("NCCL says \"{}\"", api_.text_of(found)));
    }
  }
}

void NcclWatchdog::check_deadlines(TimePoint now) {
  const Duration slept = awake_.slept_since(now);
  for (std::size_t comm = 0; comm < kComms; ++comm) {
    comms_[comm].deadline += slept;
    if (comms_[comm].busy && now >= comms_[comm].deadline) {
      fail(comm, true, "an operation is over its time limit");
    }
  }
}

void NcclWatchdog::run_abort(std::function<void()> abort) {
  if (options_.run_abort) {
    options_.run_abort(std::move(abort));
  } else {
    std::thread(std::move(abort)).detach();
  }
}

void NcclWatchdog::end_process(const std::string& why) {
  const std::string line = fmt::format(
      "[nccl] {}, and the abort that followed did not end within {:.3g} s; the process ends", why,
      std::chrono::duration<double>(options_.abort_limit).count());
  if (options_.end_process) {
    options_.end_process(line);
    return;
  }
  fmt::print(stderr, "error: {}\n", one_line(line));
  (void)std::fflush(stderr);
  ::_exit(static_cast<int>(ExitCode::kPeer));
}

}  // namespace tandem
