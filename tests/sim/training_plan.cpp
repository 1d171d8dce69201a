#include "tests/sim/training_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "actors/kernels/reduce.hpp"
#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/memory/state_file.hpp"
#include "engine/layout/update_config.hpp"

namespace tandem::sim_test {
namespace {

template <class T>
T one_of(Random& random, std::initializer_list<T> values) {
  return values.begin()[random.below(values.size())];
}

void draw_sizes(Plan& plan, Random& random) {
  plan.hosts = static_cast<std::uint32_t>(1 + random.below(3));
  plan.ranks = plan.hosts * static_cast<std::uint32_t>((plan.hosts == 1 ? 2 : 1) + random.below(2));
  plan.layers = static_cast<std::uint32_t>(1 + random.below(4));
  plan.has_unused = random.chance(0.3);
  plan.steps = 1 + random.below(4);
  plan.micro_steps = 1 + random.below(3);
  plan.save_every = 1 + random.below(3);
  plan.save_steps = random.below(3);
  for (std::uint32_t u = 0; u < plan.units(); ++u) {
    plan.elements.push_back(random.chance(0.15) ? 2000 + random.below(6'000)
                                                : 10 + random.below(1200));
  }
}

void draw_schedule(Plan& plan, Random& random) {
  EngineOptions& engine = plan.engine;
  engine.overlap = one_of(random, {Overlap::kOff, Overlap::kComm, Overlap::kOffload, Overlap::kFull,
                                   Overlap::kFull, Overlap::kFull});
  engine.speculate = one_of(random, {Speculate::kOn, Speculate::kOn, Speculate::kAuto});
  engine.inflight_buckets = static_cast<int>(1 + random.below(plan.units()));
  engine.forced_misses = random.chance(0.3) ? 0.5 : 0;
  engine.gather_slots = one_of(random, {0, 1, 1, 2});
  plan.shares_early = random.chance(0.5);
  plan.stage = one_of(random, {0, 1, 2, 3, 3, 3});
  plan.clipping = random.chance(0.7) ? one_of(random, {0.05, 0.3, 2.0}) : 0;
  plan.loss_scale = one_of(random, {1.0, 1.0, 16.0});
  if (random.chance(0.25)) {
    const std::size_t unit = random.below(plan.segments());
    plan.bad = {.step = random.below(plan.steps),
                .micro_batch = random.below(plan.micro_batches()),
                .unit = unit,
                .element = random.below(plan.elements[unit])};
  }
}

/// Where state, weights and boundaries lie.
void draw_places(Plan& plan, Random& random) {
  EngineOptions& engine = plan.engine;
  plan.on_device = random.chance(0.5);
  engine.device = plan.on_device ? DeviceKind::kSim : DeviceKind::kCpu;
  engine.activation_checkpointing = random.chance(0.7);
  engine.activation_offload = random.chance(0.7) ? one_of(random, {0.3, 1.0}) : 0.0;
  engine.nvme.path = ".";
  engine.nvme.block_bytes = 2 * StateFile::kAlignment;
  const bool elsewhere = random.chance(0.6);
  for (std::uint32_t u = 0; u < plan.units(); ++u) {
    engine.placements.push_back(
        !elsewhere       ? StatePlacement::kHost
        : plan.on_device ? one_of(random, {StatePlacement::kHost, StatePlacement::kDevice,
                                           StatePlacement::kStreamed})
                         : one_of(random, {StatePlacement::kHost, StatePlacement::kNvme}));
  }
  if (!plan.on_device && plan.stage == 3 && random.chance(0.4)) {
    engine.nvme.weights_in_memory = random.below(3000);
  }
}

}  // namespace

Plan draw_plan(Random& random) {
  Plan plan;
  draw_sizes(plan, random);
  draw_schedule(plan, random);
  draw_places(plan, random);
  Random of_disks = random.fork("disks");
  plan.keep = 1 + static_cast<int>(of_disks.below(2));
  plan.own_disks = plan.hosts > 1 && of_disks.chance(0.6);
  return plan;
}

Disks Plan::disks() const {
  Disks disks = Disks::shared(ranks);
  disks.hosts.resize(disk_count());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    disks.of_rank[rank] = disk_of(rank);
    disks.hosts[disk_of(rank)] = own_disks ? fmt::format("host {}", disk_of(rank)) : "";
  }
  return disks;
}

std::vector<std::string> Plan::host_names() const {
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; hosts > 1 && rank < ranks; ++rank) {
    names.push_back(fmt::format("host {}", rank / (ranks / hosts)));
  }
  return names;
}

Model Plan::model() const {
  Model model;
  for (std::uint32_t u = 0; u < units(); ++u) {
    const std::string name = fmt::format("unit {}", u);
    model.units.push_back(
        {.name = name, .parameters = {{name, {static_cast<std::int64_t>(elements[u])}}}});
  }
  for (std::size_t s = 0; s < segments(); ++s) {
    SegmentSpec segment{.name = fmt::format("segment {}", s), .weights = {{s, 0}}};
    if (s + 1 == segments()) {
      segment.weights.push_back({0, 0});
    }
    model.segments.push_back(std::move(segment));
  }
  model.source = [](const ParameterSpec& parameter, std::int64_t begin, std::int64_t end,
                    float* out) {
    const std::size_t unit = std::stoul(parameter.name.substr(5));
    for (std::int64_t i = begin; i < end; ++i) {
      out[i - begin] = initial_weight(unit, i);
    }
  };
  return model;
}

