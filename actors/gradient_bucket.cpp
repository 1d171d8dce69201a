#include "actors/gradient_bucket.hpp"

#include <chrono>
#include <cstring>
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

GradientBucket::GradientBucket(Options options)
    : Actor(options.name), options_(std::move(options)) {
  TANDEM_CHECK(options_.accumulator != nullptr || options_.layout.shard_elements == 0,
               "an accumulator is handed in");
  TANDEM_CHECK(options_.accumulator_type == DType::kF32 ||
                   (options_.block_type == options_.accumulator_type && options_.layout.world == 1),
               "a 16-bit accumulator only takes the one gradient there is");
}

Task<Placed<std::byte>> GradientBucket::handle(AcquireGradient request) {
  TANDEM_CHECK(slot_ == nullptr, "a unit has one gradient slot at a time");
  const TimePoint start = EventLoop::current().now();
  const SlotGrant grant =
      co_await options_.slots.ask(AcquireSlot{request.ticket, kNoUnit, 0}, scope().stop_token());
  counters_.slot_waiting_s += seconds_since(start);
  slot_ = grant.data;
  ticket_ = request.ticket;
  // Less than one alignment per rank: too little to be worth a trip to a worker.
  if (options_.clears_padding && !planted(Bug::kPaddingKept)) {
    const std::size_t size = bytes_of(options_.block_type);
    for (std::uint32_t block = 0; block < options_.blocks; ++block) {
      std::memset(slot_.memory() +
                      (block * options_.layout.padded_elements + options_.layout.elements) * size,
                  0, (options_.layout.padded_elements - options_.layout.elements) * size);
    }
  }
  co_return slot_;
}

Task<ReducedGradient> GradientBucket::handle(GradientReady ready) {
  TANDEM_CHECK(slot_ != nullptr, "a gradient is ready in the slot that was lent for it");
  TANDEM_CHECK(
      options_.accumulator_type == DType::kF32 || (ready.first_micro_step && ready.last_micro_step),
      "nothing is added in 16 bits");
  const TimePoint start = EventLoop::current().now();
  ReduceArguments arguments = {
      .block = slot_,
      .block_type = options_.block_type,
      .accumulator = options_.accumulator,
      .accumulator_type = options_.accumulator_type,
      .shard_elements = options_.layout.shard_elements,
      .mode = ready.first_micro_step ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
      .tree = options_.tree};
  if (planted(Bug::kSlotReleasedTwice)) {
    co_await options_.slots.send(ReleaseSlot{ticket_, kNoNextUse}, scope().stop_token());
  }
  GradientNorm norm;
  for (std::uint32_t block = 0; block < options_.blocks; ++block) {
    arguments.want_norm = ready.last_micro_step && block + 1 == options_.blocks;
    norm = co_await reduce(ready.order + block, arguments);
    arguments.block =
        arguments.block + options_.layout.padded_elements * bytes_of(options_.block_type);
    arguments.mode = AccumulateMode::kAdd;
  }
  co_await options_.slots.send(ReleaseSlot{ticket_, kNoNextUse}, scope().stop_token());
  slot_ = nullptr;
  ++counters_.reductions;
  counters_.reduce_waiting_s += seconds_since(start);
  if (norm.first_bad_element >= 0) {
    norm.first_bad_element += static_cast<std::int64_t>(options_.first_element);
  }
  co_return norm;
}

Task<GradientNorm> GradientBucket::reduce(std::uint64_t order, ReduceArguments arguments) {
  if (options_.accumulate_replicated) {
    co_return co_await options_.collectives.ask(AllReduceAdd{order, arguments, options_.unit},
                                                scope().stop_token());
  }
  co_return co_await options_.collectives.ask(ReduceScatterAdd{order, arguments, options_.unit},
                                              scope().stop_token());
}

}  // namespace tandem
