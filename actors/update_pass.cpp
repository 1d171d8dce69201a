// actors/update_pass.cpp — see update_pass.hpp.
#include "actors/update_pass.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "actors/kernels/copy.hpp"
#include "actors/kernels/reduce.hpp"

namespace tandem {

namespace {

constexpr std::size_t kKeptBlock = 4096;

/// Copies elements [begin, end) of what is sent out and is part of the master. What is kept is seldom looked at again.
void copy_kept(const UpdatedUnit& unit, bool to_twin, std::size_t begin, std::size_t end) {
  const bool half = unit.buffers.weight_is_half();
  const std::size_t size = half ? bytes_of(unit.buffers.weight_type) : sizeof(float);
  auto* home = static_cast<std::byte*>(half ? unit.buffers.weight : unit.buffers.master);
  auto* twin = static_cast<std::byte*>(half ? unit.twin.weight : unit.twin.master);
  const std::size_t bytes = (end - begin) * size;
  if (to_twin) {
    copy_past_caches(twin + begin * size, home + begin * size, bytes);
  } else {
    std::memcpy(home + begin * size, twin + begin * size, bytes);
  }
}

void update_ahead(const UpdatedUnit& unit, const UpdateStep& step, std::size_t begin,
                  std::size_t end) {
  UpdateBuffers out = unit.buffers;
  for (std::size_t i = 0; i < 2; ++i) {
    out.from.state[i] = unit.buffers.state[i];
    out.state[i] = unit.twin.state[i];
    out.from.scale[i] = unit.buffers.scale[i];
    out.scale[i] = unit.twin.scale[i];
  }
  if (!unit.weight_is_master()) {
    out.from.master = unit.buffers.master;
    out.master = unit.twin.master;
  }
  if (!unit.keeps_weight()) {
    apply_update(step, out, begin, end);
    return;
  }
  // Block by block, so that what is kept comes from memory once and the update finds it in the cache.
  for (std::size_t first = begin; first < end; first += kKeptBlock) {
    const std::size_t last = std::min(first + kKeptBlock, end);
    copy_kept(unit, true, first, last);
    apply_update(step, out, first, last);
  }
}

void update_again(const UpdatedUnit& unit, const UpdateStep& step, std::size_t begin,
                  std::size_t end) {
  UpdateBuffers in_place = unit.buffers;
  if (unit.weight_is_master()) {
    in_place.from.master = unit.twin.master;
  } else if (unit.keeps_weight()) {
    in_place.from.weight = unit.twin.weight;
  }
  apply_update(step, in_place, begin, end);
}

void go_back(const UpdatedUnit& unit, std::size_t begin, std::size_t end) {
  const UpdateBuffers& home = unit.buffers;
  if (unit.keeps_weight()) {
    copy_kept(unit, false, begin, end);
  } else {
    cast(home.master, DType::kF32, home.weight, home.weight_type, begin, end);
  }
}

}  // namespace

void run_update_pass(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                     std::size_t begin, std::size_t end) {
  for (const UpdateRange& range : unit.ranges) {
    const std::size_t first = std::max(range.begin, begin);
    const std::size_t last = std::min(range.end, end);
    if (first >= last) {
      continue;
    }
    switch (pass) {
      case UpdatePass::kInPlace:
        apply_update(steps[range.group], unit.buffers, first, last);
        break;
      case UpdatePass::kAhead:
        update_ahead(unit, steps[range.group], first, last);
        break;
      case UpdatePass::kAgain:
        update_again(unit, steps[range.group], first, last);
        break;
      case UpdatePass::kBack:
        go_back(unit, first, last);
        break;
    }
  }
}

void commit_pass_ahead(UpdatedUnit& unit) noexcept {
  for (std::size_t i = 0; i < 2; ++i) {
    std::swap(unit.buffers.state[i], unit.twin.state[i]);
    std::swap(unit.buffers.scale[i], unit.twin.scale[i]);
  }
  if (!unit.weight_is_master()) {
    std::swap(unit.buffers.master, unit.twin.master);
  }
}

}  // namespace tandem
