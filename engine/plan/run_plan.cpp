#include "engine/plan/run_plan.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "actors/optimizer/file_updates.hpp"
#include "engine/device/core_plan.hpp"
#include "engine/device/gpu.hpp"
#include "engine/placement/placement.hpp"
#include "engine/placement/placement_plan.hpp"
#include "engine/plan/activation_offload.hpp"
#include "engine/plan/nvme_disk.hpp"
#include "engine/plan/nvme_spill.hpp"
#include "engine/types/boundary_share.hpp"
#include "engine/types/capped.hpp"
#include "engine/types/row_sharing.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/system/limits.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr int kOtherThreads = 4;  // compute, data, files

/// The facts of this machine on which the decisions depend.
struct Facts {
  std::int64_t process_bytes = 0;
  std::size_t shadow_bytes = 0;  // ShadowBudget's
  MemoryLimits memory;
  HostUpdateSpeeds host_updates;
  SimSpec device;
};

/// Threads of one rank, with as many ranks on this host as the plan says.
CorePlan cores_of(const Config& config, const EngineOptions& options, std::int64_t sharers) {
  return CorePlan::of(topology_of_machine(options.device == DeviceKind::kCuda),
                      {.ranks = static_cast<int>(sharers),
                       .rank = 0,
                       .accelerator = options.device == DeviceKind::kCuda,
                       .optimizer_share = config.zero.offload_optimizer.cpuadam_cores_perc,
                       .compute_threads = options.compute_threads,
                       .optimizer_threads = options.optimizer_threads});
}

/// Boundaries may go there.
bool offloads_to_nvme(const EngineOptions& options) {
  return options.device == DeviceKind::kCpu && options.activation_checkpointing &&
         !options.nvme.path.empty() && options.activation_offload.value_or(1) > 0;
}

bool wants_nvme(const EngineOptions& options) {
  return options.placement == Placement::kNvme || options.nvme.weights_in_memory ||
         std::ranges::find(options.placements, StatePlacement::kNvme) != options.placements.end() ||
         overflows_to_nvme(options) || offloads_to_nvme(options);
}

/// Throws Error(kRefused) where the system would not let this rank run: some libraries end the
/// process, or hang, when they get no thread.
void require_limits(const CorePlan& cores, const EngineOptions& options) {
  constexpr int kLanes = 2;  // of compute and of data
  limits::require_stack();
  // Any run may be asked for a checkpoint, by a signal. Where io_uring does the calls, the kernel
  // has workers of its own, which count as threads, too.
  const int files = FileIo::Options().threads;
  const int nvme = wants_nvme(options) ? std::max(options.nvme.threads, files) : 0;
  // The compute lane's team exists twice: OpenMP's, and that of LibTorch's own pool.
  limits::require_threads(cores.optimizer_threads + cores.copy_threads + kLanes +
                              2 * (cores.compute_threads - 1) + files + nvme,
                          "use fewer with --optimizer_threads and --compute_threads");
}

SimSpec device_of(const EngineOptions& options, const RunLimits& limits, const UpdateKernel& kernel,
                  const Communicator& ranks) {
  if (limits.device_speeds) {
    return *limits.device_speeds;
  }
  if (options.device != DeviceKind::kCuda) {
    return options.sim;
  }
  if (!options.open_gpu) {
    throw user_error("plan",
                     "device is cuda, and EngineOptions::open_gpu is empty; take the options from "
                     "with_gpu() (engine/tensors/device_choice.hpp)");
  }
  const std::shared_ptr<Gpu> gpu = options.open_gpu(ranks.local_rank());
  return gpu->measure(*gpu, kernel);
}

std::string text_of(const std::optional<MemoryLimit>& limit) {
  return limit ? fmt::format("{} {}\n", limit->bytes, limit->source) : std::string("-1 none\n");
}

std::optional<MemoryLimit> limit_of(std::istream& text) {
  MemoryLimit limit;
  text >> limit.bytes;
  std::getline(text >> std::ws, limit.source);
  return limit.bytes < 0 ? std::nullopt : std::optional(limit);
}

