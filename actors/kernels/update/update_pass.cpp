#include "actors/kernels/update/update_pass.hpp"

#include <algorithm>
#include <cstring>

#include "actors/kernels/copy.hpp"
#include "actors/kernels/reduce.hpp"

namespace tandem {

namespace {

constexpr std::size_t kBackupBlock = 4096;

/// Copies elements [begin, end) of the model weight and is part of the master. The backup is
/// seldom looked at again.
void copy_backup(const UpdatedUnit& unit, bool to_shadow, std::size_t begin, std::size_t end) {
  const std::size_t size =
      unit.weight_is_master() ? sizeof(float) : bytes_of(unit.buffers.weight_type);
  auto* home = static_cast<std::byte*>(unit.model_weight()) + begin * size;
  auto* shadow = static_cast<std::byte*>(unit.backup()) + begin * size;
  const std::size_t bytes = (end - begin) * size;
  if (to_shadow) {
    copy_past_caches(shadow, home, bytes);
  } else {
    std::memcpy(home, shadow, bytes);
  }
}

void update_speculatively(const UpdatedUnit& unit, const UpdateStep& step, std::size_t begin,
                          std::size_t end) {
  const PassBuffers pass(UpdatePass::kSpeculative, unit);
  if (!unit.backs_up_weight()) {
    apply_update(step, pass.buffers, begin, end);
    return;
  }
  // Block by block, so that the backup comes from memory once and the update finds it in the
  // cache.
  for (std::size_t first = begin; first < end; first += kBackupBlock) {
    const std::size_t last = std::min(first + kBackupBlock, end);
    copy_backup(unit, true, first, last);
    apply_update(step, pass.buffers, first, last);
  }
}

void go_back(const UpdatedUnit& unit, std::size_t begin, std::size_t end) {
  const UpdateBuffers& home = unit.buffers;
  if (unit.backs_up_weight()) {
    copy_backup(unit, false, begin, end);
  } else {
    cast(home.master, DType::kF32, home.weight, home.weight_type, begin, end);
  }
}

}  // namespace

void run_update_pass(UpdatePass pass, const UpdatedUnit& unit, const UpdateStep* steps,
                     std::size_t begin, std::size_t end) {
  visit_ranges(
      unit.ranges, begin, end, [&](const UpdateRange& range, std::size_t first, std::size_t last) {
        switch (pass) {
          case UpdatePass::kInPlace:
          case UpdatePass::kRedo:
            return apply_update(steps[range.group], PassBuffers(pass, unit).buffers, first, last);
          case UpdatePass::kSpeculative:
            return update_speculatively(unit, steps[range.group], first, last);
          case UpdatePass::kRollback:
            return go_back(unit, first, last);
        }
      });
}

}  // namespace tandem
