#include "engine/memory/memory_check.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/layout/update_config.hpp"
#include "engine/memory/host_buffers.hpp"
#include "engine/types/boundary_share.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {

MemoryLimits MemoryLimits::of_machine(std::int64_t ranks_per_host, bool accelerator) {
  MemoryLimits limits;
  limits.host = {static_cast<std::int64_t>(machine::memory_available_bytes()) +
                     ranks_per_host * static_cast<std::int64_t>(machine::rss_bytes()),
                 "free on this host (MemAvailable, the cgroup's limit)"};
  if (accelerator) {
    std::int64_t least = 0;
    for (const GpuInfo& gpu : gpus()) {
      if (const auto free = static_cast<std::int64_t>(gpu.free_bytes); free > 0) {
        least = least == 0 ? free : std::min(least, free);
      }
    }
    if (least > 0) {
      limits.device = {least, "free on the accelerator"};
    }
  }
  return limits;
}

namespace {

/// A simulated accelerator's memory is the host's, where it is counted.
std::int64_t device_bytes(const MemoryPlan& plan) {
  const std::int64_t there = plan.total(MemoryKind::kDevice);
  return there > 0 ? there : plan.simulated_bytes;
}

}  // namespace

std::optional<Shortfall> shortfall_of(const MemoryPlan& plan, const MemoryLimits& limits) {
  std::optional<Shortfall> worst;
  const auto look = [&](MemoryKind kind, std::int64_t needed,
                        const std::optional<MemoryLimit>& limit) {
    if (limit && needed > limit->bytes &&
        (!worst || needed - limit->bytes > worst->needed - worst->limit.bytes)) {
      worst = {kind, needed, *limit};
    }
  };
  look(MemoryKind::kDevice, device_bytes(plan), limits.device);
  look(MemoryKind::kHost, plan.host_total(), limits.host);
  look(MemoryKind::kDisk, plan.total(MemoryKind::kDisk), limits.disk);
  look(MemoryKind::kNvme, plan.nvme_total(), limits.nvme);
  return worst;
}

namespace {

/// To the accelerator: what the host has no room for, from the first unit on.
void place_overflow(const Model& model, const MemoryPlan& all_on_host, const MemoryLimits& limits,
                    PlanInput& input) {
  const std::int64_t over = all_on_host.host_total() - limits.host->bytes;
  std::int64_t wanted =
      over > 0 ? over / all_on_host.ranks_per_host + 1 + most_host_buffer_bytes(model, input) : 0;
  for (std::size_t unit = 0; unit < all_on_host.units.size() && wanted > 0; ++unit) {
    const UnitCost& cost = all_on_host.units[unit];
    // Bytes that leave the host with a unit: gradients of several ranks are added there.
    wanted -= static_cast<std::int64_t>(cost.shard + cost.master + cost.moments +
                                        (input.world_size == 1 ? cost.accumulator : 0));
    input.shape.engine.placements.push_back(StatePlacement::kDevice);
  }
}

/// Keeps shadows on NVMe where there is room: other files on that disk, as checkpoints, have half
/// of it. Units have the rest in the order of their gradients, each that still has room.
void keep_shadows_with_room(const MemoryPlan& all, std::int64_t free_bytes, PlanInput& input) {
  std::int64_t room = free_bytes / 2 / all.ranks_per_host - all.total(MemoryKind::kNvme) +
                      all.of(MemoryPurpose::kShadows, MemoryKind::kNvme);
  const std::vector<StatePlacement>& placements = input.shape.engine.placements;
  std::vector<std::size_t> kept;
  for (const std::size_t unit : all.shadows) {
    const bool on_nvme = unit < placements.size() && placements[unit] == StatePlacement::kNvme;
    const UnitCost& cost = all.units[unit];
    const auto bytes = on_nvme ? static_cast<std::int64_t>(cost.master + cost.moments) : 0;
    if (bytes <= room || !on_nvme) {
      room -= bytes;
      kept.push_back(unit);
    }
  }
  input.shape.engine.units_ahead = std::move(kept);
}

/// Whether boundaries have room where segments compute; they have where no limit is known.
bool boundaries_fit(const MemoryPlan& plan, const PlanInput& input, const MemoryLimits& limits) {
  if (input.accelerator) {
    return !limits.device || plan.total(MemoryKind::kDevice) <= limits.device->bytes;
  }
  if (input.has_device()) {
    return static_cast<double>(plan.simulated_bytes) <= input.shape.engine.sim.memory_bytes;
  }
  return !limits.host || plan.host_total() <= limits.host->bytes;
}

}  // namespace

