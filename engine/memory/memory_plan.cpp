#include "engine/memory/memory_plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "actors/collectives/staged_backend.hpp"
#include "actors/memory/state_file.hpp"
#include "actors/optimizer/device_updates.hpp"
#include "actors/optimizer/file_updates.hpp"
#include "engine/layout/sharding.hpp"
#include "engine/memory/saved_parameters.hpp"
#include "engine/types/boundary_share.hpp"
#include "engine/types/capped.hpp"
#include "engine/types/recomputation.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {

// Resident once LibTorch is mapped and a tokenizer is loaded, without and with its CUDA part and a
// context; a trainer that runs knows its own figure instead.
constexpr std::int64_t kUsualProcessBytes = std::int64_t{160} << 20;
constexpr std::int64_t kUsualWithContextBytes = std::int64_t{512} << 20;
// With an accelerator, on the safe side of what runs on an H100 and an H200 held: the libraries'
// kernels in the host, which steps load first (0.5 GiB, with cuDNN's 0.8 GiB); its context with
// those kernels (0.5 GiB); a communicator's buffers, which no run has shown yet.
constexpr std::int64_t kDriverBytes = std::int64_t{896} << 20;
constexpr std::int64_t kContextBytes = std::int64_t{896} << 20;
constexpr std::int64_t kCommunicatorBytes = std::int64_t{1} << 29;
// Memory that ATen's allocator holds there beside tensors: cuBLAS's workspaces and begun segments;
// and free blocks of other lengths' rows: a part of the live memory at the peak (15 % were
// measured), with an upper limit, because it frees them before it runs out of memory.
constexpr std::int64_t kWorkspaceBytes = std::int64_t{128} << 20;
constexpr std::int64_t kFreeBlocksPart = 5;  // a fifth
constexpr std::int64_t kMostFreeBlocksBytes = std::int64_t{2} << 30;
// Pages of LibTorch that a step touches first: the measured growth of file-backed memory after the
// engine is made.
constexpr std::int64_t kLaterPagesBytes = std::int64_t{24} << 20;
// No run comes near it; more of them would overflow the figures of activations.
constexpr std::int64_t kMostTokensOfBatch = std::int64_t{1} << 26;
constexpr std::size_t kSharedStageBytes = std::size_t{2} << 20;  // of ShmBackend's gathers

class ActivationWalk;

/// Adds up; knows which memory is which.
class Planner {
 public:
  Planner(const Model& model, const PlanInput& input)
      : model_(model),
        in_(input),
        sharding_(Sharding::of(model, input.zero, static_cast<std::uint32_t>(input.world_size), 0)),
        classes_(SlotClasses::of(model, sharding_)),
        sizes_(RankSizes::of(model, input.shape, sharding_, classes_)) {}