Config Plan::config() const {
  return parse_config(
      fmt::format(R"({{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": {},
        "gradient_clipping": {}, "zero_optimization": {{"stage": {},
          "stage3_param_persistence_threshold": 0}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-2, "weight_decay": 0.1}}}}}})",
                  micro_steps, clipping, stage),
      "the plan", ranks);
}

TrainStep::Update Plan::update_after(std::int64_t applied) const {
  const UpdateConfig adam = update_config(config().optimizer);
  return {.groups = {adam},
          .applied_step = applied + 1,
          .gradient_clipping = clipping,
          .loss_scale = loss_scale};
}

int batch_of(std::uint64_t number) { return static_cast<int>(number * 7 % 251); }

float initial_weight(std::size_t unit, std::int64_t i) {
  return std::sin(static_cast<float>(static_cast<std::int64_t>(unit) * 1000 + i % 1000));
}

float gradient_of(const Plan& plan, MicroBatchId id, std::size_t s, std::size_t unit,
                  std::size_t element, float weight) {
  if (plan.bad && plan.bad->step == id.step && plan.bad->micro_batch == id.number &&
      plan.bad->unit == unit && plan.bad->element == element) {
    return std::numeric_limits<float>::infinity();
  }
  const auto batch = static_cast<float>((id.step * 5 + id.number * 3) % 11);
  const float value = weight * 0.37F + batch * 0.1F + static_cast<float>(s) * 0.013F;
  return value * static_cast<float>(plan.loss_gradient());
}

float loss_of(MicroBatchId id) {
  return static_cast<float>(id.step) + static_cast<float>(id.number) * 0.25F;
}

float boundary_value(MicroBatchId id, std::size_t b, std::size_t i) {
  return static_cast<float>(id.step * 100 + id.number * 10 + b) + static_cast<float>(i) * 0.001F;
}

std::size_t boundary_elements(MicroBatchId id, std::size_t b) {
  return 500 + (id.step * 3 + id.number + b) % 7 * 300;
}

std::vector<std::size_t> users_of(const Plan& plan, std::size_t unit) {
  if (unit == 0) {
    return {plan.segments() - 1, 0};
  }
  return unit < plan.segments() ? std::vector<std::size_t>{unit} : std::vector<std::size_t>();
}

Reference::Reference(const Plan& plan) {
  after.emplace_back();
  applied.push_back(0);
  for (std::size_t u = 0; u < plan.units(); ++u) {
    const auto count = static_cast<std::int64_t>(plan.elements[u]);
    std::vector<float> master(plan.elements[u]);
    for (std::int64_t i = 0; i < count; ++i) {
      master[static_cast<std::size_t>(i)] = initial_weight(u, i);
    }
    const std::vector<float> zeros(master.size());
    after.back().push_back({std::move(master), zeros, zeros});
  }
  for (std::uint64_t step = 0; step < plan.steps; ++step) {
    make_step(plan, step);
  }
}

void Reference::make_step(const Plan& plan, std::uint64_t step) {
  std::vector<Arrays> state = after.back();
  std::vector<std::vector<float>> gradients;
  GradientNorm norm;
  for (std::size_t u = 0; u < plan.units(); ++u) {
    const std::vector<std::size_t> users = users_of(plan, u);
    std::vector<float>& sum = gradients.emplace_back(plan.elements[u]);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      for (std::uint64_t number = 0; number < plan.micro_batches(); ++number) {
        float one = 0;
        for (const std::size_t s : users) {
          const float part = gradient_of(plan, {step, number}, s, u, i, state[u][0][i]);
          one = s == users.front() ? part : one + part;
        }
        sum[i] = number == 0 ? one : sum[i] + one;
      }
    }
    add_norm(sum.data(), DType::kF32, 0, sum.size(), norm);
  }
  const TrainStep::Update update = plan.update_after(applied.back());
  const double value = std::sqrt(norm.sum_of_squares.value()) / plan.loss_scale;
  const bool is_skipped = norm.first_bad_element >= 0;
  norms.push_back(is_skipped ? std::numeric_limits<double>::quiet_NaN() : value);
  if (!is_skipped) {
    const double clip = plan.clipping > 0 ? std::min(1.0, plan.clipping / (value + 1e-6)) : 1.0;
    const UpdateStep constants =
        UpdateStep::make(update.groups[0], update.applied_step, clip * (1 / plan.loss_scale));
    for (std::size_t u = 0; u < plan.units(); ++u) {
      auto& [master, first, second] = state[u];
      apply_update(constants,
                   {.master = master.data(),
                    .state = {first.data(), second.data()},
                    .gradient = gradients[u].data()},
                   0, master.size());
    }
  }
  applied.push_back(applied.back() + (is_skipped ? 0 : 1));
  after.push_back(std::move(state));
}

}  // namespace tandem::sim_test
