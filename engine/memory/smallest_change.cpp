// engine/memory/smallest_change.cpp — the search of memory_check.hpp: settings of a run, each with
// levels from mild to harsh.
//
// Changes that cost only time come before changes of numbers, and these before changes of what is
// trained. Files on a local disk and more machines are tried if the caller allows them. A change
// has at most four parts; all combinations are tried, and the smallest sum of costs wins. The
// search plans a slim copy of the model (one parameter per unit), which takes microseconds, so that
// it can try thousands of combinations; the change that it finds is planned once more with the
// model itself.
#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "engine/config/config.hpp"
#include "engine/memory/memory_check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kMostParts = 4;
constexpr int kCostOfAPart = 2;  // one change is less than two of the same cost

struct Level {
  int cost = 0;
  std::string text;
  std::function<void(PlanInput&)> apply;
};
using Setting = std::vector<Level>;

Setting shadows_setting(const PlanInput& now) {
  Setting setting;
  if (now.shadows_chosen || now.shape.shadows.units == 0) {
    return setting;  // chosen shadows take free memory only
  }
  for (std::size_t shadows = now.shape.shadows.units / 2; shadows > 0; shadows /= 2) {
    setting.push_back({1, fmt::format("--inflight_buckets {}", shadows),
                       [shadows](PlanInput& in) { in.shape.shadows.units = shadows; }});
  }
  setting.push_back({2, "--overlap offload", [](PlanInput& in) { in.shape.shadows = {}; }});
  return setting;
}

/// By halves, and one record at a time, which is there for every batch.
Setting micro_batch_setting(const PlanInput& now) {
  Setting setting;
  int cost = 3;
  for (std::int64_t parts = 2; parts <= now.rows; parts *= 2) {
    parts = now.rows % parts == 0 ? parts : now.rows;
    const std::int64_t rows = now.rows / parts;
    const std::int64_t steps = now.shape.micro_steps * parts;
    if (steps > std::numeric_limits<int>::max()) {
      break;
    }
    setting.push_back({cost++,
                       fmt::format("--batch_size {} --gradient_accumulation_steps {}", rows, steps),
                       [rows, steps](PlanInput& in) {
                         in.rows = rows;
                         in.shape.micro_steps = static_cast<int>(steps);
                       }});
  }
  return setting;
}

Setting stage_setting(const PlanInput& now) {
  Setting setting;
  for (std::int64_t stage = now.zero.stage + 1; stage <= 3; ++stage) {
    setting.push_back({2 + static_cast<int>(stage), fmt::format("--stage {}", stage),
                       [stage](PlanInput& in) { in.zero.stage = stage; }});
  }
  return setting;
}

Setting state_setting(const PlanInput& now) {
  struct Smaller {
    StateLayout layout;
    std::string_view drawback;
  };
  constexpr Smaller kEverSmaller[] = {{StateLayout::kFp32, ""},
                                      {StateLayout::kSplit, "the same bits"},
                                      {StateLayout::kBf16, "moments rounded to 16 bits"},
                                      {StateLayout::kInt8, "moments rounded to 8 bits"}};
  Setting setting;
  int cost = 4;
  bool behind = false;  // of those that are smaller than what is used now
  for (const auto& [layout, drawback] : kEverSmaller) {
    if (behind && supports(now.shape.update.kind, layout, now.shape.type)) {
      setting.push_back({cost, fmt::format("--optimizer_state {} ({})", name_of(layout), drawback),
                         [layout](PlanInput& in) { in.shape.engine.state_layout = layout; }});
      cost += 2;
    }
    behind = behind || layout == now.shape.engine.state_layout;
  }
  return setting;
}

/// More of them on the same host, and more hosts.
Setting ranks_setting(const PlanInput& now) {
  Setting setting;
  int cost = 20;
  if (now.accelerator) {
    for (const std::int64_t factor : {2, 4, 8}) {
      const std::int64_t world = now.world_size * factor;
      setting.push_back({cost++, fmt::format("{} ranks, each with such an accelerator", world),
                         [factor](PlanInput& in) {
                           in.world_size *= factor;
                           in.ranks_per_host *= factor;
                         }});
    }
  }
  const std::int64_t hosts = std::max<std::int64_t>(1, now.world_size / now.ranks_per_host);
  for (const std::int64_t factor : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    setting.push_back(
        {cost++, fmt::format("{} ranks on {} such hosts", now.world_size * factor, hosts * factor),
         [factor](PlanInput& in) { in.world_size *= factor; }});
  }
  return setting;
}

