// engine/placement/placement.cpp — placements by the user's options.
#include "engine/placement/placement.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/util/error.hpp"

namespace tandem {

std::optional<double> offload_ratio_of(const Config& config, const EngineOptions& options) {
  if (options.offload_ratio) {
    return options.offload_ratio;
  }
  const OffloadOptimizerConfig& offload = config.zero.offload_optimizer;
  const bool given = std::ranges::any_of(config.keys, [](const KeyReport& key) {
    return key.path == "zero_optimization.offload_optimizer.ratio";
  });
  return given ? std::optional(offload.ratio) : std::nullopt;
}

EngineOptions with_nvme_of(const Config& config, EngineOptions options) {
  const OffloadOptimizerConfig& offload = config.zero.offload_optimizer;
  if (options.placement == Placement::kAuto && options.placements.empty() &&
      offload.device == "nvme") {
    options.placement = Placement::kNvme;
  }
  const OffloadParamConfig& weights = config.zero.offload_param;
  if (weights.device == "nvme" && !options.nvme.weights_in_memory &&
      (options.placement == Placement::kNvme || !options.placements.empty())) {
    options.nvme.weights_in_memory = weights.max_in_cpu;
  }
  options.nvme.block_bytes = static_cast<std::size_t>(config.aio.block_size);
  options.nvme.queue_depth = static_cast<unsigned>(config.aio.queue_depth);
  options.nvme.threads = static_cast<int>(config.aio.intra_op_parallelism);
  const bool leaves =
      options.placement == Placement::kNvme || options.nvme.weights_in_memory ||
      std::ranges::find(options.placements, StatePlacement::kNvme) != options.placements.end();
  if (leaves && options.nvme.path.empty()) {  // a path beside another device is left aside
    const bool of_weights = offload.nvme_path.empty() && weights.device == "nvme";
    options.nvme.path = of_weights ? weights.nvme_path : offload.nvme_path;
    if (options.nvme.path.empty()) {
      throw user_error("engine",
                       "optimizer state is to lie on NVMe, and no folder is given; write nvme_path "
                       "into the config's offload_optimizer, or use --nvme_path");
    }
  }
  return options;
}

bool overflows_to_nvme(const EngineOptions& options) {
  return options.placement == Placement::kAuto && options.nvme.overflow;
}

void require_possible_placements(const EngineOptions& options) {
  if (options.device != DeviceKind::kCpu) {
    return;
  }
  const bool leaves =
      options.placement == Placement::kGpu || options.placement == Placement::kStream;
  const bool given = std::ranges::any_of(options.placements, &updates_on_device);
  if (leaves || given) {
    throw user_error("engine",
                     "placement is {}, and the CPU computes; use placement cpu, or device cuda "
                     "(sim simulates an accelerator)",
                     leaves ? name_of(options.placement) : "given by unit");
  }
  const bool to_nvme = options.placement == Placement::kNvme || overflows_to_nvme(options);
  if (options.offload_ratio.value_or(1) < 1 && options.placements.empty() && !to_nvme) {
    throw user_error("engine",
                     "offload_ratio is {}, and the CPU computes: state has no place but its "
                     "memory; leave it empty, or give a folder with nvme.path and placement nvme",
                     *options.offload_ratio);
  }
}

EngineOptions on_host_if_joint(const Config& config, EngineOptions options) {
  if (!updates_jointly(config.optimizer.kind)) {
    return options;
  }
  if (options.nvme.weights_in_memory) {
    throw user_error("engine",
                     "weights are to lie on NVMe, and {} needs whole gradients in memory; leave "
                     "weights_in_memory empty",
                     config.optimizer.type);
  }
  const bool leaves = options.placement == Placement::kGpu ||
                      options.placement == Placement::kStream ||
                      std::ranges::any_of(options.placements, &updates_on_device);
  const bool overflows = options.device == DeviceKind::kCpu && overflows_to_nvme(options);
  const bool on_nvme =
      options.placement == Placement::kNvme || !options.placements.empty() || overflows;
  if (leaves || (!on_nvme && options.offload_ratio.value_or(1) < 1)) {
    throw user_error("engine", "{} is {}, and {} updates on the host alone; use placement cpu",
                     leaves ? "placement" : "offload_ratio",
                     leaves ? std::string(name_of(options.placement))
                            : fmt::format("{}", *options.offload_ratio),
                     config.optimizer.type);
  }
  options.placement = on_nvme ? options.placement : Placement::kCpu;
  return options;
}

std::vector<StatePlacement> forced_placements(const Model& model, Placement placement,
                                              std::optional<double> ratio) {
  if (placement == Placement::kCpu || (placement == Placement::kAuto && !ratio)) {
    return {};
  }
  const bool to_nvme = placement == Placement::kNvme;
  const StatePlacement there = to_nvme                           ? StatePlacement::kNvme
                               : placement == Placement::kStream ? StatePlacement::kStreamed
                                                                 : StatePlacement::kDevice;
  double all = 0;
  for (const UnitSpec& unit : model.units) {
    all += unit.frozen() ? 0 : static_cast<double>(unit.numel());
  }
  // Bytes per element are the same in all units, so elements count them.
  double room = (1 - ratio.value_or(0)) * all * (1 + 1e-9);
  std::vector<StatePlacement> placements(model.units.size(), StatePlacement::kHost);
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    const std::size_t unit = to_nvme ? model.units.size() - 1 - i : i;
    const auto size = static_cast<double>(model.units[unit].numel());
    if (!model.units[unit].frozen() && size <= room) {
      room -= size;
      placements[unit] = there;
    }
  }
  return placements;
}

