// engine/rank/rank.hpp — everything one rank is made of: its threads, its memory, its actors, and
// the model they serve.
//
// Built once from a model and sizes; wires shards, buckets, slots, collectives and the optimizer
// together. What lies where follows from the ZeRO stage (Sharding). It holds no schedule:
// TrainStep decides what happens when. Loop thread, except what is marked for the compute lane.
// Invariant: buffers and pools outlive the actors, actors outlive what is asked of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/collectives/collectives.hpp"
#include "actors/gradient_bucket.hpp"
#include "actors/memory/arena.hpp"
#include "actors/optimizer/cpu_optimizer.hpp"
#include "actors/optimizer/device_updates.hpp"
#include "actors/parameter_shard.hpp"
#include "actors/slot_pool.hpp"
#include "engine/config/config.hpp"
#include "engine/device/accelerator.hpp"
#include "engine/device/core_plan.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/distributed/expert_parallel_group.hpp"
#include "engine/layout/rank_sizes.hpp"
#include "engine/layout/resident_bytes.hpp"
#include "engine/layout/sharding.hpp"
#include "engine/layout/slot_classes.hpp"
#include "engine/layout/step_plan.hpp"
#include "engine/rank/device_copies.hpp"
#include "engine/rank/unit.hpp"
#include "engine/types/model.hpp"
#include "engine/types/options.hpp"
#include "runtime/compute_lane.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/scope.hpp"

namespace tandem {

struct RankOptions {
  DeviceKind device = DeviceKind::kCpu;
  SimSpec sim;
  OpenGpu open_gpu;
  DType type = DType::kF32;  // of weights, activations and gradients of a micro-step
  ZeroConfig zero;
  int micro_steps = 1;   // per optimizer step
  int gather_slots = 0;  // 0: chosen
  UpdateConfig update;   // what state the optimizer has, and how it lies:
  StateLayout state_layout = StateLayout::kFp32;
  ShadowBudget shadows;                    // for updates ahead of the verdict
  std::vector<StatePlacement> placements;  // [unit]; empty: all on the host
  int compute_threads = 1;
  int optimizer_threads = 1;
  int copy_threads = 1;
  std::vector<int> compute_cores;  // empty, as the next two: not bound
  std::vector<int> optimizer_cores;
  std::vector<int> service_cores;       // of loop and copies
  bool optimizer_shares_cores = false;  // with the compute lane
  bool recomputes = false;              // activations, in backward

  /// Fills in what the engine options leave open, from the config and the plan of this rank's
  /// cores.
  static RankOptions from(const Config& config, const EngineOptions& options, DType type,
                          const CorePlan& cores);
};

/// Seconds that each resource has been busy since the start.
struct Busy {
  double compute_s = 0;
  double optimizer_s = 0;
  double copy_s = 0;
  double to_device_s = 0;
  double to_host_s = 0;
};

class Rank {
 public:
  /// Allocates all memory and loads the weights. Throws user_error when the slots asked for cannot
  /// work.
  Rank(Model model, RankOptions options, Communicator& communicator);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  /// Ends the actors and waits for their work; the destructor does it, too, but by then who uses
  /// them may be gone.
  void stop();

  /// This rank cannot go on: operations under way end here, and the peers learn which rank failed
  /// and why.
  void abort(std::string_view why) noexcept;

  [[nodiscard]] EventLoop& loop() noexcept { return loop_; }
  [[nodiscard]] Scope& scope() noexcept { return scope_; }
  [[nodiscard]] ComputeLane& lane() noexcept { return lane_; }

  [[nodiscard]] const Model& model() const noexcept { return model_; }
  [[nodiscard]] const SlotClasses& classes() const noexcept { return classes_; }
  [[nodiscard]] std::vector<Unit*> units();
  [[nodiscard]] const std::vector<ParameterShard*>& parameter_shards() const noexcept {
    return shard_list_;
  }
  [[nodiscard]] GradientBucket& gradient_bucket(std::size_t unit) noexcept {
    return *buckets_[unit];
  }
  [[nodiscard]] CpuOptimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] StatePlacement placement_of(std::size_t unit) const noexcept {
    return sizes_.units[unit].placement;
  }
  [[nodiscard]] const RankSizes& sizes() const noexcept { return sizes_; }
  /// Whether the unit can be updated ahead of the verdict, and how many can.
  [[nodiscard]] bool has_shadow(std::size_t unit) const;
  [[nodiscard]] std::size_t shadows() const;
  [[nodiscard]] Collectives& collectives() noexcept { return *collectives_; }
  /// For segments; null where no experts are spread over ranks.
  [[nodiscard]] RankExchange* exchange() noexcept {
    return expert_group_ ? &*expert_group_ : nullptr;
  }

