// actors/data_prefetch.hpp — keeps the next batches ready; a pool makes them with the user's
// function.
//
// States of batch i: not started -> being made -> ready -> handed out. The next `depth` batches are
// being made or ready. Batch i is the result of make(i), and requests are answered in the order of
// i, so neither the number of workers nor their speed affects the data. If make(i) returns nothing,
// the data ends: the request for batch i and every later one gets nothing. If make(i) throws, the
// request for batch i and every later one gets that exception. In both cases no further batch is
// started.
// Buffers: a batch belongs to make() until that returns, to this actor while it is ready, then to
// the actor that requested it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "actors/memory/ring_queue.hpp"
#include "runtime/actor.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

/// Replies with the next batch in order; with nothing at the end of the data.
template <class Batch>
struct NextBatch {
  using Reply = std::optional<Batch>;
};

template <class Batch>
class DataPrefetch : public Actor<DataPrefetch<Batch>, NextBatch<Batch>> {
 public:
  using Base = Actor<DataPrefetch<Batch>, NextBatch<Batch>>;

  struct Options {
    // Outlives the actor. It makes at most as many batches at a time as it has threads.
    CpuPool* pool = nullptr;
    /// Makes batch i. Called on threads of the pool, for several i at a time, and at most once for
    /// each i.
    std::function<std::optional<Batch>(std::uint64_t)> make;
    std::uint64_t first = 0;  // number of the first batch; not 0 in a resumed run
    std::size_t depth = 2;    // at least 1
  };

  struct Counters {
    std::uint64_t batches = 0;  // handed out
    std::uint64_t waits = 0;    // of these, batches that were not ready when requested
    double waiting_s = 0;       // time for which requests waited
  };

  explicit DataPrefetch(Options options)
      : Base("data prefetch"),
        options_(std::move(options)),
        places_(options_.depth),
        next_out_(options_.first),
        next_start_(options_.first) {
    TANDEM_CHECK(options_.pool != nullptr && options_.make, "prefetch makes batches on a pool");
    TANDEM_CHECK(options_.depth >= 1, "at least the next batch is made ahead");
  }

  /// Starts to make batches at once, in tasks of `scope`.
  void start(Scope& scope) {
    Base::start(scope);
    start_more();
  }

  void handle(NextBatch<Batch>, ReplyTo<NextBatch<Batch>> reply) {
    asks_.push({std::move(reply), EventLoop::current().now(), false});
    answer_what_is_ready();
  }

  /// Loop thread.
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  enum class State : std::uint8_t { kEmpty, kMaking, kReady };

  struct Place {
    State state = State::kEmpty;
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  struct Ask {
    std::optional<ReplyTo<NextBatch<Batch>>> reply;
    TimePoint since;
    bool waited = false;
  };

  Place& place(std::uint64_t index) { return places_[index % places_.size()]; }

  void start_more() {
    while (!over_ && next_start_ < next_out_ + options_.depth) {
      place(next_start_).state = State::kMaking;
      this->scope().spawn("make batch", &DataPrefetch::make, this, next_start_);
      ++next_start_;
    }
  }

  Task<> make(std::uint64_t index) {
    Place& target = place(index);
    const auto* make_batch = &options_.make;
    try {
      target.batch = co_await options_.pool->run(
          [make_batch, index] { return (*make_batch)(index); }, "make batch");
    } catch (...) {
      target.error = std::current_exception();
    }
    target.state = State::kReady;
    over_ = over_ || !target.batch.has_value();
    answer_what_is_ready();
  }

  void answer_what_is_ready() {
    while (!asks_.empty()) {
      Place& next = place(next_out_);
      if (next.state != State::kReady) {
        asks_.front().waited = true;  // the later ones wait as well; they are marked in their turn
        return;
      }
      Ask ask = asks_.pop();
      if (next.error != nullptr) {
        ask.reply->fail(next.error);  // stays in place for later asks
      } else if (!next.batch.has_value()) {
        ask.reply->send(std::nullopt);
      } else {
        count(ask);
        std::optional<Batch> batch = std::exchange(next.batch, std::nullopt);
        next.state = State::kEmpty;
        ++next_out_;
        start_more();
        ask.reply->send(std::move(batch));
      }
    }
  }

  void count(const Ask& ask) {
    ++counters_.batches;
    if (ask.waited) {
      ++counters_.waits;
      counters_.waiting_s +=
          std::chrono::duration<double>(EventLoop::current().now() - ask.since).count();
    }
  }

  Options options_;
  std::vector<Place> places_;  // ring by batch number
  std::uint64_t next_out_;
  std::uint64_t next_start_;
  bool over_ = false;  // the end or a failure was met: nothing more is started
  RingQueue<Ask> asks_;
  Counters counters_;
};

}  // namespace tandem
