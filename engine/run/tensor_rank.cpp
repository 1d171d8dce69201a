#include "engine/run/tensor_rank.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "engine/metrics/comms_summary.hpp"
#include "engine/tensors/compute_thread.hpp"
#include "engine/tensors/row_part.hpp"
#include "engine/tensors/torch_cuda.hpp"
#include "runtime/flight.hpp"
#include "runtime/thread.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr std::size_t kBatchBytes = std::size_t{4} << 20;  // of a micro-batch on its way to a GPU

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
  TANDEM_CHECK(options.open_gpu != nullptr, "options of a run on GPUs come from with_gpu()");
  return std::make_unique<Accelerator>(loop, options.open_gpu(communicator.local_rank()));
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
                                              const RankOptions& options,
                                              const Accelerator* accelerator, CommsLog* log) {
  const std::int64_t ranks = options.sequence_parallel_size;
  require_row_sharing(model, ranks, options.shape.engine.sequence_blocks);
  if (ranks == 1) {
    return nullptr;
  }
  const RankGroup group{.name = fmt::format("rows-{}", communicator.rank() / ranks),
                        .rank = static_cast<int>(communicator.rank() % ranks),
                        .world_size = static_cast<int>(ranks)};
  return std::make_unique<LaneExchange>(
      communicator, group, accelerator != nullptr ? accelerator->gpu() : nullptr, log, 3);
}

std::optional<CommsLog> comms_log_of(const CommsLoggerConfig& config) {
  return config.enabled ? std::optional<CommsLog>(comms_log_options(config)) : std::nullopt;
}

/// In a run that goes on nothing waits that long; and a report at half the deadline says what
/// waited before the collectives give up.
Duration longest_wait(const EngineOptions& options) {
  return options.report_waits_s > 0 ? std::chrono::duration_cast<Duration>(
                                          std::chrono::duration<double>(options.report_waits_s))
                                    : ShmBackend::default_timeout() / 2;
}

/// Compute lane. The tensor on the device, by way of `staging` (pinned), which must not change
/// before what the device was given has ended. A tensor that is too large for it goes without, and
/// the host waits for that copy.
at::Tensor uploaded(const at::Tensor& host, std::span<std::byte> staging, at::Device device,
                    ComputeDevice* compute) {
  if (!host.defined() || !host.is_cpu()) {
    return host;  // it is there
  }
  if (host.nbytes() > staging.size()) {
    return host.to(device, /*non_blocking=*/false, /*copy=*/true);
  }
  const at::Tensor staged = at::from_blob(staging.data(), host.sizes(), host.options());
  staged.copy_(host);
  at::Tensor there = at::empty(host.sizes(), host.options().device(device));
  compute->queue([there, staged] { there.copy_(staged, /*non_blocking=*/true); });
  return there;
}

}  // namespace

TensorRank::TensorRank(Model model, RankOptions options, Communicator& communicator)
    : model_(std::move(model)),
      loop_({.name = fmt::format("rank {}", communicator.rank())}),
      optimizer_pool_(loop_, {.threads = options.cores.optimizer_threads,
                              .cores = options.bound(options.cores.optimizer),
                              .name = "optimizer",
                              .background = options.cores.optimizer_shares_cores}),
      copy_pool_(loop_, {.threads = options.cores.copy_threads,
                         .cores = options.bound(options.cores.service),
                         .name = "copy"}),
      accelerator_(open_device(options.shape.engine, loop_, communicator)),
      layout_(model_, shape_on(options.shape, accelerator_.get()), options.zero,
              static_cast<std::uint32_t>(communicator.world_size()),
              static_cast<std::uint32_t>(communicator.rank())),
      comms_log_(comms_log_of(options.comms_logger)),
      lane_comms_log_(comms_log_of(options.comms_logger)),
      backend_(connect(communicator, loop_, copy_pool_, accelerator_.get(), layout_)),
      expert_group_(connect_experts(communicator, loop_, copy_pool_, accelerator_.get(), model_,
                                    {comms_log_ ? &*comms_log_ : nullptr, lane_comms_log()})),
      row_group_(
          connect_sharers(communicator, model_, options, accelerator_.get(), lane_comms_log())) {
  const CorePlan& cores = options.cores;
  const std::vector<int> service = options.bound(cores.service);
  const Duration limit = longest_wait(options.shape.engine);
  trace::set_rank(communicator.rank());
  trace::set_thread_name("loop");
  if (cores.split_among > 1) {
    thread::limit_cpus(static_cast<int>(cores.rank.size()));
  }
  const bool checkpointing = options.shape.engine.activation_checkpointing;
  rank_.emplace(layout_, std::move(options), parts());
  for (BatchStage& stage : batch_stages_) {
    if (rank_->compute().on_gpu()) {
      stage.memory = {accelerator_->pinned(kBatchBytes), kBatchBytes};
    }
  }
  for (std::size_t unit = 0; unit < model_.units.size(); ++unit) {
    units_.push_back(std::make_unique<Unit>(model_.units[unit], layout_.parameters[unit],
                                            layout_.shape.type, device()));
  }
  runner_.emplace(model_, units_, checkpointing, exchange(), rank_->row_sharing());
  tensors_ = {.units = units_, .runner = &*runner_, .on_gpu = rank_->compute().on_gpu()};
  loop_.run(&Rank::start, &*rank_);  // from here on there are tasks that stop() must end
  watchdog_.emplace(loop_, Watchdog::Options{.limit = limit});
  if (!service.empty()) {
    bind_thread(service);  // the loop's, which is the caller's
  }
}