  [[nodiscard]] int rank() const noexcept { return static_cast<int>(sharding_.rank); }
  [[nodiscard]] int world_size() const noexcept { return static_cast<int>(sharding_.world); }
  [[nodiscard]] const Sharding& sharding() const noexcept { return sharding_; }
  [[nodiscard]] std::int64_t parameter_count() const noexcept { return parameter_count_; }
  [[nodiscard]] std::size_t gather_slots() const noexcept { return sizes_.gather_slots; }
  [[nodiscard]] const ResidentBytes& resident_bytes() const noexcept { return resident_bytes_; }
  [[nodiscard]] const RankOptions& options() const noexcept { return options_; }
  [[nodiscard]] Busy busy() const;
  // What the lane is given: at once in host memory, queued on a GPU. So the work holds what it uses
  // by value; `what` is for messages.
  Task<> compute(std::string_view what, std::function<void()> work);
  /// On a GPU: these blocks are in use by what the lane was given so far; the next user waits for
  /// it on the device. Gives the event behind it. Elsewhere: nothing, the work is done.
  std::optional<DeviceEvent> in_use(std::span<std::byte* const> blocks);
  /// Where tensors are that segments see.
  [[nodiscard]] at::Device tensors() const noexcept;
  /// The batch where segments compute.
  Task<Batch> on_device(Batch batch);
  /// Compute lane: `scalar` (fp32) as a number in `to`, once the work behind it is done; `to` is of
  /// losses().
  void read_back(const at::Tensor& scalar, float* to) const;
  /// Where losses of a step are read back to; the device reaches it.
  [[nodiscard]] std::span<float> losses() noexcept { return losses_; }
  /// The tensor in host memory; nothing is queued that it still waits for.
  Task<at::Tensor> to_host(at::Tensor tensor);
  /// Two buffers that collectives read and write on any back end: a slice and a whole block in
  /// fp32. Empty: any host memory will do.
  [[nodiscard]] std::span<float> slice_buffer() noexcept { return slice_buffer_; }
  [[nodiscard]] std::span<float> whole_buffer() noexcept { return whole_buffer_; }

  /// Compute lane: what visiting a segment takes at least, on a simulated device; a guard around
  /// the work.
  [[nodiscard]] SegmentTime time_of(std::size_t segment, Phase phase, const Batch& batch,
                                    TimePoint inputs_there);

  /// Where the padded block of a unit begins when the blocks of all units are laid end to end.
  [[nodiscard]] std::int64_t flat_begin(std::size_t unit) const;
  /// The name of the parameter at a position of that flat order.
  [[nodiscard]] std::string parameter_at_flat(std::int64_t position) const;

  enum class State : std::uint8_t { kMaster, kGradient };
  /// This rank's slice of a unit's state in fp32: of the master weights (no update may be running),
  /// or of the accumulated gradient of the step in flight (after its reductions). Valid until the
  /// next call.
  [[nodiscard]] Task<std::span<const float>> slice_of(std::size_t unit, State state);
  /// Hands out the parameters of a unit, given the fp32 values of its whole block.
  void visit_parameters(
      std::size_t unit, std::span<const float> block,
      const std::function<void(const ParameterSpec&, std::span<const float>)>& visit) const;

  // Compute lane: the tensors of a visit's units over the slots it holds.
  void bind_values(std::span<const UnitUse> uses, std::span<std::byte* const> slots);
  void unbind_values(std::span<const UnitUse> uses);
  void bind_gradients(std::span<const UnitUse> uses, std::span<std::byte* const> slot_of_unit);
  /// After a segment's backward: completes the gradients that are through, unbinds all.
  void complete_gradients(std::span<const UnitUse> uses);

 private:
  /// Whether ATen computes on a device of its own, behind the host.
  [[nodiscard]] bool on_gpu() const noexcept {
    return accelerator_ && !accelerator_->is_simulated();
  }

  /// Of one unit. fp32: what is gathered is the master itself. 16 bits: a weight of its own,
  /// written by the optimizer.
  struct Memory {
    std::byte* block =
        nullptr;  // of a unit that stays replicated; on the device where there is one
    std::byte* shard = nullptr;  // in compute type; inside the block if they lie on the same side
    // where the optimizer's state begins; its place changes with updates ahead of the verdict
    UpdateBuffers buffers;
    UpdateShadow shadow;
    std::byte* accumulator = nullptr;
  };

