// runtime/cpu_pool.hpp — worker threads for plain functions in chunks: the optimizer's arithmetic,
// tokenizing, checksums.
//
// Workers take a job's chunks from one shared counter; the last worker to leave posts one
// completion. Any thread may run any chunk, so a chunk's result must depend only on its number.
// Jobs are served in the order of awaiting. The first worker is awake when the next job is expected
// (expected_wait.hpp); the others sleep.
// Thread rule: for_chunks() and run() on the loop's thread; the function runs on the pool's
// threads, on several at a time.
// Cancel rule: cannot be cancelled; after the first exception no further chunk is started, and the
// await ends when the running chunks have ended.
//
//   CpuPool pool(loop, {.threads = 4, .cores = {4, 5, 6, 7}, .name = "optimizer"});
//   co_await pool.for_chunks(chunks, [&](std::size_t chunk) {
//     apply_update(step, buffers, begin(chunk), end(chunk));
//   });
#pragma once

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/event_loop.hpp"
#include "runtime/expected_wait.hpp"
#include "runtime/task.hpp"
#include "runtime/util/name.hpp"
#include "runtime/util/outcome.hpp"

namespace tandem {

class CpuPool;

/// The name of a job in traces, chunk by chunk: "update block 3 [2/8]".
struct ChunkLabel {
  Name name = "chunk";
  std::size_t first = 0;  // number of the job's first chunk in a larger whole
  std::size_t of = 0;     // number of chunks of the whole; 0: the job is the whole
};

/// Takes the place of a pool's threads (in the simulator). The pool calls work_there() when a job
/// was queued; the driver then takes the workers' turns on the loop's thread, at times of its
/// choice.
class PoolDriver {
 public:
  virtual ~PoolDriver() = default;
  virtual void work_there(CpuPool& pool) = 0;
};

class CpuPool {
 public:
  struct Options {
    int threads = 1;
    std::vector<int> cores = {};  // thread i is bound to cores[i % size]; empty: not bound
    std::string name = "pool";
    bool background = false;  // waking threads don't preempt others that compute on the same cores
    // if set, it runs the chunks and no threads are made; it must outlive the pool
    PoolDriver* driver = nullptr;
  };

  /// Throws Error if this process may not use one of the cores, or if there would be no threads.
  CpuPool(EventLoop& loop, Options options);
  /// Waits until the queued jobs have run (with a driver it does not wait).
  ~CpuPool();
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  /// Awaitable: calls fn(chunk) for every chunk in [0, count) on the pool's threads. Rethrows the
  /// exception of the lowest chunk that threw. `fn` is copied (or moved) into the awaiting
  /// coroutine's frame; it is called by several threads at a time.
  template <std::invocable<std::size_t> Fn>
  [[nodiscard]] auto for_chunks(std::size_t count, Fn fn, ChunkLabel label = {}) {
    static_assert(!AnyTask<std::invoke_result_t<Fn&, std::size_t>>,
                  "a pool runs plain functions: a Task runs on the loop");
    return ChunksAwaiter<Fn>(*this, count, std::move(fn), label);
  }

  /// Awaitable: calls fn() on one of the pool's threads, and returns its value or rethrows its
  /// exception. Traces show `name`.
  template <std::invocable Fn>
  [[nodiscard]] auto run(Fn fn, Name name = "job") {
    return RunAwaiter<Fn>(*this, std::move(fn), name);
  }

  [[nodiscard]] int threads() const noexcept { return options_.threads; }
  /// Time spent in chunks that have ended, in seconds, summed over the threads. Any thread.
  [[nodiscard]] double busy_s() const noexcept;

 private:
  struct Job;

 public:
  /// One worker's turns, for a PoolDriver: join() -> run_chunk() until it returns false -> leave().
  class Worker {
   public:
    explicit Worker(CpuPool& pool) noexcept : pool_(&pool) {}
    /// Joins the oldest job with chunks left; returns false if there is none.
    bool join();
    /// Runs the job's next chunk; returns false if none was left. With an `error` the chunk does
    /// not run and ends with that.
    bool run_chunk(const std::exception_ptr& error = nullptr);
    void leave();