  MemoryPlan run() {
    plan_.gather_slots = sizes_.gather_slots;
    plan_.ranks_per_host = in_.ranks_per_host;
    plan_.simulated_bytes = in_.has_device() ? static_cast<std::int64_t>(sizes_.device_bytes()) : 0;
    for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
      add_unit(unit);
    }
    for (const PoolSizes& pool : sizes_.weight_pools) {
      add(MemoryPurpose::kGatherSlots, in_.accelerator ? MemoryKind::kDevice : MemoryKind::kHost,
          pool.bytes());
    }
    for (const PoolSizes& pool : sizes_.gradient_pools) {
      add(MemoryPurpose::kGradientSlots, peers_read(), pool.bytes());
    }
    add_shadows();
    add_activations();
    add_staging();
    add_directions();
    add_process();
    add(MemoryPurpose::kSaved, MemoryKind::kDisk,
        static_cast<std::size_t>(saved_parameters(model_)) * bytes_of(in_.shape.type));
    return std::move(plan_);
  }

 private:
  void add(MemoryPurpose purpose, MemoryKind kind, std::size_t bytes) {
    std::int64_t& sum =
        plan_.bytes[static_cast<std::size_t>(purpose)][static_cast<std::size_t>(kind)];
    sum = sum_capped(sum, static_cast<std::int64_t>(std::min<std::size_t>(bytes, INT64_MAX)));
  }
  /// The kind of memory that collectives read in place.
  [[nodiscard]] MemoryKind peers_read() const {
    if (in_.accelerator) {
      return MemoryKind::kDevice;
    }
    return in_.world_size > 1 ? MemoryKind::kShared : MemoryKind::kHost;
  }
  /// The kind of memory that the accelerator copies from and to.
  [[nodiscard]] MemoryKind copied() const {
    return in_.accelerator ? MemoryKind::kPinned : MemoryKind::kHost;
  }
  /// Returns the kind of memory of a unit's state. If the pool updates a unit, only its weights and
  /// gradients cross the link.
  [[nodiscard]] MemoryKind state_of(std::size_t unit) const {
    const bool streams = sizes_.units[unit].placement == StatePlacement::kStreamed;
    if (sizes_.units[unit].placement == StatePlacement::kNvme ||
        sizes_.units[unit].weights_on_nvme) {
      return MemoryKind::kNvme;
    }
    return on_device(unit) ? MemoryKind::kDevice : streams ? copied() : MemoryKind::kHost;
  }
  [[nodiscard]] bool on_device(std::size_t unit) const {
    return in_.accelerator && sizes_.units[unit].placement == StatePlacement::kDevice;
  }

  /// Beside an accelerator a unit that stays replicated is a block there, and its shard is the
  /// optimizer's, wherever that works.
  void add_weights(std::size_t unit) {
    const UnitSizes& sizes = sizes_.units[unit];
    if (sizes.weights_on_nvme) {
      add(MemoryPurpose::kWeights, MemoryKind::kNvme, sizes.shard);
      return;
    }
    if (!in_.accelerator) {
      add(MemoryPurpose::kWeights, peers_read(), sizes.weights);
      return;
    }
    const bool whole = sizes_.weights_replicated[unit];
    const bool updated_there = updates_on_device(sizes.placement);
    if (whole) {
      add(MemoryPurpose::kWeights, MemoryKind::kDevice, sizes.weights);
    }
    if (!whole || !updated_there) {
      add(MemoryPurpose::kWeights, updated_there ? MemoryKind::kDevice : MemoryKind::kPinned,
          sizes.shard);
    }
  }

  void add_unit(std::size_t unit) {
    const UnitSizes& sizes = sizes_.units[unit];
    const UnitCost cost{.shard = sizes.shard,
                        .accumulator = sizes.accumulator,
                        .master = sizes.state.master,
                        .moments = sizes.moments(),
                        .weights_on_nvme = sizes.weights_on_nvme};
    plan_.parameters = sum_capped(plan_.parameters, model_.units[unit].numel());
    add_weights(unit);
    add(MemoryPurpose::kMaster, state_of(unit), cost.master);
    add(MemoryPurpose::kMoments, state_of(unit), cost.moments);
    const bool shared = sizes_.accumulators_shared && !in_.accelerator;
    const bool gradient_there = in_.accelerator && sizes.gradient_on_device;
    add(MemoryPurpose::kGradients,
        sizes.weights_on_nvme ? MemoryKind::kNvme
        : shared              ? peers_read()
        : gradient_there      ? MemoryKind::kDevice
                              : copied(),
        cost.accumulator);
    add_traffic(sizes, cost);
    plan_.units.push_back(cost);
  }

  /// Counts a step's traffic: an update reads and writes what lies on NVMe. Weights there are
  /// gathered for forward and backward of each micro-step, and a gradient is written by each
  /// reduction, which reads it where it adds.
  void add_traffic(const UnitSizes& sizes, const UnitCost& cost) {
    const auto add_to = [](std::int64_t& sum, std::int64_t times, std::size_t bytes) {
      sum = sum_capped(sum, product_capped(times, static_cast<std::int64_t>(bytes)));
    };
    const bool updates = cost.accumulator > 0;
    // A weight beside an fp32 master is written and not read.
    const bool reads_weight =
        in_.shape.type == DType::kF32 || in_.shape.engine.state_layout != StateLayout::kFp32;
    NvmeBytes& updating = plan_.nvme_updating;
    NvmeBytes& computing = plan_.nvme_computing;
    if (updates && sizes.placement == StatePlacement::kNvme) {
      add_to(updating.read, 1, cost.master + cost.moments);
      add_to(updating.written, 1, cost.master + cost.moments);
    }
    if (sizes.weights_on_nvme) {
      const std::int64_t micro_steps = in_.shape.micro_steps;
      add_to(updating.read, updates && reads_weight ? 2 : 1, cost.shard);
      add_to(updating.read, 1, cost.accumulator);
      add_to(updating.written, updates ? 1 : 0, cost.shard);
      add_to(computing.read, 2 * micro_steps - 1, cost.shard);
      add_to(computing.read, micro_steps - 1, cost.accumulator);
      add_to(computing.written, micro_steps, cost.accumulator);
    }
  }

  void add_shadows() {
    for (const std::size_t unit : sizes_.shadows) {
      const UnitSizes& sizes = sizes_.units[unit];
      const std::size_t there = in_.accelerator ? sizes.shadow_on_device : 0;
      add(MemoryPurpose::kShadows, state_of(unit), sizes.shadow - there);
      add(MemoryPurpose::kShadows, MemoryKind::kDevice, there);
      plan_.shadows.push_back(unit);
    }
  }

  /// Adds what a joint update has beside its moments.
  void add_directions() {
    add(MemoryPurpose::kMoments, in_.accelerator ? MemoryKind::kPinned : peers_read(),
        sizes_.direction_block_bytes);
    add(MemoryPurpose::kMoments, MemoryKind::kHost, sizes_.direction_scratch_bytes);
  }

  /// Bytes of host memory through which all that lies on the device passes, a unit at a time, to be
  /// loaded and saved: its arrays, and where they are restored or cast, one of them in fp32
  /// besides.
  [[nodiscard]] std::size_t passing_bytes(std::size_t unit) const {
    const UnitSizes& sizes = sizes_.units[unit];
    if (!in_.accelerator || !updates_on_device(sizes.placement)) {
      return 0;
    }
    const std::size_t elements = sharding_.layout_of(model_.units[unit]).shard_elements;
    const bool state = sizes.placement == StatePlacement::kDevice;
    return elements * (bytes_of(in_.shape.type) + sizeof(float)) +
           (state ? sizes.state.master + sizes.moments() : 0);
  }

  void add_activations();
  void add_boundaries(const ActivationWalk& walk, std::size_t leaving, bool to_file);
  void add_staging();

  void add_process() {
    add(MemoryPurpose::kProcess, MemoryKind::kHost,
        static_cast<std::size_t>(in_.process_bytes > 0 ? in_.process_bytes + kLaterPagesBytes
                                 : in_.accelerator     ? kUsualWithContextBytes
                                                       : kUsualProcessBytes));
    if (in_.accelerator) {
      add(MemoryPurpose::kProcess, MemoryKind::kHost, kDriverBytes);
      add(MemoryPurpose::kProcess, MemoryKind::kDevice,
          static_cast<std::size_t>(kContextBytes + (in_.world_size > 1 ? kCommunicatorBytes : 0)));
    }
  }

  const Model& model_;
  const PlanInput& in_;
  Sharding sharding_;
  SlotClasses classes_;
  RankSizes sizes_;
  MemoryPlan plan_;
};

