#include "engine/rank/rank.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "engine/metrics/comms_summary.hpp"
#include "engine/types/boundary_share.hpp"
#include "runtime/flight.hpp"
#include "runtime/thread.hpp"
#include "runtime/trace.hpp"

namespace tandem {

namespace {

// Slices of updates that copy nothing: short beside a unit, long beside a kernel's latency.
constexpr std::size_t kResidentSliceChunks = 16;

std::unique_ptr<Accelerator> open_device(const EngineOptions& options, EventLoop& loop,
                                         const Communicator& communicator) {
  switch (options.device) {
    case DeviceKind::kCpu:
      return nullptr;
    case DeviceKind::kSim:
      return std::make_unique<Accelerator>(loop, communicator.rank(), options.sim);
    case DeviceKind::kCuda:
      break;
  }
  const OpenGpu open = options.open_gpu ? options.open_gpu : OpenGpu(&open_gpu);
  return std::make_unique<Accelerator>(loop, open(communicator.local_rank()));
}

/// The shape on which sizes depend, with what is known once the device is open.
RankShape shape_on(RankShape shape, Accelerator* accelerator) {
  shape.device_bytes = accelerator != nullptr ? accelerator->device().memory_bytes() : 0;
  return shape;
}

std::unique_ptr<CollectiveBackend> connect(Communicator& communicator, EventLoop& loop,
                                           CpuPool& copy_pool, Accelerator* accelerator,
                                           const RankLayout& layout) {
  if (accelerator == nullptr) {
    return communicator.make_backend(loop, copy_pool);
  }
  std::unique_ptr<CollectiveBackend> backend = accelerator->connect(communicator, loop, copy_pool);
  if (layout.updates_on_device()) {
    accelerator->reduce_there();
  }
  return backend;
}

/// "AdamW", "SGD".
std::string optimizer_name(const UpdateConfig& update) {
  const bool decoupled = update.kind == OptimizerKind::kAdam && update.adamw;
  return fmt::format("{}{}", name_of(update.kind), decoupled ? "W" : "");
}

std::vector<std::string> unit_names(const Model& model) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) {
    names.push_back(unit.name);
  }
  return names;
}

std::unique_ptr<ExpertParallelGroup> connect_experts(Communicator& communicator, EventLoop& loop,
                                                     CpuPool& copy_pool, Accelerator* accelerator,
                                                     const Model& model,
                                                     ExpertParallelGroup::Logs logs) {
  const std::int64_t ep_size = require_ep_size(model, communicator.world_size());
  if (ep_size == 1) {
    return nullptr;
  }
  ExpertParallelGroup::Place place;
  if (accelerator != nullptr) {
    place = {.stage = [accelerator](std::unique_ptr<CollectiveBackend> slice)
                 -> std::unique_ptr<CollectiveBackend> {
               return accelerator->connect_group(std::move(slice));
             },
             .gpu = accelerator->gpu()};
  }
  return std::make_unique<ExpertParallelGroup>(communicator, loop, copy_pool, ep_size,
                                               unit_names(model), place, logs);
}

/// Ranks of a group are next to each other.
std::unique_ptr<LaneExchange> connect_sharers(Communicator& communicator, const Model& model,
                                              const RowSharing& sharing,
                                              const Accelerator* accelerator, CommsLog* log) {
  require_row_sharing(model, sharing.ranks, sharing.blocks);
  if (sharing.ranks == 1) {
    return nullptr;
  }
  const RankGroup group{.name = fmt::format("rows-{}", communicator.rank() / sharing.ranks),
                        .rank = static_cast<int>(sharing.place),
                        .world_size = static_cast<int>(sharing.ranks)};
  return std::make_unique<LaneExchange>(
      communicator, group, accelerator != nullptr ? accelerator->gpu() : nullptr, log, 3);
}

std::optional<CommsLog> comms_log_of(const CommsLoggerConfig& config) {
  return config.enabled ? std::optional<CommsLog>(comms_log_options(config)) : std::nullopt;
}

/// Page faults and the page cache keep more threads busy than those that update or copy.
CpuPool& larger_of(CpuPool& optimizer, CpuPool& copies) {
  return optimizer.threads() > copies.threads() ? optimizer : copies;
}

/// In a run that goes on nothing waits that long; and a report at half the deadline says what
/// waited before the collectives give up.
Duration longest_wait(const EngineOptions& options) {
  return options.report_waits_s > 0 ? std::chrono::duration_cast<Duration>(
                                          std::chrono::duration<double>(options.report_waits_s))
                                    : ShmBackend::default_timeout() / 2;
}

}  // namespace