/// ShadowBudget's bytes: where they are chosen, a rank's share of what a run with all of its state
/// on the host leaves there, here or on the machine that the plan is for; a quarter of the host's
/// memory at least, since state may lie elsewhere.
std::size_t shadow_bytes_of(const Model& model, const PlanInput& input,
                            const MemoryLimits& memory) {
  const ShadowBudget& shadows = input.shape.shadows;
  if (shadows.units != SIZE_MAX || !memory.host) {
    return shadows.bytes;
  }
  PlanInput bare = input;
  bare.shape.shadows = {};
  const std::int64_t host_bytes = memory.host->bytes;
  const std::int64_t left = host_bytes - plan_memory(model, bare).host_total();
  return static_cast<std::size_t>(
             ShadowBudget::room_of(host_bytes, std::max(left, host_bytes / 4))) /
         static_cast<std::size_t>(input.ranks_per_host);
}

Facts facts_of(const Model& model, const Config& config, const EngineOptions& options,
               const RunLimits& limits, const PlanInput& input, bool places, Communicator& ranks) {
  std::string text;
  if (ranks.rank() == 0) {
    MemoryLimits memory = MemoryLimits::of_machine(input.ranks_per_host, input.accelerator);
    memory.host = limits.memory.host ? limits.memory.host : memory.host;
    memory.device = limits.memory.device ? limits.memory.device : memory.device;
    if (wants_nvme(options) && !limits.elsewhere) {
      memory.nvme = room_on_nvme(options.nvme);
    }
    memory.nvme = limits.memory.nvme ? limits.memory.nvme : memory.nvme;
    text = fmt::format("{} {}\n", limits.elsewhere ? 0 : machine::rss_bytes(),
                       shadow_bytes_of(model, input, memory)) +
           text_of(memory.host) + text_of(memory.device) + text_of(memory.nvme);
    if (places) {
      const int threads = cores_of(config, options, input.ranks_per_host).optimizer_threads;
      const HostUpdateSpeeds host =
          limits.host_updates ? *limits.host_updates : host_update_speeds(input, threads);
      text += fmt::format(
          "{} {} {}", host.in_place, host.speculative,
          to_string(device_of(options, limits, update_kernel_of(input, threads), ranks)));
    }
  }
  std::istringstream words(ranks.of_first_rank(text));
  Facts facts;
  words >> facts.process_bytes >> facts.shadow_bytes;
  facts.memory.host = limit_of(words);
  facts.memory.device = limit_of(words);
  facts.memory.nvme = limit_of(words);
  std::string device;
  if (places) {
    words >> facts.host_updates.in_place >> facts.host_updates.speculative >> device;
    facts.device = parse_sim_spec(device);
  }
  TANDEM_CHECK(!words.fail(), "every fact of the first rank is there");
  return facts;
}

/// Rule 1, into `input`. `host`: what of the host's memory the run may have; absent: nothing for
/// state without a ratio, and no limit with one.
void place_on_nvme(const Model& model, std::optional<double> ratio,
                   const std::optional<MemoryLimit>& host, PlanInput& input) {
  std::vector<StatePlacement>& placements = input.shape.engine.placements;
  placements = forced_placements(model, Placement::kNvme, std::nullopt);
  const std::vector<StatePlacement> leaving = forced_placements(model, Placement::kNvme, ratio);
  PlanInput bare = input;
  bare.shape.shadows = {};
  const MemoryPlan plan = plan_memory(model, bare);
  std::int64_t room = host    ? (host->bytes - plan.host_total()) / plan.ranks_per_host
                      : ratio ? INT64_MAX
                              : -1;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const UnitCost& cost = plan.units[unit];
    const bool leaves = ratio && leaving[unit] == StatePlacement::kNvme;
    if (cost.weights_on_nvme && !model.units[unit].frozen()) {
      room = -1;  // whatever the ratio says
    } else if (!leaves) {
      room -= static_cast<std::int64_t>(cost.master + cost.moments);
      placements[unit] = room >= 0 ? StatePlacement::kHost : placements[unit];
    }
  }
}

