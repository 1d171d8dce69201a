#include "engine/rank/rank.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/types/boundary_share.hpp"
#include "runtime/flight.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

namespace {

// Slices of updates that copy nothing: 33 M elements, 0.3 ms of an H100, so that the host awaits
// few.
constexpr std::size_t kResidentSliceChunks = 256;

/// "AdamW", "SGD".
std::string optimizer_name(const UpdateConfig& update) {
  const bool decoupled = update.kind == OptimizerKind::kAdam && update.adamw;
  return fmt::format("{}{}", name_of(update.kind), decoupled ? "W" : "");
}

/// Page faults and the page cache keep more threads busy than those that update or copy.
CpuPool& larger_of(CpuPool& optimizer, CpuPool& copies) {
  return optimizer.threads() > copies.threads() ? optimizer : copies;
}

}  // namespace

std::vector<std::string> unit_names(const Model& model) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) {
    names.push_back(unit.name);
  }
  return names;
}

RankOptions RankOptions::from(const Config& config, const EngineOptions& options, CorePlan cores) {
  return {.shape = RankShape::of(config, options),
          .zero = config.zero,
          .comms_logger = config.comms_logger,
          .cores = std::move(cores),
          .sequence_parallel_size = config.sequence_parallel_size};
}

Rank::Rank(const RankLayout& layout, RankOptions options, RankParts parts)
    : layout_(layout),
      options_(std::move(options)),
      parts_(std::move(parts)),
      row_sharing_{.ranks = options_.sequence_parallel_size,
                   .place = layout.sharding.rank % options_.sequence_parallel_size,
                   .blocks = options_.shape.engine.sequence_blocks},
      scope_(*parts_.loop, "actors"),
      compute_(scope_, layout.model, parts_.accelerator,
               options_.shape.engine.activation_checkpointing, parts_.lane_driver),
      memory_(layout, *parts_.backend, parts_.accelerator, parts_.has_memory),
      loader_(layout, memory_, parts_.accelerator,
              larger_of(*parts_.optimizer_pool, *parts_.copy_pool)) {}

Task<> Rank::start() {
  {
    const flight::Span loading(flight::Kind::kLoad);
    const CorePlan& cores = options_.cores;
    co_await compute_.prepare(options_.bound(cores.compute), cores.compute_threads,
                              parts_.prepare_lane);
    if (parts_.has_memory) {
      co_await memory_.touch(&larger_of(*parts_.optimizer_pool, *parts_.copy_pool));
    }
    if (memory_.state_file() != nullptr) {
      co_await open_nvme();
    }
    make_boundaries();
    if (parts_.has_memory) {
      co_await loader_.load();
    }
  }
  make_actors();
  start_actors();
}

Task<> Rank::open_nvme() {
  co_await memory_.open_state_file({.io = &nvme_io(),
                                    .pool = parts_.copy_pool,
                                    .path = path_on_nvme("state"),
                                    .busy = &nvme_busy_});
}

FileIo& Rank::nvme_io() {
  if (!nvme_io_ && parts_.nvme_files) {
    nvme_io_.emplace(loop(), parts_.nvme_files());
  } else if (!nvme_io_) {
    const EngineOptions& options = layout_.shape.engine;
    nvme_io_.emplace(loop(), FileIo::Options{.backend = options.io_backend,
                                             .ring_entries = options.nvme.queue_depth,
                                             .threads = options.nvme.threads,
                                             .name = "nvme"});
  }
  return *nvme_io_;
}

std::string Rank::path_on_nvme(std::string_view what) const {
  return fmt::format("{}/tandem-{}-{}-{}-rank{}", layout_.shape.engine.nvme.path, what, ::getpid(),
                     parts_.loop->now().time_since_epoch().count(), layout_.sharding.rank);
}

void Rank::make_boundaries() {
  const EngineOptions& options = layout_.shape.engine;
  if (!options.activation_checkpointing) {
    return;
  }
  const std::size_t leaving =
      leaving_boundaries(options.activation_offload.value_or(0), layout_.model.segments.size());
  if (leaving > 0 || (parts_.accelerator != nullptr && parts_.accelerator->is_simulated())) {
    boundaries_ = std::make_unique<Boundaries>(
        Boundaries::Options{.scope = &scope_,
                            .compute = &compute_,
                            .accelerator = parts_.accelerator,
                            .place = leaving > 0 ? place_of_boundaries() : nullptr,
                            .leaving = leaving,
                            .segments = layout_.model.segments.size()});
  }
}

std::unique_ptr<BoundaryPlace> Rank::place_of_boundaries() {
  std::vector<std::string> names;
  for (const SegmentSpec& segment : layout_.model.segments) {
    names.push_back(fmt::format("input of segment \"{}\"", segment.name));
  }
  if (parts_.accelerator != nullptr) {
    return std::make_unique<HostBoundaries>(*parts_.accelerator,
                                            std::vector<Name>(names.begin(), names.end()));
  }
  return std::make_unique<FileBoundaries>(
      FileBoundaries::Options{.io = &nvme_io(),
                              .copies = parts_.copy_pool,
                              .path = path_on_nvme("boundary"),
                              .block_bytes = layout_.shape.engine.nvme.block_bytes,
                              .busy = &nvme_busy_,
                              .names = std::move(names)});
}