RankOptions RankOptions::from(const Config& config, const EngineOptions& options, CorePlan cores) {
  return {.shape = RankShape::of(config, options),
          .zero = config.zero,
          .comms_logger = config.comms_logger,
          .cores = std::move(cores),
          .sequence_parallel_size = config.sequence_parallel_size};
}

Rank::Rank(Model model, RankOptions options, Communicator& communicator)
    : options_(std::move(options)),
      model_(std::move(model)),
      loop_({.name = fmt::format("rank {}", communicator.rank())}),
      optimizer_pool_(loop_, {.threads = options_.cores.optimizer_threads,
                              .cores = options_.bound(options_.cores.optimizer),
                              .name = "optimizer",
                              .background = options_.cores.optimizer_shares_cores}),
      copy_pool_(loop_, {.threads = options_.cores.copy_threads,
                         .cores = options_.bound(options_.cores.service),
                         .name = "copy"}),
      accelerator_(open_device(options_.shape.engine, loop_, communicator)),
      layout_(model_, shape_on(options_.shape, accelerator_.get()), options_.zero,
              static_cast<std::uint32_t>(communicator.world_size()),
              static_cast<std::uint32_t>(communicator.rank())),
      comms_log_(comms_log_of(options_.comms_logger)),
      lane_comms_log_(comms_log_of(options_.comms_logger)),
      backend_(connect(communicator, loop_, copy_pool_, accelerator_.get(), layout_)),
      expert_group_(connect_experts(communicator, loop_, copy_pool_, accelerator_.get(), model_,
                                    {comms_log(), lane_comms_log()})),
      row_sharing_{.ranks = options_.sequence_parallel_size,
                   .place = communicator.rank() % options_.sequence_parallel_size,
                   .blocks = options_.shape.engine.sequence_blocks},
      row_group_(connect_sharers(communicator, model_, row_sharing_, accelerator_.get(),
                                 lane_comms_log())),
      scope_(loop_, "actors"),
      compute_(scope_, model_, accelerator_.get(), options_.shape.engine.activation_checkpointing),
      memory_(layout_, *backend_, accelerator_.get()),
      loader_(layout_, memory_, accelerator_.get(), larger_of(optimizer_pool_, copy_pool_)) {
  trace::set_rank(communicator.rank());
  trace::set_thread_name("loop");
  if (options_.cores.split_among > 1) {
    thread::limit_cpus(static_cast<int>(options_.cores.rank.size()));
  }
  const Duration limit = longest_wait(options_.shape.engine);
  loop_.run(&Rank::fill_memory, this);
  make_actors();
  watchdog_.emplace(loop_, Watchdog::Options{.limit = limit});
  start_actors();  // last: from here on there are tasks that stop() must end
  if (const std::vector<int> cpus = options_.bound(options_.cores.service); !cpus.empty()) {
    bind_thread(cpus);  // the loop's, which is the caller's
  }
}

Rank::~Rank() { stop(); }

Task<> Rank::fill_memory(Rank* self) {
  const flight::Span loading(flight::What::kLoad);
  const CorePlan& cores = self->options_.cores;
  co_await self->compute_.prepare(self->options_.bound(cores.compute), cores.compute_threads);
  co_await self->memory_.touch(&larger_of(self->optimizer_pool_, self->copy_pool_));
  if (self->memory_.state_file() != nullptr) {
    co_await open_nvme(self);
  }
  self->make_boundaries();
  co_await self->loader_.load();
}

Task<> Rank::open_nvme(Rank* self) {
  co_await self->memory_.open_state_file({.io = &self->nvme_io(),
                                          .pool = &self->copy_pool_,
                                          .path = self->path_on_nvme("state"),
                                          .busy = &self->nvme_busy_});
}

FileIo& Rank::nvme_io() {
  if (!nvme_io_) {
    const EngineOptions& options = layout_.shape.engine;
    nvme_io_.emplace(loop_, FileIo::Options{.backend = options.io_backend,
                                            .ring_entries = options.nvme.queue_depth,
                                            .threads = options.nvme.threads,
                                            .name = "nvme"});
  }
  return *nvme_io_;
}

std::string Rank::path_on_nvme(std::string_view what) const {
  return fmt::format("{}/tandem-{}-{}-{}-rank{}", layout_.shape.engine.nvme.path, what, ::getpid(),
                     loop_.now().time_since_epoch().count(), layout_.sharding.rank);
}

