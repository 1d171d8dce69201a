#include "engine/config/batch_triple.hpp"

#include <algorithm>
#include <string>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

std::string product(const BatchConfig& b, std::int64_t world_size) {
  return fmt::format(
      "train_micro_batch_size_per_gpu {} x gradient_accumulation_steps {} x world size {} = {}",
      b.micro_batch_size, b.accumulation_steps, world_size,
      b.micro_batch_size * b.accumulation_steps * world_size);
}

/// Which of the three to change: the one that was derived cannot be, so its partners are named.
std::string remedy(const BatchConfig& given, const BatchConfig& solved, std::int64_t world_size) {
  const std::int64_t total = solved.micro_batch_size * solved.accumulation_steps * world_size;
  if (given.micro_batch_size != 0 && given.accumulation_steps != 0) {
    return fmt::format("set train_batch_size to {}, or leave one of the three out", total);
  }
  const std::int64_t step = given.micro_batch_size != 0     ? given.micro_batch_size * world_size
                            : given.accumulation_steps != 0 ? given.accumulation_steps * world_size
                                                            : world_size;
  const std::int64_t nearest = std::max<std::int64_t>(1, given.train_batch_size / step) * step;
  return fmt::format("set train_batch_size to a multiple of {}, e.g. {}", step, nearest);
}

}  // namespace

void solve_batch(BatchConfig& batch, const BatchRule& rule) {
  const BatchConfig given = batch;
  const std::int64_t world = rule.world_size;
  std::int64_t& total = batch.train_batch_size;
  std::int64_t& micro = batch.micro_batch_size;
  std::int64_t& steps = batch.accumulation_steps;
  if (total == 0 && micro == 0) {
    if (!rule.required && steps == 0) {
      return;
    }
    throw user_error("config",
                     "{}: neither train_batch_size nor train_micro_batch_size_per_gpu is given{}; "
                     "give one of them",
                     rule.origin,
                     steps == 0 ? "" : " (gradient_accumulation_steps alone says no size)");
  }
  if (total == 0) {
    steps = steps == 0 ? 1 : steps;
    total = micro * steps * world;
  } else if (micro == 0) {
    steps = steps == 0 ? 1 : steps;
    micro = total / world / steps;
  } else if (steps == 0) {
    steps = total / micro / world;
  }
  if (micro < 1 || steps < 1 || total != micro * steps * world) {
    throw user_error("config", "{}: train_batch_size {} is not {}; {}", rule.origin, total,
                     product(batch, world), remedy(given, batch, world));
  }
}

}  // namespace tandem
