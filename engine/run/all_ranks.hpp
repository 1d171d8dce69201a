// engine/run/all_ranks.hpp — exchanges values among all ranks, between and within steps.
//
// Thread rule: the loop's thread. Each call is a collective: all ranks make it at the same point of
// their step.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/distributed/communicator.hpp"
#include "engine/step/train_step.hpp"
#include "runtime/task.hpp"

namespace tandem {

class AllRanks {
 public:
  /// Both outlive it.
  AllRanks(const Communicator& communicator, TrainStep& step)
      : world_(static_cast<std::size_t>(communicator.world_size())), step_(step) {}

  [[nodiscard]] std::size_t world() const noexcept { return world_; }

  /// Returns the bytes of all ranks, in rank order; every rank passes the same number. Takes one
  /// exchange for each kExchangeBytes of `mine`.
  Task<std::vector<std::byte>> bytes(std::vector<std::byte> mine);

  /// Returns the values of all ranks, in rank order; every rank passes the same number.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  Task<std::vector<T>> values(std::vector<T> mine) {
    const auto own = std::as_bytes(std::span(mine));
    const std::vector<std::byte> all = co_await bytes({own.begin(), own.end()});
    std::vector<T> values(all.size() / sizeof(T));
    if (!all.empty()) {
      std::memcpy(values.data(), all.data(), all.size());
    }
    co_return values;
  }

 private:
  std::size_t world_;
  TrainStep& step_;
};

}  // namespace tandem
