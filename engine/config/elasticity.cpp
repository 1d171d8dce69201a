#include "engine/config/elasticity.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>

#include <fmt/ranges.h>
#include <simdjson.h>

#include "engine/config/key_value.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using Numbers = std::vector<std::int64_t>;

/// The largest number with more divisors than any below it, up to `limit` and 720720: a batch of so
/// many micro-batches suits many numbers of ranks.
std::int64_t most_divisible(std::int64_t limit) {
  constexpr std::array<std::int64_t, 38> kNumbers = {
      1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
      180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
      10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
      166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};
  return *std::prev(std::ranges::upper_bound(kNumbers, limit));
}

/// Multiples of a micro-batch, or of all of them at once, up to the bound.
Numbers candidates(const Numbers& micro_batches, std::int64_t most_batch) {
  Numbers bases = micro_batches;
  std::int64_t common = 1;
  for (const std::int64_t micro : micro_batches) {
    common = common > most_batch ? common : std::lcm(common, micro);
  }
  bases.push_back(common);
  Numbers batches;
  for (const std::int64_t base : bases) {
    if (base <= most_batch) {
      batches.push_back(base * most_divisible(most_batch / base));
    }
  }
  return batches;
}

/// Numbers from `least` to `most` that share `batch` out in whole micro-batches; ascending.
Numbers sharing_worlds(std::int64_t batch, const Numbers& micro_batches, std::int64_t least,
                       std::int64_t most) {
  Numbers worlds;
  for (const std::int64_t micro : micro_batches) {
    const std::int64_t count = batch % micro == 0 ? batch / micro : 0;
    for (std::int64_t low = 1; low * low <= count; ++low) {
      for (const std::int64_t divisor : {low, count / low}) {
        if (count % low == 0 && divisor >= least && divisor <= most) {
          worlds.push_back(divisor);
        }
      }
    }
  }
  std::ranges::sort(worlds);
  const auto doubled = std::ranges::unique(worlds);
  worlds.erase(doubled.begin(), doubled.end());
  return worlds;
}

/// The candidate that most numbers can share.
ElasticBatch widest(const Numbers& micro_batches, std::int64_t most_batch, std::int64_t least,
                    std::int64_t most, bool prefer_larger) {
  ElasticBatch best;
  for (const std::int64_t batch : candidates(micro_batches, most_batch)) {
    Numbers worlds = sharing_worlds(batch, micro_batches, least, most);
    const bool is_preferred = prefer_larger ? batch > best.batch : batch < best.batch;
    if (worlds.size() > best.worlds.size() ||
        (!worlds.empty() && worlds.size() == best.worlds.size() && is_preferred)) {
      best.batch = batch;
      best.worlds = std::move(worlds);
    }
  }
  return best;
}

ElasticBatch by_hosts(const ElasticRule& rule, std::int64_t world) {
  const std::int64_t here = rule.ranks_per_host;
  const std::int64_t smallest = *std::ranges::min_element(rule.micro_batches);
  const std::int64_t most_batch = rule.most_batch / here;
  const std::int64_t most_hosts = rule.most_ranks / here;
  ElasticBatch best =
      widest(rule.micro_batches, most_batch, std::max<std::int64_t>(1, rule.least_ranks / here),
             most_hosts == 0 ? most_batch / smallest : most_hosts, rule.prefer_larger);
  best.batch *= here;
  for (std::int64_t& hosts : best.worlds) {
    hosts *= here;
  }
  if (std::ranges::binary_search(best.worlds, world)) {
    return best;
  }
  Numbers batches;
  for (const std::int64_t micro : rule.micro_batches) {
    batches.push_back(rule.most_batch / (micro * world) * (micro * world));
  }
  const auto [least, most] = std::ranges::minmax(batches);
  return {.batch = rule.prefer_larger ? most : least, .worlds = {world}};
}

std::string list_of(const Numbers& numbers) {
  constexpr std::size_t kMost = 24;
  const std::size_t shown = std::min(numbers.size(), kMost);
  return fmt::format("{}{}",
                     fmt::join(numbers.begin(), numbers.begin() + std::ptrdiff_t(shown), ", "),
                     numbers.size() > shown ? fmt::format(", ... {}", numbers.back()) : "");
}

/// The block's rows as JSON.
class Block {
 public:
  explicit Block(std::span<const KeyRow> rows) : rows_(rows) {}

  template <class Value>
  [[nodiscard]] Value get(std::string_view name) {
    Value value{};
    TANDEM_CHECK(element(name).get(value) == simdjson::SUCCESS, "rows have checked its type");
    return value;
  }
  /// None where it is no list of integers above 0.
  [[nodiscard]] std::optional<Numbers> counts(std::string_view name) {
    Numbers numbers;
    for (const simdjson::dom::element one : simdjson::dom::array(element(name))) {
      std::int64_t number = 0;
      constexpr std::int64_t kMost = 2147483647;
      if (one.get(number) != simdjson::SUCCESS || number < 1 || number > kMost) {
        return std::nullopt;
      }
      numbers.push_back(number);
    }
    return numbers.empty() ? std::nullopt : std::optional(std::move(numbers));
  }
  [[nodiscard]] std::string text(std::string_view name) const {
    const auto row = std::ranges::find(rows_, fmt::format("elasticity.{}", name), &KeyRow::path);
    TANDEM_CHECK(row != rows_.end(), "the table has the block's keys");
    return json_of(*row);
  }

 private:
  simdjson::dom::element element(std::string_view name) {
    simdjson::dom::element value;
    TANDEM_CHECK(parser_.parse(text(name)).get(value) == simdjson::SUCCESS, "a row's text is JSON");
    return value;
  }
  std::span<const KeyRow> rows_;
  simdjson::dom::parser parser_;
};