void Rank::make_boundaries() {
  const EngineOptions& options = layout_.shape.engine;
  if (!options.activation_checkpointing) {
    return;
  }
  const std::size_t leaving =
      leaving_boundaries(options.activation_offload.value_or(0), model_.segments.size());
  if (leaving > 0 || (accelerator_ && accelerator_->is_simulated())) {
    boundaries_ = std::make_unique<Boundaries>(
        Boundaries::Options{.scope = &scope_,
                            .compute = &compute_,
                            .accelerator = accelerator_.get(),
                            .place = leaving > 0 ? place_of_boundaries() : nullptr,
                            .leaving = leaving,
                            .segments = model_.segments.size()});
  }
}

std::unique_ptr<BoundaryPlace> Rank::place_of_boundaries() {
  std::vector<std::string> names;
  for (const SegmentSpec& segment : model_.segments) {
    names.push_back(fmt::format("input of segment \"{}\"", segment.name));
  }
  if (accelerator_) {
    return std::make_unique<HostBoundaries>(*accelerator_,
                                            std::vector<Name>(names.begin(), names.end()));
  }
  return std::make_unique<FileBoundaries>(
      FileBoundaries::Options{.io = &nvme_io(),
                              .copies = &copy_pool_,
                              .path = path_on_nvme("boundary"),
                              .block_bytes = layout_.shape.engine.nvme.block_bytes,
                              .busy = &nvme_busy_,
                              .names = std::move(names)});
}

ResidentBytes Rank::resident_bytes() const noexcept {
  ResidentBytes bytes = memory_.resident_bytes();
  bytes.boundaries = boundaries_ ? boundaries_->host_bytes() : 0;
  bytes.staging += (row_group_ ? row_group_->staging_bytes() : 0) +
                   (expert_group_ ? expert_group_->exchange().staging_bytes() : 0);
  return bytes;
}

void Rank::give_up(const std::exception& cause) noexcept {
  backend_->give_up(cause);
  if (expert_group_) {
    expert_group_->give_up(cause);
  }
  if (row_group_) {
    row_group_->give_up(cause);
  }
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
      .backend = with_nvme(), .log = comms_log(), .units = unit_names(model_)});
  std::vector<CpuOptimizer::Unit> optimized;
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    make_unit_actors(unit);
    optimized.push_back(optimizer_unit(unit));
  }
  optimizer_ = std::make_unique<CpuOptimizer>(
      CpuOptimizer::Options{.pool = &optimizer_pool_, .units = std::move(optimized)});
}

CollectiveBackend* Rank::with_nvme() {
  const auto on_nvme = [](const UnitSizes& unit) { return unit.weights_on_nvme; };
  if (std::ranges::none_of(layout_.sizes.units, on_nvme)) {
    return backend_.get();
  }
  nvme_backend_ = std::make_unique<StateFileBackend>(StateFileBackend::Options{
      .inner = backend_.get(),
      .file = memory_.state_file(),
      .shard_stage = memory_.nvme_shard_stage(),
      .accumulator_stage = memory_.nvme_accumulator_stage(),
      .name_of = [this](const void* array) { return name_on_nvme(array); }});
  return nvme_backend_.get();
}

std::string Rank::name_on_nvme(const void* array) const {
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    if (const UnitMemory& memory = memory_.unit(unit);
        array == memory.shard || array == memory.accumulator) {
      return fmt::format("{} of \"{}\"", array == memory.shard ? "weights" : "gradient",
                         model_.units[unit].name);
    }
  }
  return "file of weights";
}

void Rank::make_unit_actors(std::size_t unit) {
  const UnitSpec& spec = model_.units[unit];
  const UnitMemory& memory = memory_.unit(unit);
  const CollectivesAddress collectives =
      spec.ep_size > 1 ? expert_group_->collectives() : collectives_->address();
  const std::size_t pool = layout_.classes.weights.pool_of[unit];
  units_.push_back(std::make_unique<Unit>(spec, layout_.parameters[unit], layout_.shape.type,
                                          compute_.tensors()));
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
  bucket.clears_padding = !compute_.on_gpu();
  buckets_.push_back(std::make_unique<GradientBucket>(std::move(bucket)));
}