/// State, and then weights and gradients, in files of a local disk.
Setting nvme_setting(const PlanInput& now, const ChangesAllowed& allowed) {
  const EngineOptions& engine = now.shape.engine;
  const std::string ratio = allowed.ratio_is_given ? " --offload_ratio 0" : "";
  const auto state_leaves = [](PlanInput& in) {
    in.shape.engine.placement = Placement::kNvme;
    in.shape.engine.placements.clear();  // Search::evaluate() places all
    in.shape.device_bytes = 0;
    if (in.shape.engine.nvme.path.empty()) {
      in.shape.engine.nvme.path = "FOLDER";
    }
  };
  Setting setting;
  if (engine.placement != Placement::kNvme || allowed.ratio_is_given) {
    setting.push_back({14,
                       fmt::format("--placement nvme{}{}",
                                   engine.nvme.path.empty() ? " --nvme_path FOLDER" : "", ratio),
                       state_leaves});
  }
  if (engine.nvme.weights_in_memory || updates_jointly(now.shape.update.kind)) {
    return setting;
  }
  const bool is_forced =
      engine.placement != Placement::kAuto && engine.placement != Placement::kNvme;
  // Flags go before the config.
  const std::string flags = fmt::format("{}{}{}", now.zero.stage == 3 ? "" : " --stage 3",
                                        is_forced ? " --placement nvme" : "", ratio);
  int cost = 15;
  for (const std::int64_t stays : {OffloadParamConfig().max_in_cpu, std::int64_t{0}}) {
    const std::string in_memory = stays == 0 ? R"(, "max_in_cpu": 0)" : "";
    setting.push_back(
        {cost++,
         fmt::format(
             R"("zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "nvme", )"
             R"("nvme_path": "FOLDER"}}, "offload_param": {{"device": "nvme", )"
             R"("nvme_path": "FOLDER"{}}}}} in the --deepspeed_config{})",
             in_memory, flags),
         [state_leaves, stays](PlanInput& in) {
           state_leaves(in);
           in.zero.stage = 3;
           in.shape.engine.nvme.weights_in_memory = stays;
         }});
  }
  return setting;
}

Setting length_setting(const PlanInput& now) {
  constexpr std::int64_t kShortest = 256;
  Setting setting;
  int cost = 12;
  for (std::int64_t length = now.length / 2; length >= kShortest; length /= 2) {
    setting.push_back({cost++, fmt::format("--max_length {}", length),
                       [length](PlanInput& in) { in.length = length; }});
  }
  return setting;
}

std::vector<Setting> settings_of(const PlanInput& now, const ChangesAllowed& allowed) {
  std::vector<Setting> settings = {shadows_setting(now), micro_batch_setting(now),
                                   stage_setting(now), length_setting(now)};
  if (now.shape.engine.gather_slots == 0) {
    Setting slots;
    for (const int count : {2, 1}) {
      slots.push_back({3 - count, fmt::format("--gather_slots {}", count),
                       [count](PlanInput& in) { in.shape.engine.gather_slots = count; }});
    }
    settings.push_back(std::move(slots));
  }
  if (!now.shape.engine.activation_checkpointing) {
    settings.push_back({{2, "--activation_checkpointing",
                         [](PlanInput& in) { in.shape.engine.activation_checkpointing = true; }}});
  }
  if (now.can_offload() && !now.offload_chosen &&
      now.shape.engine.activation_offload.value_or(0) < 1) {
    settings.push_back({{1, "--activation_offload 1",
                         [](PlanInput& in) { in.shape.engine.activation_offload = 1; }}});
  }
  if (now.can_offload() && !now.offload_chosen &&
      now.shape.engine.activation_offload.value_or(0) > 0) {  // host memory is what is short
    settings.push_back({{1, "--activation_offload auto", [](PlanInput& in) {
                           in.shape.engine.activation_offload.reset();
                           in.offload_chosen = true;
                         }}});
  }
  if (now.has_device() && !now.accelerator && !now.shape.engine.placements.empty()) {
    settings.push_back(
        {{1, "--placement cpu", [](PlanInput& in) { in.shape.engine.placements.clear(); }}});
  }
  if (now.shape.type == DType::kF32) {
    settings.push_back(
        {{8, "--dtype bf16 (fp32 master)", [](PlanInput& in) { in.shape.type = DType::kBF16; }}});
  }
  if (allowed.state_formats) {
    settings.push_back(state_setting(now));
  }
  if (allowed.ranks) {
    settings.push_back(ranks_setting(now));
  }
  if (allowed.nvme) {
    settings.push_back(nvme_setting(now, allowed));
  }
  std::erase_if(settings, [](const Setting& setting) { return setting.empty(); });
  return settings;
}