ResidentBytes Rank::resident_bytes() const noexcept {
  ResidentBytes bytes = memory_.resident_bytes();
  bytes.boundaries = boundaries_ ? boundaries_->host_bytes() : 0;
  return bytes;
}

// ---- the actors ----

/// The actors and their addresses: TrainStep asks shards for gathered weights and buckets for
/// gradient slots and reductions; both take slots from pools and speak to the ranks through
/// Collectives. It sends updates to the optimizer, which tells the shards of new versions.
void Rank::make_actors() {
  const auto make_pools = [](Name name, const std::vector<PoolSizes>& sizes, auto memory_of) {
    SlotPoolList pools;
    for (std::size_t pool = 0; pool < sizes.size(); ++pool) {
      const std::size_t slots = sizes[pool].slots;
      pools.push_back(slots == 0 ? nullptr
                                 : std::make_unique<SlotPool>(SlotPool::Options{
                                       .name = name,
                                       .memory = memory_of(pool),
                                       .slot_bytes = sizes[pool].slot_bytes,
                                       .plan = {.slots = slots, .max_in_flight = slots}}));
    }
    return pools;
  };
  weight_pools_ = make_pools("gather slots", layout_.sizes.weight_pools,
                             [this](std::size_t pool) { return memory_.weight_slots(pool); });
  gradient_pools_ = make_pools("gradient slots", layout_.sizes.gradient_pools,
                               [this](std::size_t pool) { return memory_.gradient_slots(pool); });
  collectives_ = std::make_unique<Collectives>(Collectives::Options{
      .backend = with_nvme(), .log = comms_log(), .units = unit_names(layout_.model)});
  std::vector<CpuOptimizer::Unit> optimized;
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    make_unit_actors(unit);
    optimized.push_back(optimizer_unit(unit));
  }
  optimizer_ = std::make_unique<CpuOptimizer>(
      CpuOptimizer::Options{.pool = parts_.optimizer_pool, .units = std::move(optimized)});
}

CollectiveBackend* Rank::with_nvme() {
  const auto on_nvme = [](const UnitSizes& unit) { return unit.weights_on_nvme; };
  if (std::ranges::none_of(layout_.sizes.units, on_nvme)) {
    return parts_.backend;
  }
  nvme_backend_ = std::make_unique<StateFileBackend>(StateFileBackend::Options{
      .inner = parts_.backend,
      .file = memory_.state_file(),
      .shard_buffer = memory_.nvme_shard_buffer(),
      .accumulator_buffer = memory_.nvme_accumulator_buffer(),
      .name_of = [this](Placed<const std::byte> array) { return name_on_nvme(array); }});
  return nvme_backend_.get();
}

std::string Rank::name_on_nvme(Placed<const std::byte> array) const {
  for (std::size_t unit = 0; unit < layout_.model.units.size(); ++unit) {
    if (const UnitMemory& memory = memory_.unit(unit);
        array == memory.shard || array == memory.accumulator) {
      return fmt::format("{} of \"{}\"", array == memory.shard ? "weights" : "gradient",
                         layout_.model.units[unit].name);
    }
  }
  return "file of weights";
}

void Rank::make_unit_actors(std::size_t unit) {
  const UnitSpec& spec = layout_.model.units[unit];
  const UnitMemory& memory = memory_.unit(unit);
  const CollectivesAddress collectives =
      spec.ep_size > 1 ? parts_.expert_collectives->address() : collectives_->address();
  const std::size_t pool = layout_.classes.weights.pool_of[unit];
  ParameterShard::Options shard = layout_.shard_options(unit);
  shard.shard = memory.shard;
  shard.block = memory.block;
  shard.slots = pool == kNoPool ? SlotPoolAddress() : weight_pools_[pool]->address();
  shard.collectives = collectives;
  shards_.push_back(std::make_unique<ParameterShard>(std::move(shard)));
  if (spec.frozen()) {
    buckets_.push_back(nullptr);
    return;
  }
  GradientBucket::Options bucket = layout_.bucket_options(unit);
  bucket.tree = row_sharing_.blocks > 0 ? static_cast<std::uint32_t>(row_sharing_.ranks) : 1;
  bucket.accumulator = memory.accumulator;
  bucket.slots = gradient_pools_[layout_.classes.gradients.pool_of[unit]]->address();
  bucket.collectives = collectives;
  bucket.clears_padding = parts_.has_memory && !compute_.on_gpu();
  buckets_.push_back(std::make_unique<GradientBucket>(std::move(bucket)));
}