/// A slice of state in a file.
StateSizes nvme_slice_of(const RankShape& shape) {
  StateSizes slice = state_sizes(shape.engine.state_layout, shape.update, shape.type,
                                 FileUpdates::kElementsAlignment);
  if (slice.total() == 0) {  // weights alone
    slice.master = FileUpdates::kElementsAlignment * sizeof(float);
  }
  return slice;
}

/// With what the config says of places. Throws user_error for what cannot be.
EngineOptions placed_as_given(const Config& config, EngineOptions options) {
  options = with_nvme_of(config, std::move(options));
  require_possible_placements(options);
  return with_activation_offload_of(config, on_host_if_joint(config, std::move(options)));
}

/// The first rank's answer, on all of them.
bool is_first_ranks(bool own, Communicator& ranks) {
  return ranks.of_first_rank(own ? "yes" : "no") == "yes";
}

/// Bytes of state a second that a rank's updates have of the disk each way, of the first rank.
double disk_speed(const EngineOptions& options, const RunLimits& limits, const PlanInput& input,
                  Communicator& ranks) {
  if (limits.elsewhere) {
    return PlacementSpeeds().disk;
  }
  std::string text;
  if (ranks.rank() == 0) {
    const DiskRates rates =
        disk_rates(options.nvme, options.io_backend, nvme_slice_of(input.shape));
    text = fmt::format("{}", rates.each_way / static_cast<double>(input.ranks_per_host));
  }
  return std::stod(ranks.of_first_rank(text));
}

/// Names the units with state on NVMe that are updated ahead of the verdict.
std::string updates_ahead_text(const Model& model, const PlanInput& input, const RunPlan& plan) {
  const auto units_of = [&input](const MemoryPlan& memory) {
    const std::vector<StatePlacement>& placements = input.shape.engine.placements;
    return std::ranges::count_if(memory.shadows, [&placements](std::size_t unit) {
      return unit < placements.size() && placements[unit] == StatePlacement::kNvme;
    });
  };
  PlanInput again = input;
  MemoryLimits roomy = plan.limits;
  roomy.nvme.reset();
  const MemoryPlan all = plan_and_place(model, again, roomy);
  const auto ahead = units_of(plan.memory());
  if (ahead < units_of(all)) {
    return fmt::format(
        "updates of {} of {} units there begin ahead of the verdict: for all of them {} must be "
        "free in that folder, of which half is left to others",
        ahead, units_of(all), size_text(product_capped(2, all.nvme_total())));
  }
  return ahead > 0 ? "updates of what is there begin ahead of the verdict, too"
                   : "no update of what is there begins ahead of the verdict";
}

/// By rules 4 to 6 of the header; nothing where no placement fits.
std::optional<PlannedPlacement> solve(const Model& model, const Config& config,
                                      const EngineOptions& options, const Facts& facts,
                                      PlanInput input) {
  PlacementProblem problem = placement_problem(
      model, input, PlacementHardware::of(facts.device, facts.host_updates), options.overlap);
  input.shape.device_bytes = static_cast<std::size_t>(facts.device.memory_bytes);
  if (options.device == DeviceKind::kSim) {
    problem.device_bytes -= static_cast<double>(plan_memory(model, input).simulated_boundaries);
  }
  if (options.device == DeviceKind::kCuda) {
    bound_memory(problem, model, input, facts.memory);
    if (overflows_to_nvme(options)) {  // the host is not what bounds it
      problem.host_bytes = PlacementProblem().host_bytes;
    }
  }
  const std::optional<double> ratio = offload_ratio_of(config, options);
  const bool stays = options.placement == Placement::kAuto && !ratio &&
                     config.zero.offload_optimizer.device == "none" &&
                     problem.fits(forced_placements(model, Placement::kGpu, std::nullopt));
  PlannedPlacement planned =
      plan_placement(model, problem, stays ? Placement::kGpu : options.placement, ratio);
  return planned.chosen && !problem.fits(planned.placements) ? std::nullopt
                                                             : std::optional(std::move(planned));
}