/// Follows a micro-step's activations through forward and backward, as SegmentRunner holds them, to
/// the highest point.
class ActivationWalk {
 public:
  /// `leaving`: boundaries 1 to this one leave; `to_file`: on NVMe, and they come back to stages.
  ActivationWalk(const Model& model, const BatchShape& shape, bool checkpointing,
                 std::size_t leaving = 0, bool to_file = false)
      : checkpointing_(checkpointing), leaving_(leaving), to_file_(to_file) {
    for (const SegmentSpec& segment : model.segments) {
      const RecomputationGuard again(checkpointing && segments_.size() + 1 < model.segments.size());
      segments_.push_back(segment.activations ? segment.activations(shape) : ActivationBytes());
      const ActivationBytes& at = segments_.back();
      scratch = std::max(scratch, at.scratch);
      std::int64_t& spare = at.loss ? spare_of_loss_ : spare_of_others_;
      spare = std::max(spare, at.spare);
    }
    forward();
    backward();
  }

  std::int64_t peak = 0;          // without the loss's own
  std::int64_t loss_at_peak = 0;  // the loss's own, at that moment
  std::int64_t scratch = 0;
  std::int64_t boundaries = 0;  // at their most, as Boundaries counts them

  /// Bytes of boundary b, the input of segment b.
  [[nodiscard]] std::int64_t boundary(std::size_t b) const { return segments_[b - 1].output; }

