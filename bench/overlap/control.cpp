#include "bench/overlap/control.hpp"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <string_view>

#include <simdjson.h>

#include "actors/gradient_bucket.hpp"
#include "actors/memory/arena.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "actors/parameter_shard.hpp"
#include "engine/types/stopwatch.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"
#include "runtime/trace.hpp"
#include "runtime/trace_file.hpp"
#include "runtime/util/cpu_relax.hpp"

namespace tandem::bench {
namespace {

constexpr std::size_t kElements = 8 * kNormTile;
constexpr double kSecondsOfMicro = 1e-6;

/// One unit of a rank at world 1, in fp32.
struct OneUnit {
  UnitLayout layout = UnitLayout::make(kElements, 1);
  HostBuffer slot{kElements * 4}, gradient_slot{kElements * 4}, master{kElements * 4};
  HostBuffer moments{kElements * 8}, accumulator{kElements * 4};
  EventLoop loop{{.name = "control"}};
  ComputeLane lane{loop};
  CpuPool link{loop, {.name = "copy"}};
  CpuPool adam{loop, {.name = "optimizer"}};
  SelfBackend backend{link};
  Scope scope{loop, "actors"};
  Collectives collectives{{.backend = &backend}};
  SlotPool slots{{.memory = slot.data(),
                  .slot_bytes = kElements * 4,
                  .plan = {.slots = 1, .max_in_flight = 1}}};
  SlotPool gradient_slots{{.memory = gradient_slot.data(),
                           .slot_bytes = kElements * 4,
                           .plan = {.slots = 1, .max_in_flight = 1}}};
  ParameterShard shard{{.layout = layout,
                        .shard = master.data(),
                        .slots = slots.address(),
                        .collectives = collectives.address()}};
  GradientBucket bucket{{.layout = layout,
                         .accumulator = accumulator.data(),
                         .slots = gradient_slots.address(),
                         .collectives = collectives.address()}};
  CpuOptimizer optimizer{{.pool = &adam, .units = units()}};
  UpdateStep step = UpdateStep::make({.lr = 1e-4}, 1, 1.0);

  std::vector<CpuOptimizer::Unit> units() {
    return {{.state = {.buffers = {.master = master.as<float>(),
                                   .state = {moments.as<float>(), moments.as<float>() + kElements},
                                   .gradient = accumulator.data()},
                       .ranges = {{0, kElements, 0}}},
             .shard = shard.address()}};
  }

  OneUnit() {
    collectives.start(scope);
    slots.start(scope);
    gradient_slots.start(scope);
    shard.start(scope);
    bucket.start(scope);
    optimizer.start(scope);
  }
  ~OneUnit() {
    scope.request_stop();
    loop.run([](Scope* ended) -> Task<> { co_await ended->empty(); }, &scope);
  }
};

// As in a step: the lane computes until the next gradient is there.
Task<> updates(OneUnit* unit, std::uint64_t times, Duration compute) {
  const auto backward = [compute] {
    for (const TimePoint until = Clock::real().now() + compute; Clock::real().now() < until;) {
      cpu_relax();
    }
  };
  for (std::uint64_t i = 0; i < times; ++i) {
    if (compute > Duration(0)) {
      co_await unit->lane.run(backward);
    }
    co_await unit->bucket.address().ask(AcquireGradient{i});
    co_await unit->bucket.address().ask(GradientReady{true, true, i});
    co_await unit->optimizer.address().send(
        UpdateUnit{.unit = 0, .steps = &unit->step, .deadline = 0, .new_version = i + 1});
    co_await unit->optimizer.address().ask(DrainOptimizer{});
  }
}

struct Chunk {
  double begin_s;
  double end_s;
  bool is_adam;
};

std::vector<Chunk> chunks_of_trace() {
  simdjson::dom::parser parser;
  const simdjson::padded_string text(trace::chrome_json());
  const simdjson::dom::element document = parser.parse(text);
  std::int64_t adam = -1;
  std::int64_t link = -1;
  std::vector<std::pair<std::int64_t, Chunk>> found;
  for (const simdjson::dom::object event : document["traceEvents"].get_array()) {
    const std::string_view name = event["name"];
    if (name == "thread_name") {
      const std::string_view thread = event["args"]["name"];
      adam = thread == "optimizer 0" ? std::int64_t(event["tid"]) : adam;
      link = thread == "copy 0" ? std::int64_t(event["tid"]) : link;
    } else if (std::string_view(event["ph"]) == "X") {
      const double begin = double(event["ts"]) * kSecondsOfMicro;
      found.push_back(
          {std::int64_t(event["tid"]),
           {.begin_s = begin, .end_s = begin + double(event["dur"]) * kSecondsOfMicro}});
    }
  }
  std::vector<Chunk> chunks;
  for (auto& [thread, chunk] : found) {
    if (thread == adam || thread == link) {
      chunk.is_adam = thread == adam;
      chunks.push_back(chunk);
    }
  }
  std::ranges::sort(chunks, {}, &Chunk::begin_s);
  return chunks;
}

}  // namespace

ControlRun run_control(int times, Duration compute) {
  OneUnit unit;
  trace::clear();
  trace::enable({.records_per_thread = std::size_t{1} << 18});
  ControlRun run;
  const std::clock_t cpu_start = std::clock();
  const Stopwatch watch;
  unit.loop.run(&updates, &unit, static_cast<std::uint64_t>(times), compute);
  run.wall_s = watch.elapsed_s();
  run.cpu_s = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  trace::disable();
  double landed_s = -1;
  for (const Chunk& chunk : chunks_of_trace()) {
    if (!chunk.is_adam) {
      landed_s = chunk.end_s;
    } else if (landed_s >= 0) {
      run.ready_to_adam_s.push_back(chunk.begin_s - landed_s);
      landed_s = -1;
    }
  }
  return run;
}

}  // namespace tandem::bench
