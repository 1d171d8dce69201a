#include "tests/sim/rank_arrays.hpp"

#include <algorithm>

#include "runtime/util/round_up.hpp"
#include "tests/sim/training_rank.hpp"

namespace tandem::sim_test {
namespace {

/// Returns the bytes of an array, in whole blocks of the file.
std::size_t array_bytes(const Plan& plan, std::uint32_t unit) {
  return round_up(plan.layout(unit).shard_elements * sizeof(float), StateFile::kAlignment);
}

bool is_in_file(Home home, RankArrays::Kind kind) {
  return home == Home::kAllInFile || (home == Home::kStateInFile && kind < RankArrays::kWeight);
}

std::size_t largest_array(const Plan& plan) {
  std::size_t largest = 0;
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    largest = std::max(largest, array_bytes(plan, u));
  }
  return largest;
}

/// Returns the bytes of all arrays, or of those in the file.
std::size_t bytes_of_arrays(const Plan& plan, bool only_file) {
  std::size_t bytes = 0;
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    for (std::uint8_t kind = 0; kind < RankArrays::kKinds; ++kind) {
      const bool counts = !only_file || is_in_file(plan.homes[u], RankArrays::Kind{kind});
      bytes += counts ? array_bytes(plan, u) : 0;
    }
  }
  return bytes;
}

}  // namespace

RankArrays::RankArrays(const Plan& plan, CollectiveBackend& inner, CpuPool& pool)
    : plan_(plan),
      pool_(pool),
      memory_(bytes_of_arrays(plan, false)),
      file_(bytes_of_arrays(plan, true)),
      stage_bytes_(kKinds * largest_array(plan)),
      update_stages_(FileUpdates::kSlices * stage_bytes_),
      backend_({.inner = &inner,
                .file = &file_,
                .shard_stage = inner.allocate(largest_array(plan)),
                .accumulator_stage = inner.allocate(largest_array(plan)),
                .name_of = [](const void*) { return std::string("weights or gradients"); }}),
      updates_({.file = &file_,
                .pool = &pool,
                .chunk_elements = kNormBlock,
                .slice_chunks = FileUpdates::kElementsAlignment / kNormBlock,
                .stages = update_stages_.data(),
                .stage_bytes = stage_bytes_}),
      arrays_(plan.units) {
  std::byte* memory = memory_.data();
  std::byte* in_file = file_.data();
  for (std::uint32_t u = 0; u < plan.units; ++u) {
    const std::size_t bytes = array_bytes(plan, u);
    for (std::uint8_t kind = 0; kind < kKinds; ++kind) {
      const bool filed = is_in_file(plan.homes[u], Kind{kind});
      arrays_[u][kind] = {.home = filed ? in_file : memory, .memory = memory, .bytes = bytes};
      in_file += filed ? bytes : 0;
      memory += bytes;
    }
  }
}

UpdateRunner* RankArrays::runner_of(std::uint32_t unit) noexcept {
  return plan_.homes[unit] == Home::kMemory ? nullptr : &updates_;
}

std::vector<StateFile::Transfer> RankArrays::transfers() const {
  std::vector<StateFile::Transfer> all;
  for (const auto& unit : arrays_) {
    for (const Array& array : unit) {
      if (array.home != array.memory) {
        all.push_back({array.home, array.memory, array.bytes});
      }
    }
  }
  return all;
}

Task<> RankArrays::open(FileIo* io, std::string path) {
  if (file_.size_bytes() > 0) {
    co_await file_.open({.io = io,
                         .pool = &pool_,
                         .path = std::move(path),
                         .piece_bytes = 2 * StateFile::kAlignment});
    co_await file_.write(transfers());
  }
}

Task<> RankArrays::read_back() { return file_.read(transfers()); }

Task<HostState> RankArrays::state_of(std::uint32_t unit, UpdateBuffers buffers) {
  HostState state{.buffers = buffers, .memory = {}};
  if (plan_.homes[unit] == Home::kMemory) {
    co_return state;
  }
  std::vector<StateFile::Transfer> reads;
  for (const Kind kind : {kMaster, kFirstMoment, kSecondMoment}) {
    const Array& array = arrays_[unit][kind];
    reads.push_back({array.home, state.memory.emplace_back(array.bytes).data(), array.bytes});
  }
  co_await file_.read(std::move(reads));
  state.buffers.master = state.memory[kMaster].as<float>();
  for (const Kind kind : {kFirstMoment, kSecondMoment}) {
    state.buffers.state[kind - kFirstMoment] = state.memory[kind].data();
  }
  co_return state;
}

}  // namespace tandem::sim_test