/// The placements, into `input`; nothing where none fits.
std::optional<PlannedPlacement> place(const Model& model, const Config& config,
                                      const EngineOptions& options, const Facts& facts,
                                      PlanInput& input) {
  std::optional<PlannedPlacement> planned = solve(model, config, options, facts, input);
  if (!planned && input.shadows_chosen) {
    // Second copies have what the placement leaves, so a run without them fits, too.
    PlanInput bare = input;
    bare.shape.shadows = {};
    planned = solve(model, config, options, facts, bare);
  }
  input.shape.device_bytes = options.device == DeviceKind::kCuda && facts.memory.device
                                 ? static_cast<std::size_t>(facts.memory.device->bytes)
                                 : static_cast<std::size_t>(facts.device.memory_bytes);
  if (planned) {
    input.shape.engine.placements = planned->placements;
  }
  return planned;
}

/// The run as a memory plan sees it, without what the machine decides.
PlanInput input_of(const Config& config, const EngineOptions& options, const LargestBatch& batch,
                   const RunLimits& limits) {
  const std::int64_t ranks_per_host = limits.ranks_per_host > 0
                                          ? std::min(limits.ranks_per_host, config.world_size)
                                          : config.world_size;
  PlanInput input = PlanInput::of(config, options, ranks_per_host);
  input.rows = batch.records > 0 ? std::min(input.rows, batch.records) : input.rows;
  input.length = batch.length;
  input.packed = batch.packed;
  input.accelerator = options.device == DeviceKind::kCuda;
  input.shape.engine.placements = options.placements;
  return input;
}

/// Bytes of this process, which may trace; 0: the plan is for another one.
std::int64_t process_bytes_of(const Config& config, const EngineOptions& options,
                              const Facts& facts, std::int64_t ranks_per_host) {
  if (facts.process_bytes == 0) {
    return 0;
  }
  const CorePlan cores = cores_of(config, options, ranks_per_host);
  const int threads = cores.optimizer_threads + cores.copy_threads + kOtherThreads;
  return facts.process_bytes +
         static_cast<std::int64_t>(trace::bytes_at_most(static_cast<std::size_t>(threads)));
}

/// Adds what lies on NVMe to the texts of the plan.
void describe_nvme(const Model& model, const EngineOptions& options, const RunLimits& limits,
                   const PlanInput& input, RunPlan& plan) {
  const std::vector<StatePlacement>& placements = input.shape.engine.placements;
  if (std::ranges::find(placements, StatePlacement::kNvme) != placements.end()) {
    plan.placement += "; " + updates_ahead_text(model, input, plan);
  }
  if (const std::int64_t weights = plan.memory().of(MemoryPurpose::kWeights, MemoryKind::kNvme);
      weights > 0) {
    plan.placement +=
        fmt::format("; {} of a rank's weights lie there, and their gradients", size_text(weights));
  }
  if (plan.memory().nvme_total() > 0 && plan.of_first_rank) {
    plan.nvme =
        traffic_text(options.nvme, plan.memory(),
                     limits.elsewhere ? std::nullopt
                                      : std::optional(disk_rates(options.nvme, options.io_backend,
                                                                 nvme_slice_of(input.shape))));
  }
}

}  // namespace

