#include "engine/config/batch_triple.hpp"

#include <algorithm>
#include <string>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// Far above every size that is accepted, and never an overflow.
constexpr std::int64_t kTotalMax = 2147483647;  // as a train_batch_size that is given
constexpr std::int64_t kProductMax = std::int64_t{1} << 53;

std::int64_t times(const BatchConfig& b, std::int64_t world_size) {
  const double wide = static_cast<double>(b.micro_batch_size) *
                      static_cast<double>(b.accumulation_steps) * static_cast<double>(world_size);
  return wide < static_cast<double>(kProductMax)
             ? b.micro_batch_size * b.accumulation_steps * world_size
             : kProductMax;
}

std::string product(const BatchConfig& b, const BatchRule& rule) {
  return fmt::format(
      "train_micro_batch_size_per_gpu {} x gradient_accumulation_steps {} x {} {} = {}",
      b.micro_batch_size, b.accumulation_steps,
      rule.sharers == 1 ? "world size" : fmt::format("groups of {} ranks", rule.sharers),
      rule.world_size, times(b, rule.world_size));
}

std::string shown(std::int64_t given) { return given == 0 ? "none" : std::to_string(given); }

/// Names those of the three to change: the one that was derived cannot be, so it is its partners.
std::string remedy(const BatchConfig& given, const BatchConfig& solved, std::int64_t world_size) {
  const std::int64_t total = times(solved, world_size);
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
    if (!rule.required) {
      return;
    }
    throw user_error("config",
                     "{}: neither train_batch_size ({}) nor train_micro_batch_size_per_gpu ({}) is "
                     "given, with gradient_accumulation_steps {}; give one of them",
                     rule.origin, shown(total), shown(micro), shown(steps));
  }
  if (total == 0) {
    steps = steps == 0 ? 1 : steps;
    total = times(batch, world);
  } else if (micro == 0) {
    steps = steps == 0 ? 1 : steps;
    micro = total / world / steps;
  } else if (steps == 0) {
    steps = total / micro / world;
  }
  if (total > kTotalMax) {
    throw user_error("config", "{}: {}, above {}; make them smaller", rule.origin,
                     product(batch, rule), kTotalMax);
  }
  if (micro < 1 || steps < 1 || total != times(batch, world)) {
    throw user_error("config", "{}: train_batch_size {} is not {}; {}", rule.origin, total,
                     product(batch, rule), remedy(given, batch, world));
  }
}

}  // namespace tandem