void choose_offload(const Model& model, PlanInput& input, const MemoryLimits& limits) {
  if (!input.offload_chosen || !input.can_offload()) {
    return;
  }
  const std::size_t segments = model.segments.size();
  PlanInput tried = input;
  tried.shape.shadows = {};
  const auto fits = [&](std::size_t leaving) {
    tried.shape.engine.activation_offload = boundary_share(leaving, segments);
    return boundaries_fit(plan_memory(model, tried), tried, limits);
  };
  std::size_t least =
      leaving_boundaries(input.shape.engine.activation_offload.value_or(0), segments);
  std::size_t most = movable_boundaries(segments);
  if (!fits(least)) {
    ++least;
    while (least < most) {  // the first that fits is among [least, most], if one does
      const std::size_t middle = (least + most) / 2;
      if (fits(middle)) {
        most = middle;
      } else {
        least = middle + 1;
      }
    }
  }
  input.shape.engine.activation_offload = boundary_share(std::min(least, most), segments);
}

namespace {

/// Gives gathered units as many slots as the accelerator has room for beside all else, less a tenth
/// of it, if the options leave their number open: a unit that stays gathered is copied there once a
/// step instead of twice in each micro-step.
void choose_slots(const Model& model, const MemoryLimits& limits, PlanInput& input,
                  MemoryPlan& plan) {
  if (!input.accelerator || !limits.device || input.shape.engine.gather_slots > 0 ||
      plan.gather_slots == 0) {
    return;
  }
  const std::int64_t reserve = limits.device->bytes / 10;
  const std::int64_t left = limits.device->bytes - reserve - plan.total(MemoryKind::kDevice);
  const std::int64_t slot = plan.of(MemoryPurpose::kGatherSlots, MemoryKind::kDevice) /
                            static_cast<std::int64_t>(plan.gather_slots);
  if (slot > 0 && left >= slot) {
    const auto all = static_cast<std::int64_t>(model.units.size());
    input.shape.engine.gather_slots =
        static_cast<int>(std::min(all, static_cast<std::int64_t>(plan.gather_slots) + left / slot));
    plan = plan_memory(model, input);
  }
}

}  // namespace

MemoryPlan plan_and_place(const Model& model, PlanInput& input, const MemoryLimits& limits) {
  const bool chosen = input.shadows_chosen && limits.host;
  if (chosen) {
    input.shape.shadows = {};
  }
  choose_offload(model, input, limits);
  MemoryPlan plan = plan_memory(model, input);
  if (input.accelerator && input.shape.engine.placements.empty() && limits.host) {
    place_overflow(model, plan, limits, input);
    if (!input.shape.engine.placements.empty()) {
      choose_offload(model, input, limits);
      plan = plan_memory(model, input);
    }
  }
  if (chosen) {
    const auto room = [](std::int64_t memory, std::int64_t taken) {
      return static_cast<std::size_t>(ShadowBudget::room_of(memory, memory - taken));
    };
    input.shape.shadows = {.units = SIZE_MAX,
                           .bytes = room(limits.host->bytes, plan.host_total()) /
                                    static_cast<std::size_t>(plan.ranks_per_host)};
    if (limits.device && input.has_device()) {
      input.shape.shadows.device_bytes = room(limits.device->bytes, device_bytes(plan));
    }
    plan = plan_memory(model, input);
    if (limits.nvme && plan.of(MemoryPurpose::kShadows, MemoryKind::kNvme) > 0 &&
        plan.nvme_total() > limits.nvme->bytes / 2) {
      keep_shadows_with_room(plan, limits.nvme->bytes, input);
      plan = plan_memory(model, input);
    }
  }
  choose_slots(model, limits, input, plan);
  return plan;
}

std::string Change::text() const { return fmt::format("{}", fmt::join(parts, ", ")); }

FitReport check_fit(const Model& model, PlanInput input, const MemoryLimits& limits,
                    const ChangesAllowed& allowed) {
  require_state_layout(input.shape.update, input.shape.engine.state_layout, input.shape.type);
  const PlanInput asked = input;
  FitReport report{.plan = plan_and_place(model, input, limits)};
  report.lacks = shortfall_of(report.plan, limits);
  if (!report.lacks) {
    return report;
  }
  ChangesAllowed tried = allowed;
  tried.ranks = tried.nvme = false;
  report.change = smallest_change(model, asked, limits, tried);
  if (!report.change) {
    tried.nvme = allowed.nvme;
    report.change =
        tried.nvme ? smallest_change(model, asked, limits, tried) : std::optional<Change>();
    tried.nvme = false;
    tried.ranks = allowed.ranks;
    report.ranks =
        tried.ranks ? smallest_change(model, asked, limits, tried) : std::optional<Change>();
  }
  return report;
}