TensorRank::~TensorRank() { stop(); }

RankParts TensorRank::parts() {
  return {.loop = &loop_,
          .optimizer_pool = &optimizer_pool_,
          .copy_pool = &copy_pool_,
          .accelerator = accelerator_.get(),
          .backend = backend_.get(),
          .expert_collectives = expert_group_ ? &expert_group_->collectives() : nullptr,
          .comms_log = comms_log_ ? &*comms_log_ : nullptr,
          .prepare_lane = &prepare_compute_thread};
}

RankExchange* TensorRank::exchange() noexcept {
  return row_group_ ? row_group_.get() : expert_group_ ? &expert_group_->exchange() : nullptr;
}

void TensorRank::stop() {
  if (!std::exchange(stopped_, true)) {
    const flight::Span ending(flight::Kind::kEnd);
    loop_.run(&Rank::end, &*rank_, gave_up_);
  }
}

void TensorRank::give_up(const std::exception& cause) noexcept {
  gave_up_ = true;
  backend_->give_up(cause);
  if (expert_group_) {
    expert_group_->give_up(cause);
  }
  if (row_group_) {
    row_group_->give_up(cause);
  }
}

at::Device TensorRank::device() const noexcept {
  return accelerator_ ? device_of_tensors(accelerator_->compute()) : at::Device(at::kCPU);
}

ResidentBytes TensorRank::resident_bytes() const noexcept {
  ResidentBytes bytes = rank_->resident_bytes();
  bytes.device += held_by_aten(device());
  bytes.staging += (row_group_ ? row_group_->staging_bytes() : 0) +
                   (expert_group_ ? expert_group_->exchange().staging_bytes() : 0);
  return bytes;
}

// ---- micro-batches ----

Task<std::shared_ptr<TensorBatch>> TensorRank::micro_batch(Batch batch, bool looks) {
  batch = co_await part_of(std::move(batch));
  co_return std::make_shared<TensorBatch>(tensors_, co_await upload(std::move(batch)), looks);
}

Task<std::shared_ptr<TensorBatch>> TensorRank::inference(Batch batch, HeadOutput output) {
  if (output != HeadOutput::kLogits) {
    batch = co_await part_of(std::move(batch));
  }
  co_return std::make_shared<TensorBatch>(tensors_, co_await upload(std::move(batch)),
                                          /*looks=*/false, output);
}

Task<at::Tensor> TensorRank::result_of(std::shared_ptr<TensorBatch> inference) {
  if (!rank_->compute().on_gpu()) {
    co_return inference->result();
  }
  const auto fetch = [&inference] { return inference->result().to(at::kCPU); };
  co_return co_await rank_->compute().lane().run(fetch, "read back");
}

/// Where ranks share rows, of each the tokens of this one.
Task<Batch> TensorRank::part_of(Batch batch) {
  if (!rank_->row_sharing().cuts()) {
    co_return batch;
  }
  const auto cut = [&] {
    Batch part = with_part(batch, rank_->row_sharing());
    if (rank_->row_sharing().ranks > 1) {
      require_same_rows(batch, *exchange());
    }
    return part;
  };
  co_return co_await rank_->compute().lane().run(cut, "cut rows");
}

/// The batch where segments compute.
Task<Batch> TensorRank::upload(Batch batch) {
  if (!rank_->compute().on_gpu()) {
    co_return batch;
  }
  BatchStage& stage = batch_stages_[next_stage_++ % batch_stages_.size()];
  if (stage.left) {
    co_await stage.left->wait();
  }
  const auto copy = [this, &batch, &stage] {
    if (batch.inputs.is_cpu()) {
      tensors_.runner->check_values(batch);
    }
    std::span<std::byte> room = stage.memory;
    const auto there_of = [&](const at::Tensor& tensor) {
      at::Tensor there = uploaded(tensor, room, device(), accelerator_->compute());
      const std::size_t taken =
          tensor.defined() && tensor.is_cpu() ? (tensor.nbytes() + 63) / 64 * 64 : 0;
      room = room.subspan(std::min(taken, room.size()));
      return there;
    };
    Batch there = batch;
    there.inputs = there_of(batch.inputs);
    there.labels = there_of(batch.labels);
    there.positions = there_of(batch.positions);
    there.lengths = there_of(batch.lengths);
    return there;
  };
  Batch there = co_await rank_->compute().lane().run(copy, "upload batch");
  stage.left = accelerator_->queued();
  co_return there;
}

}  // namespace tandem