CpuOptimizer::Unit Rank::optimizer_unit(std::size_t unit) {
  const UnitMemory& memory = memory_.unit(unit);
  PlacedBuffers buffers = memory.buffers;
  buffers.gradient = memory.accumulator;
  buffers.gradient_type = layout_.sizes.accumulator_type;
  return {
      .name = fmt::format("{} {}", optimizer_name(layout_.shape.update),
                          layout_.model.units[unit].name),
      .state = {.buffers = buffers, .shadow = memory.shadow, .ranges = layout_.update_ranges(unit)},
      .shard = shards_[unit]->address(),
      .runner = runner_of(layout_.placement_of(unit))};
}

UpdateRunner* Rank::runner_of(StatePlacement placement) {
  if (placement == StatePlacement::kHost) {
    return parts_.host_updates;
  }
  if (placement == StatePlacement::kNvme) {
    return nvme_runner();
  }
  const bool streams = placement == StatePlacement::kStreamed;
  std::unique_ptr<DeviceUpdates>& runner = streams ? streamed_updates_ : resident_updates_;
  if (runner != nullptr) {
    return runner.get();
  }
  const std::size_t buffer_bytes =
      streams ? layout_.sizes.stream_buffer_bytes : layout_.sizes.resident_buffer_bytes;
  const std::size_t chunk = CpuOptimizer::Options().chunk_elements;
  runner = std::make_unique<DeviceUpdates>(DeviceUpdates::Options{
      .device = &parts_.accelerator->device(),
      .kernels = parts_.accelerator->update_kernels(),
      .slice_chunks = buffer_bytes > 0 ? kStreamedSliceElements / chunk : kResidentSliceChunks,
      .buffers = buffer_bytes > 0
                     ? memory_.allocate_on_device(DeviceUpdates::kSlices * buffer_bytes,
                                                  "the transfer buffers of updates")
                     : Placed<std::byte>(),
      .buffer_bytes = buffer_bytes});
  return runner.get();
}

UpdateRunner* Rank::nvme_runner() {
  if (nvme_updates_ == nullptr && memory_.state_file() != nullptr) {
    const std::size_t chunk = CpuOptimizer::Options().chunk_elements;
    nvme_updates_ = std::make_unique<FileUpdates>(
        FileUpdates::Options{.file = memory_.state_file(),
                             .pool = parts_.optimizer_pool,
                             .chunk_elements = chunk,
                             .slice_chunks = FileUpdates::kElementsAlignment / chunk,
                             .buffers = memory_.nvme_buffers(),
                             .buffer_bytes = layout_.sizes.nvme_buffer_bytes});
  }
  return nvme_updates_.get();  // null: the optimizer keeps nothing
}

void Rank::start_actors() {
  for (const SlotPoolList* pools : {&weight_pools_, &gradient_pools_}) {
    for (const auto& pool : *pools) {
      if (pool != nullptr) {
        pool->start(scope_);
      }
    }
  }
  collectives_->start(scope_);
  if (parts_.expert_collectives != nullptr) {
    parts_.expert_collectives->start(scope_);
  }
  for (std::size_t unit = 0; unit < shards_.size(); ++unit) {
    shards_[unit]->start(scope_);
    if (buckets_[unit] != nullptr) {
      buckets_[unit]->start(scope_);
    }
  }
  optimizer_->start(scope_);
}

Task<> Rank::end(bool has_failed) {
  try {
    if (!planted(Bug::kUpdatesNotDrained)) {
      co_await optimizer_->address().ask(RollBackUpdates{});  // of a step that has not ended
      co_await optimizer_->address().ask(DrainOptimizer{});
    }
  } catch (const ActorClosed&) {
    // The optimizer failed, and what awaited it then has the failure.
  }
  optimizer_->close();
  for (std::size_t unit = 0; unit < shards_.size(); ++unit) {
    shards_[unit]->close();
    if (buckets_[unit] != nullptr) {
      buckets_[unit]->close();
    }
  }
  collectives_->close();
  if (parts_.expert_collectives != nullptr) {
    parts_.expert_collectives->close();
  }
  for (const SlotPoolList* pools : {&weight_pools_, &gradient_pools_}) {
    for (const auto& pool : *pools) {
      if (pool != nullptr) {
        pool->close();
      }
    }
  }
  scope_.request_stop();
  co_await scope_.empty();
  if (has_failed) {
    (void)scope_.failures();
  }
}

std::exception_ptr Rank::cause_of(std::exception_ptr error) const {
  const std::vector<TaskFailure>& failures = scope_.failures();
  return failures.empty() || planted(Bug::kCauseHidden) ? error : failures.front().error;
}

Busy Rank::busy() const {
  const Accelerator* const accelerator = parts_.accelerator;
  return {.compute_s = compute_.busy_s(),
          .optimizer_s = parts_.optimizer_pool->busy_s() / parts_.optimizer_pool->threads(),
          .copy_s = parts_.copy_pool->busy_s() / parts_.copy_pool->threads(),
          .to_device_s = accelerator != nullptr ? accelerator->to_device_busy_s() : 0,
          .to_host_s = accelerator != nullptr ? accelerator->to_host_busy_s() : 0,
          .disk_s = nvme_busy_.seconds()};
}

}  // namespace tandem
