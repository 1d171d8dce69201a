// tests/sim/rank_arrays.hpp — the arrays of a rehearsed rank, in memory or in its state file, and
// the code that trains from that file.
//
// Each array has memory. One of the file begins with what is there, and ends there once it is read
// back; between, the file alone has it.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "actors/checkpoint/checkpoint_writer.hpp"
#include "actors/collectives/state_file_backend.hpp"
#include "actors/memory/arena.hpp"
#include "actors/memory/state_file.hpp"
#include "actors/optimizer/file_updates.hpp"

namespace tandem::sim_test {

struct Plan;

class RankArrays {
 public:
  enum Kind : std::uint8_t { kMaster, kFirstMoment, kSecondMoment, kWeight, kGradient, kKinds };

  /// `inner` and `pool` outlive it.
  RankArrays(const Plan& plan, CollectiveBackend& inner, CpuPool& pool);

  /// Where the actors find it.
  [[nodiscard]] float* home(std::uint32_t unit, Kind kind) const noexcept {
    return reinterpret_cast<float*>(arrays_[unit][kind].home);
  }
  [[nodiscard]] float* memory(std::uint32_t unit, Kind kind) const noexcept {
    return reinterpret_cast<float*>(arrays_[unit][kind].memory);
  }
  /// Collectives on homes.
  [[nodiscard]] CollectiveBackend& backend() noexcept { return backend_; }
  /// Returns the runner of the unit's updates; null: the pool runs them.
  [[nodiscard]] UpdateRunner* runner_of(std::uint32_t unit) noexcept;

  /// Makes the file, with what is in memory.
  Task<> open(FileIo* io, std::string path);
  /// Into memory; no update may be under way.
  Task<> read_back();
  /// A copy of the unit's state, whose arrays are `buffers`.
  Task<HostState> state_of(std::uint32_t unit, UpdateBuffers buffers);

 private:
  struct Array {
    std::byte* home = nullptr;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] std::vector<StateFile::Transfer> transfers() const;

  const Plan& plan_;
  CpuPool& pool_;
  HostBuffer memory_;
  StateFile file_;
  std::size_t stage_bytes_;
  HostBuffer update_stages_;
  StateFileBackend backend_;
  FileUpdates updates_;
  std::vector<std::array<Array, kKinds>> arrays_;  // [unit]
};

}  // namespace tandem::sim_test
