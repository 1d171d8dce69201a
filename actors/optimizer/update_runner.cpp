#include "actors/optimizer/update_runner.hpp"

#include <algorithm>

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
  const std::size_t chunk_elements = chunk_elements_;
  const std::size_t chunks = (slice.end - slice.begin + chunk_elements - 1) / chunk_elements;
  const auto update_chunk = [&slice, chunk_elements](std::size_t chunk) {
    const std::size_t begin = slice.begin + chunk * chunk_elements;
    const std::size_t end = std::min(begin + chunk_elements, slice.end);
    if (slice.direction != nullptr) {
      write_direction(*slice.unit, slice.direction_steps, *slice.direction, begin, end);
    } else {
      run_update_pass(slice.pass, *slice.unit, slice.steps, begin, end);
    }
  };
  const std::size_t of_unit = (slice.unit->elements() + chunk_elements - 1) / chunk_elements;
  co_await pool_->for_chunks(
      chunks, update_chunk,
      {.name = slice.name, .first = slice.begin / chunk_elements, .of = of_unit});
}

}  // namespace tandem
