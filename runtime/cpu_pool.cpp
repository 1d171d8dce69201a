#include "runtime/cpu_pool.hpp"

#include <algorithm>

#include "runtime/system/machine.hpp"
#include "runtime/thread.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

CpuPool::CpuPool(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {
  if (options_.threads < 1) {
    throw user_error("pool", "{}: {} threads; a pool has at least one", options_.name,
                     options_.threads);
  }
  const std::vector<int> ours = machine::affinity();
  for (const int core : options_.cores) {
    if (!std::binary_search(ours.begin(), ours.end(), core)) {
      throw user_error("pool", "{}: CPU {} is not among the {} that this process may use",
                       options_.name, core, ours.size());
    }
  }
  if (options_.driver != nullptr) {
    return;
  }
  try {
    threads_.reserve(static_cast<std::size_t>(options_.threads));
    for (int i = 0; i < options_.threads; ++i) {
      threads_.push_back(
          thread::start(options_.name.c_str(), i, options_.threads, [this, i] { work(i); }));
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

CpuPool::~CpuPool() { end_threads(); }

void CpuPool::end_threads() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  work_there_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

double CpuPool::busy_s() const noexcept {
  return static_cast<double>(busy_ns_.load(std::memory_order_relaxed)) * 1e-9;
}

void CpuPool::submit(Job& job) {
  TANDEM_CHECK_FOR(options_.name.c_str(), EventLoop::current_or_null() == &loop_,
                   "a pool is awaited on the loop that it was made for: send that loop a message");
  const std::size_t chunks = job.count;
  bool is_seen = false;  // by a worker that spins
  {
    const std::lock_guard lock(mutex_);
    (first_job_ == nullptr ? first_job_ : last_job_->next_job) = &job;
    last_job_ = &job;
    is_seen = std::exchange(spinning_, false);
  }
  // The job may be done and gone by now.
  if (options_.driver != nullptr) {
    options_.driver->work_there(*this);
    return;
  }
  calls_.fetch_add(1, std::memory_order_relaxed);  // the mutex orders what the job is
  if (chunks > 1) {
    work_there_.notify_all();
  } else if (!is_seen) {
    work_there_.notify_one();
  }
}

void CpuPool::work(int index) {
  thread::set_name(fmt::format("{} {}", options_.name, index));
  if (!options_.cores.empty()) {
    (void)thread::pin_to(options_.cores[static_cast<std::size_t>(index) % options_.cores.size()]);
  }
  if (options_.background) {
    thread::set_background();
  }
  thread::set_punctual();
  for (;;) {
    if (index == 0) {
      await_job();
    }
    std::unique_lock lock(mutex_);
    spinning_ = spinning_ && index != 0;  // whatever ended its spin
    work_there_.wait(lock, [this] { return stopping_ || first_job_ != nullptr; });
    if (first_job_ == nullptr) {
      return;
    }
    Job& job = *join_first_job();
    lock.unlock();
    run_chunks(job);
    lock.lock();
    Op* const ended = leave_job(job);
    lock.unlock();
    if (ended != nullptr) {
      loop_.post_from_any_thread(*ended);
    }
  }
}

// The first worker waits here. Another one may take the job that woke it meanwhile.
void CpuPool::await_job() {
  std::uint32_t calls = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || first_job_ != nullptr) {
      return;
    }
    calls = calls_.load(std::memory_order_relaxed);
    spinning_ = true;
  }
  expected_.wait(
      trace::detail::now_ns,
      [this, calls] { return calls_.load(std::memory_order_relaxed) != calls; },
      [this](std::int64_t until_ns) { return sleep(until_ns); },
      {.cpu_now_ns = thread::cpu_now_ns});
}

// True: there is a job, or the end.
bool CpuPool::sleep(std::int64_t until_ns) {
  std::unique_lock lock(mutex_);
  spinning_ = false;
  const auto called = [this] { return stopping_ || first_job_ != nullptr; };
  if (until_ns == ExpectedWait::kNever) {
    work_there_.wait(lock, called);
    return true;
  }
  const bool came = work_there_.wait_until(lock, TimePoint(Duration(until_ns)), called);
  spinning_ = !came;
  return came;
}

CpuPool::Job* CpuPool::join_first_job() noexcept {
  if (first_job_ != nullptr) {
    ++first_job_->workers;
  }
  return first_job_;
}

// All chunks are taken: no other worker may join. The last of those that did ends the job. Workers
// join the first job alone, so that it is this one, or this one has left the queue.
Op* CpuPool::leave_job(Job& job) noexcept {
  if (first_job_ == &job) {
    first_job_ = job.next_job;
  }
  return --job.workers == 0 ? &job.resume : nullptr;
}

bool CpuPool::Worker::join() {
  const std::lock_guard lock(pool_->mutex_);
  job_ = pool_->join_first_job();
  return job_ != nullptr;
}

bool CpuPool::Worker::run_chunk(const std::exception_ptr& error) {
  return pool_->run_next_chunk(*job_, error);
}

void CpuPool::Worker::leave() {
  Op* ended = nullptr;
  {
    const std::lock_guard lock(pool_->mutex_);
    ended = pool_->leave_job(*std::exchange(job_, nullptr));
  }
  if (ended != nullptr) {
    pool_->loop_.post_from_any_thread(*ended);
  }
}

void CpuPool::run_chunks(Job& job) noexcept {
  thread::enter_runtime();
  const std::int64_t start_ns = trace::detail::now_ns();
  while (run_next_chunk(job)) {
  }
  busy_ns_.fetch_add(trace::detail::now_ns() - start_ns, std::memory_order_relaxed);
  thread::leave_runtime();
}

bool CpuPool::run_next_chunk(Job& job, const std::exception_ptr& instead) noexcept {
  const std::size_t chunk = job.next_chunk.fetch_add(1, std::memory_order_relaxed);
  if (chunk >= job.count) {
    return false;
  }
  try {
    if (instead != nullptr) {
      std::rethrow_exception(instead);
    }
    const std::size_t of = job.label.of > 0 ? job.label.of : job.count;
    const TraceSpan span(job.label.name, {static_cast<std::uint32_t>(job.label.first + chunk),
                                          static_cast<std::uint32_t>(of)});
    if (!planted(Bug::kChunkSkipped) || chunk == 0 || chunk + 1 < job.count) {
      job.run_chunk(job, chunk);
    }
  } catch (...) {
    job.next_chunk.store(job.count, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (job.error == nullptr || chunk < job.error_chunk) {
      job.error = std::current_exception();
      job.error_chunk = chunk;
    }
  }
  return true;
}

}  // namespace tandem