  /// Of this rank alone; zeroed.
  std::byte* allocate(std::size_t bytes, std::size_t& counted);
  /// Memory that the peers' collectives read in place; zeroed.
  std::byte* allocate_shared(std::size_t bytes, std::size_t& counted);
  /// State in host memory; what is streamed lies where a GPU's copies are fast.
  std::byte* allocate_streamed(std::size_t bytes, std::size_t& counted, StatePlacement placement);
  void allocate_weights(std::size_t unit);
  void allocate_units();
  void allocate_shadows();
  /// What the optimizer writes of a unit's slice: not padding, not frozen parameters.
  [[nodiscard]] std::vector<CpuOptimizer::Range> update_ranges(std::size_t unit) const;
  void open_device(const Communicator& communicator);
  void connect(Communicator& communicator);
  void connect_expert_group(Communicator& communicator, const ExpertParallelGroup::Stage& stage);
  static Task<> account(Rank* self, DeviceEvent event, TimePoint queued);
  void make_slot_pools();
  using Allocate = std::byte* (Rank::*)(std::size_t bytes, std::size_t& counted);
  std::vector<std::unique_ptr<SlotPool>> make_pools(const SlotPools& pools,
                                                    std::span<const PoolSizes> sizes, Name name,
                                                    Allocate allocate_slots, std::size_t& counted);
  /// Throws Error(kRefused) naming the purpose.
  std::byte* allocate_on_device(std::size_t bytes, std::string_view purpose);
  std::byte* slots_on_device(const SlotPools& pools, std::size_t pool, Name name,
                             std::size_t bytes);
  /// Of master and moments, on the side that the unit's placement says.
  std::byte* allocate_state(std::size_t unit);
  std::byte* allocate_accumulator(std::size_t unit);
  /// Who updates units of that placement; null: the pool.
  [[nodiscard]] UpdateRunner* runner_of(StatePlacement placement);
  void make_actors();
  [[nodiscard]] std::uint64_t first_element(std::size_t unit) const;

  // ---- loading and reading back
  // --------------------------------------------------------------------
  /// Of a parameter, in this rank's slice of its unit.
  struct Piece {
    const ParameterSpec* parameter;
    std::int64_t begin;  // in the parameter
    std::int64_t end;
    std::size_t unit;
    std::size_t at;  // in the unit's slice
  };
  /// Elements of a unit's slice whose weights are cast from masters.
  struct Cast {
    std::size_t unit;
    std::size_t begin;
    std::size_t end;
  };
  /// A unit's master, its weight and what else the master is made of, as the host reaches them.
  struct HostView {
    struct Array {
      std::byte* device;
      HostBuffer host;  // in its stead
    };
    UpdateBuffers buffers;
    std::vector<Array> arrays;  // what lies on the device
  };
  struct ShadowArray {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  void load_weights();
  [[nodiscard]] std::vector<Piece> pieces_of(std::size_t unit) const;
  void load_piece(const Piece& piece, const UpdateBuffers& buffers) const;
  [[nodiscard]] CpuPool& loading_pool() noexcept;
  [[nodiscard]] std::vector<Cast> casts_of(std::size_t unit) const;
  void cast_weights(const Cast& part, const UpdateBuffers& buffers) const;
  [[nodiscard]] std::vector<ShadowArray> shadow_arrays(std::size_t unit) const;
  [[nodiscard]] std::size_t master_bytes(std::size_t unit) const;
  /// What of it is host memory.
  void copy_to_shadow(std::size_t unit) const;
  [[nodiscard]] bool is_on_device(const void* memory) const noexcept;
  [[nodiscard]] HostView view_on_host(std::size_t unit, const UpdateBuffers& buffers) const;
  Task<> load_on_device(std::size_t unit);

  RankOptions options_;
  Model model_;
  Sharding sharding_;
  SlotClasses classes_;
  RankSizes sizes_;
  std::vector<ParameterLayout> layouts_;  // [unit]
  std::int64_t parameter_count_ = 0;
  ResidentBytes resident_bytes_;
  bool stopped_ = false;

  std::vector<Memory> memory_;  // [unit]
  std::vector<HostBuffer> owned_;
  std::vector<float> slice_in_fp32_;  // of slice_of(), where a cast is due
  std::vector<std::unique_ptr<Unit>> units_;

  EventLoop loop_;
  ComputeLane lane_;
  CpuPool optimizer_pool_;
  CpuPool copy_pool_;
  std::optional<Accelerator> accelerator_;
  DeviceTime device_time_;
  std::optional<DeviceCopies> copies_;  // where something of a unit's state lies on the device
  // On a GPU: two halves, so that one can be filled while the other is copied.
  struct BatchStage {
    std::span<std::byte> memory;
    std::optional<DeviceEvent> left;  // since then it may be filled again
  };
  std::array<BatchStage, 2> batch_stages_;
  std::size_t next_stage_ = 0;
  std::vector<float> host_losses_;
  std::span<float> losses_;
  std::span<float> slice_buffer_;
  std::span<float> whole_buffer_;
  std::unique_ptr<CollectiveBackend> backend_;
  std::optional<ExpertParallelGroup> expert_group_;
  Scope scope_;

  std::vector<std::unique_ptr<SlotPool>> weight_pools_;    // [pool]; null where no unit uses it
  std::vector<std::unique_ptr<SlotPool>> gradient_pools_;  // [gradient pool]; null likewise
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::unique_ptr<ParameterShard>> shards_;   // [unit]
  std::vector<std::unique_ptr<GradientBucket>> buckets_;  // null: frozen
  std::unique_ptr<DeviceUpdates> resident_updates_;  // null where no unit needs it, as the next
  std::unique_ptr<DeviceUpdates> streamed_updates_;
  std::unique_ptr<CpuOptimizer> optimizer_;
  std::vector<ParameterShard*> shard_list_;
};

}  // namespace tandem