   private:
    CpuPool* pool_;
    Job* job_ = nullptr;
  };

 private:
  // Lives in the awaiting coroutine's frame, and may be gone as soon as its completion is posted.
  struct Job {
    using RunChunk = void (*)(Job&, std::size_t chunk);
    explicit Job(RunChunk function) noexcept : run_chunk(function) {}

    RunChunk run_chunk;
    std::size_t count = 0;
    ChunkLabel label;
    std::atomic<std::size_t> next_chunk{0};
    // Guarded by the pool's mutex:
    Job* next_job = nullptr;
    int workers = 0;
    std::exception_ptr error;
    std::size_t error_chunk = 0;
    detail::ResumeOp resume;
  };
  class JobAwaiter;
  template <class Fn>
  class ChunksAwaiter;
  template <class Fn>
  class RunAwaiter;

  void submit(Job& job);
  void work(int index);
  void await_job();
  bool sleep(std::int64_t until_ns);
  void end_threads() noexcept;
  Job* join_first_job() noexcept;  // the caller holds the mutex
  // The caller holds the mutex. It posts the result, if there is one, to the loop after it has
  // released the mutex: the loop answers at once, and would have to sleep for the mutex.
  [[nodiscard]] Op* leave_job(Job& job) noexcept;
  void run_chunks(Job& job) noexcept;
  bool run_next_chunk(Job& job, const std::exception_ptr& instead = nullptr) noexcept;

  EventLoop& loop_;
  Options options_;
  std::mutex mutex_;
  std::condition_variable work_there_;
  Job* first_job_ = nullptr;  // the oldest; each listed job may have chunks left
  Job* last_job_ = nullptr;   // valid while there is a first
  bool stopping_ = false;
  bool spinning_ = false;                // the first worker spins, and no job was queued for it yet
  std::atomic<std::uint32_t> calls_{0};  // grows after each change, for a spinning worker to see
  ExpectedWait expected_;                // of the first worker
  std::atomic<std::int64_t> busy_ns_{0};
  std::vector<std::thread> threads_;
};

class CpuPool::JobAwaiter {
 public:
  static constexpr const char* kAwaitName = "cpu pool";
  JobAwaiter(CpuPool& pool, Job& job) noexcept : pool_(pool), job_(job) {}
  bool await_ready() const noexcept { return job_.count == 0; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> coroutine) {
    job_.resume.set(coroutine);
    pool_.submit(job_);
  }

 protected:
  void rethrow_error() const {
    if (job_.error != nullptr) {
      std::rethrow_exception(job_.error);
    }
  }
  CpuPool& pool_;
  Job& job_;
};

template <class Fn>
class CpuPool::ChunksAwaiter : public JobAwaiter {
 public:
  ChunksAwaiter(CpuPool& pool, std::size_t count, Fn fn, ChunkLabel label)
      : JobAwaiter(pool, chunks_), chunks_(std::move(fn)) {
    chunks_.count = count;
    chunks_.label = label;
  }
  void await_resume() { rethrow_error(); }

 private:
  struct Chunks : Job {
    explicit Chunks(Fn fn_in)
        : Job([](Job& job, std::size_t chunk) { static_cast<Chunks&>(job).fn(chunk); }),
          fn(std::move(fn_in)) {}
    Fn fn;
  };
  Chunks chunks_;
};

template <class Fn>
class CpuPool::RunAwaiter : public JobAwaiter {
 public:
  using Value = std::invoke_result_t<Fn&>;
  RunAwaiter(CpuPool& pool, Fn fn, Name name) : JobAwaiter(pool, single_), single_(std::move(fn)) {
    single_.count = 1;
    single_.label = {.name = name};
  }
  Value await_resume() {
    rethrow_error();
    return single_.outcome.take();
  }

 private:
  struct Single : Job {
    explicit Single(Fn fn_in)
        : Job([](Job& job, std::size_t) {
            auto& self = static_cast<Single&>(job);
            capture(self.outcome, self.fn);
          }),
          fn(std::move(fn_in)) {}
    Fn fn;
    Outcome<Value> outcome;
  };
  Single single_;
};

}  // namespace tandem