  /// Bytes that allocators hold beyond that, measured. A freed block of malloc is too short for the
  /// next request of its own size, which looks for room to align in; so about one more of each size
  /// lies there. Large tensors' memory has gaps (engine/tensors/tensor_memory.hpp).
  [[nodiscard]] std::int64_t spare() const { return spare_of_loss_ + spare_of_others_; }

 private:
  void see(const ActivationBytes& at, std::int64_t more) {
    const std::int64_t loss = sum_capped(loss_, at.loss ? more : 0);
    const std::int64_t others = sum_capped(live_, at.loss ? 0 : more);
    if (sum_capped(loss, others) > sum_capped(loss_at_peak, peak)) {
      loss_at_peak = loss;
      peak = others;
    }
  }
  void hold(const ActivationBytes& at, std::int64_t bytes) {
    std::int64_t& held = at.loss ? loss_ : live_;
    held = sum_capped(held, bytes);
  }

  [[nodiscard]] bool leaves(std::size_t b) const { return b >= 1 && b <= leaving_; }
  void count(std::int64_t bytes) {
    counted_ = sum_capped(counted_, bytes);
    boundaries = std::max(boundaries, counted_);
  }
  /// Boundary b comes (goes).
  void move(std::size_t b, std::int64_t sign) {
    count(sign * boundary(b));
    if (sign < 0 || !to_file_) {
      hold(segments_[b - 1], sign * boundary(b));
    }
  }

  void forward() {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const ActivationBytes& at = segments_[s];
      if (s >= 2 && leaves(s - 2)) {
        move(s - 2, -1);
      }
      see(at, at.output + at.kept + at.forward);
      const bool keeps = !checkpointing_ || s + 1 == segments_.size();
      hold(at, at.output + (keeps ? at.kept : 0));
      if (s + 1 < segments_.size()) {
        count(at.output);
      }
    }
  }
  void backward() {
    for (std::size_t s = segments_.size(); s-- > 0;) {
      const ActivationBytes& at = segments_[s];
      if (s >= 1 && leaves(s - 1)) {
        move(s - 1, 1);
      }
      if (checkpointing_ && s + 1 < segments_.size()) {  // its output went with the next segment
        hold(at, leaves(s + 1) && to_file_ ? 0 : -at.output);
        see(at, at.output + at.kept + std::max(at.forward + at.output, at.backward));
      } else {
        see(at, at.backward);
        hold(at, -at.output - at.kept);
      }
      if (s >= 1) {
        count(-boundary(s));
      }
    }
  }

  bool checkpointing_;
  std::size_t leaving_;
  bool to_file_;
  std::int64_t counted_ = 0;  // of boundaries
  std::vector<ActivationBytes> segments_;
  std::int64_t live_ = 0;
  std::int64_t loss_ = 0;
  std::int64_t spare_of_loss_ = 0;
  std::int64_t spare_of_others_ = 0;
};

