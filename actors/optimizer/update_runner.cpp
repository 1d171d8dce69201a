#include "actors/optimizer/update_runner.hpp"

#include <algorithm>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

PoolUpdates::PoolUpdates(CpuPool* pool, std::size_t chunk_elements, std::size_t slice_chunks)
    : pool_(pool), chunk_elements_(chunk_elements), slice_chunks_(slice_chunks) {
  TANDEM_CHECK(pool != nullptr, "the optimizer works on a pool");
  if (slice_chunks_ == 0) {
    slice_chunks_ = 4 * static_cast<std::size_t>(pool->threads());
  }
}

Task<> PoolUpdates::run(UpdateSlice slice) {
  const bool learns = std::ranges::any_of(slice.unit->ranges, [&slice](const UpdateRange& range) {
    return range.begin < slice.end && slice.begin < range.end;
  });
  if (!learns) {
    co_return;  // The arrays of a frozen unit may lie in a file.
  }
  UpdatedUnit unit;
  if (!unused_.empty()) {
    unit = std::move(unused_.back());
    unused_.pop_back();
  }
  unit.buffers = on_host(slice.unit->buffers);
  unit.shadow = on_host(slice.unit->shadow);
  unit.ranges = slice.unit->ranges;
  co_await run_on(&unit, slice);
  unused_.push_back(std::move(unit));
}

Task<> PoolUpdates::run_on(const UpdatedUnit* unit, UpdateSlice slice) {
  const std::size_t chunk_elements = chunk_elements_;
  const std::size_t chunks = (slice.end - slice.begin + chunk_elements - 1) / chunk_elements;
  const auto update_chunk = [unit, &slice, chunk_elements](std::size_t chunk) {
    const std::size_t begin = slice.begin + chunk * chunk_elements;
    const std::size_t end = std::min(begin + chunk_elements, slice.end);
    if (slice.direction != nullptr) {
      write_direction(*unit, slice.direction_steps, *slice.direction, begin, end);
    } else {
      run_update_pass(slice.pass, *unit, slice.steps, begin, end);
    }
  };
  const std::size_t of_unit = (unit->elements() + chunk_elements - 1) / chunk_elements;
  co_await pool_->for_chunks(
      chunks, update_chunk,
      {.name = slice.name, .first = slice.begin / chunk_elements, .of = of_unit});
}

}  // namespace tandem
