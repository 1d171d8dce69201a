#include "runtime/device/sim_engines.hpp"

#include <algorithm>
#include <utility>

#include "runtime/trace.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

std::uint32_t SimEngines::add_stream(Name name) {
  streams_.push_back({.name = name});
  return static_cast<std::uint32_t>(streams_.size() - 1);
}

void SimEngines::add(std::uint32_t stream, Operation operation, TimePoint now) {
  if (error_ != nullptr) {
    if (operation.reaches != nullptr) {
      detail::DevicePoint::reach(std::move(operation.reaches), error_);
    }
    return;
  }
  if (planted(Bug::kEventBeforeCopy) && operation.reaches != nullptr &&
      streams_[stream].at_engine) {
    operation.reaches->passed = true;
    detail::DevicePoint::reach(std::move(operation.reaches), nullptr);
    return;
  }
  streams_[stream].operations.push_back(std::move(operation));
  pump(now);
}

TimePoint SimEngines::next_end() const noexcept {
  TimePoint next = TimePoint::max();
  for (const EngineState& engine : engines_) {
    if (engine.running) {
      next = std::min(next, engine.end);
    }
  }
  return next;
}

void SimEngines::advance(TimePoint now) {
  for (TimePoint next = next_end(); next <= now; next = next_end()) {
    for (EngineState& engine : engines_) {
      if (engine.running && engine.end == next) {
        finish(engine);
      }
    }
    pump(next);
  }
}

// Passes points and starts operations until nothing more can.
void SimEngines::pump(TimePoint now) {
  for (bool moved = true; moved && error_ == nullptr;) {
    moved = false;
    for (std::uint32_t i = 0; i < streams_.size(); ++i) {
      moved |= pass_points(streams_[i]);
      queue_at_engine(i);
    }
    for (EngineState& engine : engines_) {
      moved |= start(engine, now);
    }
  }
}

bool SimEngines::pass_points(Stream& stream) {
  bool moved = false;
  while (!stream.operations.empty() && !stream.at_engine) {
    Operation& first = stream.operations.front();
    if (first.reaches != nullptr) {
      first.reaches->passed = true;
      detail::DevicePoint::reach(std::move(first.reaches), nullptr);
    } else if (first.waits_for == nullptr || !first.waits_for->passed) {
      break;
    }
    stream.operations.pop_front();
    moved = true;
  }
  return moved;
}

void SimEngines::queue_at_engine(std::uint32_t number) {
  Stream& stream = streams_[number];
  if (!stream.operations.empty() && !stream.at_engine &&
      stream.operations.front().waits_for == nullptr) {
    stream.at_engine = true;
    engines_[static_cast<std::size_t>(stream.operations.front().engine)].ready.push_back(number);
  }
}

bool SimEngines::start(EngineState& engine, TimePoint now) {
  if (engine.running || engine.ready.empty()) {
    return false;
  }
  Stream& stream = streams_[engine.ready.front()];
  Operation& operation = stream.operations.front();
  engine.running = true;
  engine.end = now + operation.cost;
  engine.busy += operation.cost;
  if (early_) {
    work(operation);
  }
  return true;
}

void SimEngines::finish(EngineState& engine) {
  Stream& stream = streams_[engine.ready.front()];
  Operation operation = std::move(stream.operations.front());
  stream.operations.pop_front();
  stream.at_engine = false;
  engine.ready.pop_front();
  engine.running = false;
  if (early_) {
    const std::int64_t end_ns = engine.end.time_since_epoch().count();
    trace::track_span(stream.name, operation.name, end_ns - operation.cost.count(), end_ns);
  }
  if (operation.fails != nullptr) {
    fail(operation.fails);
  } else if (!early_) {
    work(operation);
  }
}

void SimEngines::work(Operation& operation) {
  if (operation.fails != nullptr || operation.work == nullptr) {
    return;
  }
  try {
    operation.work();
  } catch (...) {
    operation.fails = std::current_exception();
    if (!early_) {
      fail(operation.fails);
    }
  }
}

void SimEngines::fail(std::exception_ptr error) {
  if (error_ != nullptr) {
    return;
  }
  error_ = std::move(error);
  for (EngineState& engine : engines_) {
    engine.ready.clear();
    engine.running = false;
  }
  for (Stream& stream : streams_) {
    for (Operation& operation : std::exchange(stream.operations, {})) {
      if (operation.reaches != nullptr) {
        detail::DevicePoint::reach(std::move(operation.reaches), error_);
      }
    }
    stream.at_engine = false;
  }
}

}  // namespace tandem