void Planner::add_activations() {
  const EngineOptions& engine = in_.shape.engine;
  const bool to_file = !in_.has_device();
  const std::size_t leaving =
      in_.can_offload()
          ? leaving_boundaries(engine.activation_offload.value_or(0), model_.segments.size())
          : 0;
  const ActivationWalk walk(
      model_,
      {.rows = in_.rows,
       .length = in_.length,
       .type = in_.shape.type,
       .threads = std::max(1, engine.compute_threads),
       .accelerator = in_.accelerator,
       .packed = in_.packed,
       .sharers = in_.sharers,
       .blocks = engine.sequence_blocks / in_.sharers},  // 0: sums are not cut
      engine.activation_checkpointing, leaving, to_file);
  const MemoryKind kind = in_.accelerator ? MemoryKind::kDevice : MemoryKind::kHost;
  add(MemoryPurpose::kActivations, kind, static_cast<std::size_t>(walk.peak));
  add(MemoryPurpose::kLoss, kind, static_cast<std::size_t>(walk.loss_at_peak));
  add(MemoryPurpose::kStaging, kind, static_cast<std::size_t>(walk.scratch));
  const std::int64_t alive = sum_capped(walk.peak, sum_capped(walk.loss_at_peak, walk.scratch));
  const std::int64_t free_blocks = std::min(alive / kFreeBlocksPart, kMostFreeBlocksBytes);
  add(MemoryPurpose::kAllocator, kind,
      static_cast<std::size_t>(in_.accelerator ? kWorkspaceBytes + free_blocks : walk.spare()));
  add_boundaries(walk, leaving, to_file);
}

/// Adds the boundaries that lie elsewhere between forward and backward.
void Planner::add_boundaries(const ActivationWalk& walk, std::size_t leaving, bool to_file) {
  std::int64_t largest = 0;
  plan_.leaving_boundaries = leaving;
  for (std::size_t b = 1; b <= leaving; ++b) {
    plan_.leaving_bytes = sum_capped(plan_.leaving_bytes, walk.boundary(b));
    largest = std::max(largest, walk.boundary(b));
  }
  const auto bytes = static_cast<std::size_t>(plan_.leaving_bytes);
  add(MemoryPurpose::kActivations, to_file ? MemoryKind::kNvme : copied(), bytes);
  if (to_file) {
    add(MemoryPurpose::kStaging, MemoryKind::kHost,
        std::min(leaving, kBoundaryStages) *
            round_up(static_cast<std::size_t>(largest), StateFile::kAlignment));
    const std::int64_t in_step = product_capped(in_.shape.micro_steps, plan_.leaving_bytes);
    NvmeBytes& computing = plan_.nvme_computing;
    computing.read = sum_capped(computing.read, in_step);
    computing.written = sum_capped(computing.written, in_step);
  }
  if (in_.shape.engine.device == DeviceKind::kSim && in_.shape.engine.activation_checkpointing) {
    plan_.simulated_boundaries = walk.boundaries;
    plan_.simulated_bytes = sum_capped(plan_.simulated_bytes, walk.boundaries);
  }
}