namespace {

/// Returns the text of a change of FitReport, with the bytes of the disk that it takes.
std::string advice_of(const Change& change) {
  const std::int64_t disk = change.plan.nvme_total();
  return change.text() + (disk > 0 ? fmt::format(" ({} of a local disk)", size_text(disk)) : "");
}

}  // namespace

std::string FitReport::advice() const {
  if (!lacks) {
    return "it fits";
  }
  if (lacks->kind == MemoryKind::kDisk) {
    return fmt::format(
        "disk: {} needed for what the run saves, {} {}; free some, give another output folder, or "
        "keep fewer checkpoints",
        size_text(lacks->needed), size_text(lacks->limit.bytes), lacks->limit.source);
  }
  if (lacks->kind == MemoryKind::kNvme) {
    const bool weights = plan.of(MemoryPurpose::kWeights, MemoryKind::kNvme) > 0;
    const bool state = plan.of(MemoryPurpose::kMoments, MemoryKind::kNvme) +
                           plan.of(MemoryPurpose::kMaster, MemoryKind::kNvme) >
                       0;
    return fmt::format(
        "nvme: {} needed for {}, {} {}; free some, give another folder with --nvme_path, or leave "
        "more in memory ({})",
        size_text(lacks->needed),
        weights ? "weights and optimizer state"
        : state ? "optimizer state"
                : "boundaries between segments",
        size_text(lacks->limit.bytes), lacks->limit.source,
        weights ? "offload_param's max_in_cpu"
        : state ? "--offload_ratio"
                : "--activation_offload");
  }
  const bool host = lacks->kind == MemoryKind::kHost;
  const std::string who = host && plan.ranks_per_host > 1
                              ? fmt::format(" by the {} ranks of a host", plan.ranks_per_host)
                              : std::string();
  const std::string to_do =
      change || ranks
          ? fmt::format("smallest change that fits: {}{}{}", change ? advice_of(*change) : "",
                        change && ranks ? "; or " : "", ranks ? advice_of(*ranks) : "")
          : "nothing that can be changed here makes it fit; use a smaller model or more memory";
  return fmt::format("{} memory: {} needed{}, {} {}; {}", name_of(lacks->kind),
                     size_text(lacks->needed), who, size_text(lacks->limit.bytes),
                     lacks->limit.source, to_do);
}

std::string FitReport::text(const MemoryLimits& limits) const {
  std::string text = plan_table(plan);
  const auto line = [&](std::string_view what, std::int64_t needed,
                        const std::optional<MemoryLimit>& limit) {
    if (limit) {
      text += fmt::format("{:<17}{} of {} {}\n", what, size_text(needed), size_text(limit->bytes),
                          limit->source);
    }
  };
  line("device", device_bytes(plan), limits.device);
  line("host, all ranks", plan.host_total(), limits.host);
  line("disk", plan.total(MemoryKind::kDisk), limits.disk);
  line("nvme, all ranks", plan.nvme_total(), limits.nvme);
  return text;
}

std::string FitReport::json(const MemoryLimits& limits) const {
  JsonWriter json(2);
  json.begin_object().field("parameters", plan.parameters);
  json.field("gather_slots", static_cast<std::int64_t>(plan.gather_slots));
  json.field("ranks_per_host", plan.ranks_per_host);
  json.key("rank").begin_object();
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    json.key(name_of(static_cast<MemoryKind>(kind))).begin_object();
    for (std::size_t purpose = 0; purpose < kMemoryPurposes; ++purpose) {
      if (plan.bytes[purpose][kind] != 0) {
        json.field(name_of(static_cast<MemoryPurpose>(purpose)), plan.bytes[purpose][kind]);
      }
    }
    json.field("total", plan.total(static_cast<MemoryKind>(kind))).end_object();
  }
  json.end_object().field("host_total", plan.host_total());
  json.key("limits").begin_object();
  for (const auto& [name, limit] : {std::pair{"device", &limits.device},
                                    {"host", &limits.host},
                                    {"disk", &limits.disk},
                                    {"nvme", &limits.nvme}}) {
    if (*limit) {
      json.field(name, (*limit)->bytes);
    }
  }
  json.end_object().field("fits", !lacks.has_value());
  json.key("change").begin_array();
  if (change) {
    for (const std::string& part : change->parts) {
      json.value(part);
    }
  }
  json.end_array();
  json.key("more_ranks").begin_array();
  if (ranks) {
    for (const std::string& part : ranks->parts) {
      json.value(part);
    }
  }
  json.end_array().end_object();
  return json.take() + "\n";
}

void require_fit(const FitReport& report, const MemoryLimits& limits, bool with_table) {
  if (report.lacks) {
    throw DoesNotFit(report.advice(), with_table ? report.text(limits) : std::string());
  }
}

}  // namespace tandem