namespace {

/// A name as what stands before its last number, the number (-1: none), and what stands behind it.
struct NumberedName {
  std::string before;
  long number = -1;
  std::string behind;
};

NumberedName numbered(const std::string& name) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t end = name.size();
  while (end > 0 && !is_digit(name[end - 1])) {
    --end;
  }
  std::size_t begin = end;
  while (begin > 0 && is_digit(name[begin - 1])) {
    --begin;
  }
  if (begin == end || end - begin > 9) {
    return {.before = name};
  }
  return {name.substr(0, begin), std::stol(name.substr(begin, end - begin)), name.substr(end)};
}

/// The names of units of one placement, neighbours among what is trained joined: "embedding, block
/// 0-7".
std::string ranges_text(const Model& model, std::span<const StatePlacement> placements,
                        StatePlacement placement) {
  std::vector<std::size_t> trained;
  for (std::size_t unit = 0; unit < placements.size(); ++unit) {
    if (!model.units[unit].frozen()) {
      trained.push_back(unit);
    }
  }
  std::string text;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (placements[trained[i]] != placement) {
      continue;
    }
    const std::string& name = model.units[trained[i]].name;
    const NumberedName first = numbered(name);
    long last = first.number;
    while (first.number >= 0 && i + 1 < trained.size() && placements[trained[i + 1]] == placement) {
      const NumberedName next = numbered(model.units[trained[i + 1]].name);
      if (next.before != first.before || next.behind != first.behind || next.number != last + 1) {
        break;
      }
      ++i;
      ++last;
    }
    text += text.empty() ? "" : ", ";
    text += last > first.number
                ? fmt::format("{}{}-{}{}", first.before, first.number, last, first.behind)
                : name;
  }
  return text;
}

}  // namespace

std::string placements_text(const Model& model, std::span<const StatePlacement> placements) {
  std::string text;
  const auto say = [&](StatePlacement placement, std::string_view how) {
    if (const std::string names = ranges_text(model, placements, placement); !names.empty()) {
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ", names, how);
    }
  };
  say(StatePlacement::kDevice, "on the device");
  say(StatePlacement::kStreamed, "streamed through the device");
  say(StatePlacement::kNvme, "on NVMe");
  if (text.empty()) {
    return "all on the host";
  }
  say(StatePlacement::kHost, "on the host");
  return text;
}

}  // namespace tandem