/// The same units and segments, each unit one parameter, but for experts that ranks share out.
Model slim(const Model& model) {
  Model copy;
  for (const UnitSpec& unit : model.units) {
    if (unit.ep_size > 1) {
      copy.units.push_back(unit);
      continue;
    }
    copy.units.push_back(
        {.name = unit.name,
         .parameters = {{.name = unit.name, .shape = {unit.numel()}, .frozen = unit.frozen()}},
         .stays_gathered = unit.stays_gathered});
  }
  for (SegmentSpec segment : model.segments) {
    for (WeightRef& weight : segment.weights) {
      weight.parameter = 0;
    }
    segment.run = nullptr;
    copy.segments.push_back(std::move(segment));
  }
  return copy;
}

class Search {
 public:
  Search(const Model& model, const PlanInput& now, const MemoryLimits& limits,
         const ChangesAllowed& allowed)
      : model_(model), now_(now), limits_(limits), settings_(settings_of(now, allowed)) {}

  std::optional<Change> run() {
    for (std::size_t parts = 1; parts <= kMostParts; ++parts) {
      try_parts(parts, 0, 0);
    }
    return std::move(best_);
  }

 private:
  void try_parts(std::size_t left, std::size_t first_setting, int cost) {
    if (left == 0) {
      evaluate(cost);
      return;
    }
    for (std::size_t setting = first_setting; setting + left <= settings_.size(); ++setting) {
      for (const Level& level : settings_[setting]) {
        const int sum = cost + level.cost + kCostOfAPart;
        if (sum < best_cost_) {
          chosen_.push_back(&level);
          try_parts(left - 1, setting + 1, sum);
          chosen_.pop_back();
        }
      }
    }
  }

  void evaluate(int cost) {
    Change change{.input = now_};
    for (const Level* level : chosen_) {
      level->apply(change.input);
      change.parts.push_back(level->text);
    }
    EngineOptions& engine = change.input.shape.engine;
    if (engine.placement == Placement::kNvme && engine.placements.empty()) {
      for (const UnitSpec& unit : model_.units) {
        engine.placements.push_back(unit.frozen() ? StatePlacement::kHost : StatePlacement::kNvme);
      }
    }
    try {
      change.plan = plan_and_place(model_, change.input, limits_);
    } catch (const Error&) {
      return;  // sizes that no run can have
    }
    if (!shortfall_of(change.plan, limits_)) {
      best_cost_ = cost;
      best_ = std::move(change);
    }
  }

  const Model& model_;
  const PlanInput& now_;
  const MemoryLimits& limits_;
  std::vector<Setting> settings_;
  std::vector<const Level*> chosen_;
  std::optional<Change> best_;
  int best_cost_ = std::numeric_limits<int>::max();
};

}  // namespace

std::optional<Change> smallest_change(const Model& model, const PlanInput& input,
                                      const MemoryLimits& limits, const ChangesAllowed& allowed) {
  if (input.shape.update.kind == OptimizerKind::kMuon) {  // the shapes of its matrices count
    return Search(model, input, limits, allowed).run();
  }
  const Model copy = slim(model);
  std::optional<Change> found = Search(copy, input, limits, allowed).run();
  if (found && shortfall_of(plan_memory(model, found->input), limits)) {
    found = Search(model, input, limits, allowed).run();
  }
  return found;
}

}  // namespace tandem
