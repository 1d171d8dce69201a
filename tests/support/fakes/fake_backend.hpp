// tests/support/fakes/fake_backend.hpp — a backend of any world size that writes down what it was
// asked, and waits on request.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "runtime/event.hpp"
#include "runtime/sleep.hpp"

namespace tandem::test {

class FakeBackend : public CollectiveBackend {
 public:
  explicit FakeBackend(std::uint32_t world = 1, std::uint32_t rank = 0)
      : world_(world), rank_(rank) {}

  [[nodiscard]] std::uint32_t world() const noexcept override { return world_; }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }

  Task<> all_gather(GatherArguments arguments) override {
    log.push_back("gather " + std::to_string(gathers.size()));
    gathers.push_back(arguments);
    co_await pass(gate_gathers, under_way_gathers);
    if (fail_gather == static_cast<int>(gathers.size()) - 1) {
      throw std::runtime_error("the link is down");
    }
  }

  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override {
    log.push_back("reduce " + std::to_string(reductions.size()));
    reductions.push_back(arguments);
    co_await pass(gate_reductions, under_way_reductions);
    co_return norm;
  }

  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override {
    log.push_back("all-reduce " + std::to_string(reductions.size()));
    reductions.push_back(arguments);
    co_await pass(gate_reductions, under_way_reductions);
    co_return norm;
  }

  /// Every rank says what this one does.
  Task<> exchange(ExchangeArguments arguments) override {
    log.push_back("exchange " + std::to_string(arguments.bytes));
    co_await pass(gate_reductions, under_way_reductions);
    for (std::uint32_t from = 0; from < world_ && arguments.bytes > 0; ++from) {
      std::memcpy(arguments.all.host() + from * arguments.bytes, arguments.mine.host(),
                  arguments.bytes);
    }
  }

  Task<> all_to_all(AllToAllArguments arguments) override {
    log.push_back("all-to-all " + std::to_string(arguments.bytes));
    co_await pass(gate_gathers, under_way_gathers);
  }

  std::byte* allocate(std::size_t bytes) override { return memory.emplace_back(bytes).data(); }

  std::vector<HostBuffer> memory;
  std::vector<std::string> log;
  std::vector<GatherArguments> gathers;
  std::vector<ReduceArguments> reductions;
  Event* gate_gathers = nullptr;  // set: every gather waits for it
  Event* gate_reductions = nullptr;
  int fail_gather = -1;
  GradientNorm norm;
  bool overlapped = false;  // two operations of one kind were under way at a time

 private:
  Task<> pass(Event* gate, int& under_way) {
    overlapped = overlapped || under_way > 0;
    ++under_way;
    co_await yield();
    if (gate != nullptr) {
      co_await *gate;
    }
    --under_way;
  }

  std::uint32_t world_;
  std::uint32_t rank_;
  int under_way_gathers = 0;
  int under_way_reductions = 0;
};

}  // namespace tandem::test
