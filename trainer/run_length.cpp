#include "trainer/run_length.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "engine/data/loader.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

std::string RunLength::text() const {
  const double epochs = static_cast<double>(steps) / static_cast<double>(per_epoch);
  return fmt::format("{} steps = {:.4g} epoch{} of {}", steps, epochs, epochs == 1 ? "" : "s",
                     per_epoch);
}

RunLength run_length(const Config& config, std::int64_t records, std::int64_t steps,
                     double epochs) {
  const std::int64_t batches =
      batches_per_epoch(records, {.sampler = {.world_size = static_cast<int>(config.data_ranks())},
                                  .micro_batch = config.batch.micro_batch_size,
                                  .accumulation = config.batch.accumulation_steps,
                                  .drop_last = config.dataloader_drop_last});
  // An epoch without a step is refused where the loader is made.
  const std::int64_t per_epoch =
      std::max<std::int64_t>(1, batches / config.batch.accumulation_steps);
  return {steps > 0 ? steps : steps_of_epochs(epochs, per_epoch), per_epoch};
}

}  // namespace tandem