RunPlan plan_run(const Model& model, const Config& config, const EngineOptions& asked,
                 const LargestBatch& batch, const RunLimits& limits, Communicator& ranks) {
  require_row_sharing(model, config.sequence_parallel_size, asked.sequence_blocks);
  const EngineOptions options = placed_as_given(config, asked);
  PlanInput input = input_of(config, options, batch, limits);
  const bool on_nvme = options.placements.empty() &&
                       (options.placement == Placement::kNvme ||
                        (overflows_to_nvme(options) && options.device == DeviceKind::kCpu));
  const bool places = options.device != DeviceKind::kCpu && options.placements.empty() && !on_nvme;
  Facts facts = facts_of(model, config, options, limits, input, places, ranks);
  if (options.device == DeviceKind::kSim) {
    facts.memory.device = {static_cast<std::int64_t>(options.sim.memory_bytes),
                           "of the simulated device (--sim_spec memory=)"};
  }
  input.shape.shadows.bytes = facts.shadow_bytes;
  input.process_bytes = process_bytes_of(config, options, facts, input.ranks_per_host);
  if (on_nvme) {
    const std::optional<double> ratio = offload_ratio_of(config, options);
    const std::optional<MemoryLimit> given = ratio ? std::nullopt : limits.memory.host;
    place_on_nvme(model, ratio, options.placement == Placement::kNvme ? given : facts.memory.host,
                  input);
  }

  choose_offload(model, input, facts.memory);
  RunPlan plan{.options = options, .limits = facts.memory, .of_first_rank = ranks.rank() == 0};
  const std::optional<PlannedPlacement> placed =
      places ? place(model, config, options, facts, input) : std::nullopt;
  plan.predicted_step_s = placed ? placed->step_s : 0;
  plan.placement = placed                ? placed->text(model)
                   : places              ? "none that fits"  // the search for a change places anew
                   : wants_nvme(options) ? placements_text(model, input.shape.engine.placements)
                   : options.device == DeviceKind::kCpu
                       ? "all on the host: the CPU computes"
                       : placements_text(model, options.placements);
  if (places && overflows_to_nvme(options) && facts.memory.host &&
      is_first_ranks(overflows_host(model, input, facts.memory.host->bytes), ranks)) {
    PlacementProblem problem = placement_problem(
        model, input, PlacementHardware::of(facts.device, facts.host_updates), options.overlap);
    problem.speeds.disk = disk_speed(options, limits, input, ranks);
    if (const auto step_s = spill_to_nvme(model, problem, facts.memory.host->bytes, input)) {
      plan.predicted_step_s = *step_s;
      plan.placement =
          fmt::format("{}; a step of {:.1f} ms predicted",
                      placements_text(model, input.shape.engine.placements), 1e3 * *step_s);
    }
  }
  plan.report = check_fit(model, input, plan.limits,
                          {.nvme = options.placements.empty(),
                           .ratio_is_given = offload_ratio_of(config, options).has_value()});
  describe_nvme(model, options, limits, input, plan);
  plan.options.activation_offload =
      boundary_share(plan.memory().leaving_boundaries, model.segments.size());
  plan.boundaries = activation_offload_text(
      model, input, plan.memory(),
      places ? std::optional(PlacementHardware::of(facts.device, facts.host_updates))
             : std::nullopt);
  if (!limits.elsewhere) {
    require_limits(cores_of(config, options, input.ranks_per_host), options);
  }
  plan.options.placements = input.shape.engine.placements;
  if (input.accelerator) {
    plan.options.gather_slots = static_cast<int>(plan.memory().gather_slots);
  }
  if (input.shadows_chosen) {
    plan.options.units_ahead = plan.memory().shadows;
    plan.options.speculate = plan.memory().shadows.empty() ? Speculate::kOff : options.speculate;
  }
  return plan;
}

std::vector<std::string> RunPlan::placement_lines() const {
  std::vector<std::string> lines{"placement " + placement};
  if (!nvme.empty()) {
    lines.push_back("nvme      " + nvme);
  }
  if (!boundaries.empty()) {
    lines.push_back("offload   " + boundaries);
  }
  return lines;
}

std::string RunPlan::placement_text() const {
  return fmt::format("{}", fmt::join(placement_lines(), "\n"));
}

EngineOptions place_as_asked(const Model& model, const Config& config, EngineOptions options) {
  options = placed_as_given(config, std::move(options));
  const bool on_cpu = options.device == DeviceKind::kCpu;
  const std::optional<double> ratio = offload_ratio_of(config, options);
  const Placement placement =
      on_cpu && ratio && overflows_to_nvme(options) ? Placement::kNvme : options.placement;
  if ((!on_cpu || placement == Placement::kNvme) && options.placements.empty()) {
    options.placements = forced_placements(model, placement, ratio);
  }
  return options;
}

}  // namespace tandem