void Planner::add_staging() {
  std::size_t largest_block = 0;  // elements
  std::size_t largest_shard = 0;
  for (const UnitSpec& unit : model_.units) {
    if (sharding_.is_sharded(unit)) {
      const UnitLayout layout = sharding_.layout_of(unit);
      largest_block = std::max(largest_block, layout.padded_elements);
      largest_shard = std::max(largest_shard, layout.shard_elements);
    }
  }
  if (largest_block > 0 && in_.world_size > 1) {  // a unit's fp32 weights, gathered to be saved
    const std::size_t own = in_.accelerator ? largest_shard : 0;
    add(MemoryPurpose::kStaging, MemoryKind::kHost, (largest_block + own) * sizeof(float));
    const bool has_private = in_.shape.type != DType::kF32 || sizes_.direction_block_bytes > 0;
    if (has_private && !in_.accelerator) {  // masters and gradients, piece by piece
      add(MemoryPurpose::kStaging, MemoryKind::kShared, kSharedStageBytes);
    }
  }
  if (in_.sharers > 1) {  // of exchanges between ranks that share rows
    add(MemoryPurpose::kStaging, MemoryKind::kShared, kSharedStageBytes);
  }
  add(MemoryPurpose::kStaging, MemoryKind::kHost,
      FileUpdates::kSlices * sizes_.nvme_buffer_bytes + sizes_.nvme_copy_bytes +
          StateFile::sums_bytes(sizes_.nvme_file_bytes));
  add(MemoryPurpose::kStaging, in_.accelerator ? MemoryKind::kPinned : peers_read(),
      sizes_.nvme_shard_bytes + sizes_.nvme_accumulator_bytes);
  std::size_t passing = 0;
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    passing = std::max(passing, passing_bytes(unit));
  }
  add(MemoryPurpose::kStaging, MemoryKind::kHost, passing);
  std::size_t state = 0;  // in fp32, as checkpoints have it
  for (const UnitSpec& unit : model_.units) {
    state += unit.frozen() ? 0
                           : sharding_.layout_of(unit).shard_elements * sizeof(float) *
                                 (1 + state_arrays(in_.shape.update));
  }
  add(MemoryPurpose::kCheckpoint, MemoryKind::kHost,
      std::min(in_.shape.engine.checkpoint_staging_bytes, state));
  if (in_.accelerator) {
    // Experts over ranks have gathers of their own, and they and shared rows an exchange.
    const std::size_t backends =
        1 + (require_ep_size(model_, in_.world_size) > 1 ? 2U : 0U) + (in_.sharers > 1 ? 1U : 0U);
    add(MemoryPurpose::kStaging, MemoryKind::kPinned,
        backends * StagedBackend::kStages * StagedBackend::kUsualStageBytes);
    add(MemoryPurpose::kStaging, MemoryKind::kDevice,
        DeviceUpdates::kSlices * (sizes_.stream_buffer_bytes + sizes_.resident_buffer_bytes));
  }
}

}  // namespace

PlanInput PlanInput::of(const Config& config, const EngineOptions& options,
                        std::int64_t ranks_per_host) {
  PlanInput input{.shape = RankShape::of(config, options),
                  .zero = config.zero,
                  .rows = std::max<std::int64_t>(1, config.batch.micro_batch_size),
                  .sharers = config.sequence_parallel_size,
                  .world_size = config.world_size,
                  .ranks_per_host = ranks_per_host};
  if (options.compute_threads == 0) {
    input.shape.engine.compute_threads = machine::usable_cpus();
  }
  input.shadows_chosen = input.shape.shadows.units == SIZE_MAX;
  input.offload_chosen = !options.activation_offload;
  return input;
}

std::int64_t MemoryPlan::total(MemoryKind kind) const {
  std::int64_t sum = 0;
  for (const auto& row : bytes) {
    sum = sum_capped(sum, row[static_cast<std::size_t>(kind)]);
  }
  return sum;
}

std::int64_t MemoryPlan::host_total() const {
  const std::int64_t of_rank = sum_capped(
      total(MemoryKind::kPinned), sum_capped(total(MemoryKind::kHost), total(MemoryKind::kShared)));
  return product_capped(ranks_per_host, of_rank);
}

std::int64_t MemoryPlan::nvme_total() const {
  return product_capped(ranks_per_host, total(MemoryKind::kNvme));
}

MemoryPlan plan_memory(const Model& model, const PlanInput& input) {
  if (product_capped(input.rows, input.length) > kMostTokensOfBatch) {
    throw user_error("memory",
                     "a micro-batch of {} rows with up to {} tokens each, the limit is {} tokens "
                     "together; lower the batch size or the longest row",
                     input.rows, input.length, kMostTokensOfBatch);
  }
  return Planner(model, input).run();
}

}  // namespace tandem