ElasticRule rule_of(const Config& config, Block& block) {
  for (const char* name : {"max_train_batch_size", "micro_batch_sizes"}) {
    if (std::ranges::find(config.keys, fmt::format("elasticity.{}", name), &KeyReport::path) ==
        config.keys.end()) {
      throw user_error("config",
                       "{}: elasticity.{} is missing; elasticity needs it, or set "
                       "elasticity.enabled to false",
                       config.origin, name);
    }
  }
  const auto micro_batches = block.counts("micro_batch_sizes");
  if (!micro_batches) {
    throw user_error("config",
                     "{}: elasticity.micro_batch_sizes is {}; write a list of integers above 0",
                     config.origin, block.text("micro_batch_sizes"));
  }
  const auto version = block.get<double>("version");
  if (version != 0.1 && version != 0.2) {
    throw user_error("config", "{}: elasticity.version is {}; it must be 0.1 or 0.2", config.origin,
                     version);
  }
  ElasticRule rule{.most_batch = block.get<std::int64_t>("max_train_batch_size"),
                   .micro_batches = *micro_batches,
                   .least_ranks = block.get<std::int64_t>("min_gpus"),
                   .most_ranks = block.get<std::int64_t>("max_gpus"),
                   .ranks_per_host = block.get<std::int64_t>("num_gpus_per_node"),
                   .prefer_larger = block.get<bool>("prefer_larger_batch"),
                   .by_hosts = version == 0.2};
  if (rule.most_ranks < rule.least_ranks) {
    throw user_error("config",
                     "{}: elasticity.min_gpus is {}, above elasticity.max_gpus {}; swap "
                     "them",
                     config.origin, rule.least_ranks, rule.most_ranks);
  }
  // Ranks that share rows count as one.
  const std::int64_t sharers = config.sequence_parallel_size;
  if (rule.by_hosts && rule.ranks_per_host % sharers != 0) {
    throw user_error("config",
                     "{}: elasticity.num_gpus_per_node is {}, and sequence_parallel_size {} does "
                     "not divide it; use a divisor",
                     config.origin, rule.ranks_per_host, sharers);
  }
  rule.ranks_per_host /= rule.by_hosts ? sharers : 1;
  rule.least_ranks = (rule.least_ranks + sharers - 1) / sharers;
  rule.most_ranks = rule.most_ranks / sharers;
  return rule;
}

void set(std::int64_t& field, std::string_view path, std::int64_t computed, bool ignored,
         Config& config) {
  const auto given = std::ranges::find(config.keys, path, &KeyReport::path);
  if (field != 0 && field != computed && !ignored) {
    throw user_error("config",
                     "{}: {} is {}, and elasticity makes it {}; leave it out, or set "
                     "elasticity.ignore_non_elastic_batch_info to true",
                     config.origin, path, field, computed);
  }
  field = computed;
  if (given != config.keys.end()) {
    given->status = KeyStatus::kNotApplicable;
    given->reason = "elasticity decides";
  }
}

}  // namespace

ElasticBatch solve_elastic(const ElasticRule& rule, std::int64_t world, std::string_view origin) {
  const std::int64_t largest = *std::ranges::max_element(rule.micro_batches);
  const std::int64_t most_batch =
      rule.by_hosts ? rule.most_batch / rule.ranks_per_host : rule.most_batch;
  if (largest > most_batch) {
    throw user_error("config",
                     "{}: elasticity.micro_batch_sizes has {}, above max_train_batch_size {}{}; "
                     "leave it out, or raise the limit",
                     origin, largest, rule.most_batch,
                     most_batch == rule.most_batch
                         ? ""
                         : fmt::format(" for each of num_gpus_per_node {}", rule.ranks_per_host));
  }
  ElasticBatch made = rule.by_hosts ? by_hosts(rule, world)
                                    : widest(rule.micro_batches, most_batch, rule.least_ranks,
                                             rule.most_ranks, rule.prefer_larger);
  if (made.batch == 0 || !std::ranges::binary_search(made.worlds, world)) {
    throw user_error(
        "config",
        "{}: elasticity has no batch for {} ranks: {}; start another number of ranks, or "
        "change elasticity",
        origin, world,
        made.batch == 0
            ? fmt::format("none up to max_train_batch_size {} can be shared", rule.most_batch)
            : fmt::format("{} can be shared by {}", made.batch, list_of(made.worlds)));
  }
  for (const std::int64_t micro : rule.micro_batches) {
    if (made.batch / world % micro == 0) {
      made.micro_batch = std::max(made.micro_batch, micro);
    }
  }
  return made;
}

void apply_elasticity(Config& config, std::span<const KeyRow> rows) {
  Block block(rows);
  if (!block.get<bool>("enabled")) {
    for (KeyReport& entry : config.keys) {
      if (entry.path.starts_with("elasticity.") && entry.path != "elasticity.enabled" &&
          entry.status == KeyStatus::kApplied) {
        entry.status = KeyStatus::kNotApplicable;
        entry.reason = "elasticity.enabled is false";
      }
    }
    return;
  }
  const ElasticBatch made =
      solve_elastic(rule_of(config, block), config.data_ranks(), config.origin);
  const bool ignored = block.get<bool>("ignore_non_elastic_batch_info");
  BatchConfig& batch = config.batch;
  set(batch.train_batch_size, "train_batch_size", made.batch, ignored, config);
  set(batch.micro_batch_size, "train_micro_batch_size_per_gpu", made.micro_batch, ignored, config);
  set(batch.accumulation_steps, "gradient_accumulation_steps",
      made.batch / made.micro_batch / config.data_ranks(), ignored, config);
}

}  // namespace tandem