CpuOptimizer::Unit Rank::optimizer_unit(std::size_t unit) {
  const UnitMemory& memory = memory_.unit(unit);
  UpdateBuffers buffers = memory.buffers;
  buffers.gradient = memory.accumulator;
  buffers.gradient_type = layout_.sizes.accumulator_type;
  return {
      .name = fmt::format("{} {}", optimizer_name(layout_.shape.update), model_.units[unit].name),
      .state = {.buffers = buffers, .shadow = memory.shadow, .ranges = layout_.update_ranges(unit)},
      .shard = shards_[unit]->address(),
      .runner = runner_of(layout_.placement_of(unit))};
}

UpdateRunner* Rank::runner_of(StatePlacement placement) {
  if (placement == StatePlacement::kHost) {
    return nullptr;
  }
  if (placement == StatePlacement::kNvme) {
    return nvme_runner();
  }
  const bool streams = placement == StatePlacement::kStreamed;
  std::unique_ptr<DeviceUpdates>& runner = streams ? streamed_updates_ : resident_updates_;
  if (runner != nullptr) {
    return runner.get();
  }
  const std::size_t stage_bytes =
      streams ? layout_.sizes.stream_stage_bytes : layout_.sizes.resident_stage_bytes;
  const std::size_t chunk = CpuOptimizer::Options().chunk_elements;
  runner = std::make_unique<DeviceUpdates>(DeviceUpdates::Options{
      .device = &accelerator_->device(),
      .kernels = accelerator_->update_kernels(),
      .is_on_device = [this](const void* memory) { return memory_.is_on_device(memory); },
      .slice_chunks = stage_bytes > 0 ? kStreamedSliceElements / chunk : kResidentSliceChunks,
      .stages = stage_bytes > 0 ? memory_.allocate_on_device(DeviceUpdates::kSlices * stage_bytes,
                                                             "the stages of updates")
                                : nullptr,
      .stage_bytes = stage_bytes});
  return runner.get();
}

UpdateRunner* Rank::nvme_runner() {
  if (nvme_updates_ == nullptr && memory_.state_file() != nullptr) {
    const std::size_t chunk = CpuOptimizer::Options().chunk_elements;
    nvme_updates_ = std::make_unique<FileUpdates>(
        FileUpdates::Options{.file = memory_.state_file(),
                             .pool = &optimizer_pool_,
                             .chunk_elements = chunk,
                             .slice_chunks = FileUpdates::kElementsAlignment / chunk,
                             .stages = memory_.nvme_stages(),
                             .stage_bytes = layout_.sizes.nvme_stage_bytes});
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
  if (expert_group_) {
    expert_group_->start(scope_);
  }
  for (std::size_t unit = 0; unit < shards_.size(); ++unit) {
    shards_[unit]->start(scope_);
    if (buckets_[unit] != nullptr) {
      buckets_[unit]->start(scope_);
    }
  }
  optimizer_->start(scope_);
}

void Rank::stop() {
  if (!std::exchange(stopped_, true)) {
    const flight::Span ending(flight::What::kEnd);
    loop_.run(&Rank::end_actors, this);
  }
}

Task<> Rank::end_actors(Rank* self) {
  try {
    co_await self->optimizer_->address().ask(RollBackUpdates{});  // of a step that has not ended
    co_await self->optimizer_->address().ask(DrainOptimizer{});
  } catch (const ActorClosed&) {
    // The optimizer failed, and what awaited it then has the failure.
  }
  self->optimizer_->close();
  for (std::size_t unit = 0; unit < self->shards_.size(); ++unit) {
    self->shards_[unit]->close();
    if (self->buckets_[unit] != nullptr) {
      self->buckets_[unit]->close();
    }
  }
  self->collectives_->close();
  if (self->expert_group_) {
    self->expert_group_->close();
  }
  for (const SlotPoolList* pools : {&self->weight_pools_, &self->gradient_pools_}) {
    for (const auto& pool : *pools) {
      if (pool != nullptr) {
        pool->close();
      }
    }
  }
  self->scope_.request_stop();
  co_await self->scope_.empty();
}

Busy Rank::busy() const {
  return {.compute_s = compute_.busy_s(),
          .optimizer_s = optimizer_pool_.busy_s() / optimizer_pool_.threads(),
          .copy_s = copy_pool_.busy_s() / copy_pool_.threads(),
          .to_device_s = accelerator_ ? accelerator_->to_device_busy_s() : 0,
          .to_host_s = accelerator_ ? accelerator_->to_host_busy_s() : 0,
          .disk_s = nvme_busy_.seconds()};
}

}  // namespace tandem
