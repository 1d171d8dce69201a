#include "actors/collectives/staged_backend.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "actors/collectives/norm_limbs.hpp"
#include "actors/collectives/rank_sum.hpp"
#include "actors/gpu/norm_limbs.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::size_t kGrain = 4096;  // of pieces: whole norm tiles of every type
static_assert(kGrain % (kNormTile * sizeof(float)) == 0);

template <class T>
bool is_there(Placed<T> operand) noexcept {
  return operand.place() == Place::kDevice;
}

}  // namespace

// ---- what the inner back end does with a piece ----
struct StagedBackend::GatherStep {
  CollectiveBackend& inner;
  GatherArguments whole;

  Task<> operator()(Piece p) {
    const std::byte* shard = is_there(whole.shard) ? p.from_device : whole.shard.host() + p.begin;
    return inner.all_gather({.shard = shard,
                             .block = p.for_device,
                             .shard_bytes = p.bytes,
                             .is_replicated = whole.is_replicated,
                             .name = whole.name});
  }
};

struct StagedBackend::AllToAllStep {
  CollectiveBackend& inner;

  Task<> operator()(Piece p) {
    return inner.all_to_all({.from = p.from_device, .into = p.for_device, .bytes = p.bytes});
  }
};

struct StagedBackend::ExchangeStep {
  CollectiveBackend& inner;

  Task<> operator()(Piece p) {
    return inner.exchange({.mine = p.from_device, .all = p.for_device, .bytes = p.bytes});
  }
};

struct StagedBackend::ReduceStep {
  CollectiveBackend& inner;
  ReduceArguments whole;
  bool is_all_reduce;
  GradientNorm norm = {};

  Task<> operator()(Piece p) {
    const std::size_t begin = p.begin / bytes_of(whole.block_type);
    ReduceArguments part = whole;
    part.block = p.from_device;
    part.accumulator = static_cast<std::byte*>(whole.accumulator.host()) +
                       begin * bytes_of(whole.accumulator_type);
    part.shard_elements = p.bytes / bytes_of(whole.block_type);
    Task<GradientNorm> sum =
        is_all_reduce ? inner.all_reduce_add(part) : inner.reduce_scatter_add(part);
    merge_part(norm, co_await std::move(sum), begin);
  }
};

// ---- memory ----
StagedBackend::StagedBackend(Device& device, std::unique_ptr<CollectiveBackend> inner,
                             Options options)
    : device_(device),
      inner_(std::move(inner)),
      stage_bytes_(options.stage_bytes),
      gathers_(make_copy_streams("d2h gathers", "h2d")),
      reductions_(make_copy_streams("d2h", "h2d exchanges")) {
  TANDEM_CHECK(stage_bytes_ / inner_->world() >= kGrain, "a stage has room for all ranks");
}

StagedBackend::CopyStreams StagedBackend::make_copy_streams(Name to_host, Name to_device) {
  const auto half = [this] { return allocate(stage_bytes_); };
  return {.to_host = device_.stream(to_host),
          .to_device = device_.stream(to_device),
          .from_device = {half(), half()},
          .for_device = {half(), half()}};
}

void StagedBackend::name_copies(CopyStreams& streams, Name name) {
  streams.to_host.name_copies(name);
  streams.to_device.name_copies(name);
}

StagedBackend::~StagedBackend() {
  for (const std::span<std::byte> memory : pinned_) {
    device_.unpin(memory);
  }
}

std::byte* StagedBackend::allocate(std::size_t bytes) {
  std::byte* const memory = inner_->allocate(bytes);
  if (bytes == 0) {
    return memory;
  }
  const std::span<std::byte> whole(memory, bytes);
  if (device_.pin(whole)) {
    pinned_.push_back(whole);
  }
  return memory;
}

// ---- the operations ----
Task<> StagedBackend::all_gather(GatherArguments a) {
  if (!is_there(a.block)) {
    TANDEM_CHECK(!is_there(a.shard), "a block on the host is gathered from shards on the host");
    co_await inner_->all_gather(a);
    co_return;
  }
  const bool in_place = a.shard == a.block + (a.is_replicated ? 0 : rank() * a.shard_bytes);
  name_copies(gathers_, a.name);
  if (a.is_replicated || world() == 1) {
    if (!in_place) {
      co_await straight(a);
    }
    co_return;
  }
  Transfer transfer{.copy_streams = &gathers_,
                    .part_bytes = a.shard_bytes,
                    .source = is_there(a.shard) ? a.shard.device() : nullptr,
                    .target = a.block.device(),
                    .target_parts = world()};
  if (in_place) {
    transfer.part_in_place = rank();
  }
  GatherStep step{*inner_, a};
  co_await carry_out(transfer, &step);
}

Task<> StagedBackend::straight(GatherArguments a) {
  std::byte* const block = a.block.device();
  gather_fence_ = fences_.of(block);
  fences_.wait(gathers_.to_device, block);
  struct Straight {
    CopyStreams& copy_streams;
    GatherArguments a;
    std::byte* block;
    Task<> operator()(Piece /*piece*/) {
      if (is_there(a.shard)) {
        copy_streams.to_device.within_device(block, a.shard.device(), a.shard_bytes);
      } else {
        copy_streams.to_device.to_device(block, {a.shard.host(), a.shard_bytes});
      }
      co_await copy_streams.to_device.record().wait();
    }
  } straight{gathers_, a, block};
  co_await carry_out({.copy_streams = &gathers_}, &straight);
}

// Gathers run one after another. If the block of the present one is still in use, it has queued no
// copy yet, and all earlier gathers have ended.
std::optional<DeviceEvent> StagedBackend::gathers_queued() {
  if (gather_fence_ && !gather_fence_->done()) {
    return std::nullopt;
  }
  return gathers_.to_device.record();
}

void StagedBackend::use_kernels(const SumKernels& kernels) {
  static_assert(sizeof(NormLimbs) == norm::kLimbs * sizeof(std::uint64_t));
  kernels_ = &kernels;
  norm_ = device_.allocate(sizeof(NormLimbs));
  norm_here_ = allocate(sizeof(NormLimbs));
}

void StagedBackend::add_on_device(const ReduceArguments& a, GradientNorm* norm) {
  const std::size_t accumulator = bytes_of(a.accumulator_type);
  const std::size_t per_element =
      bytes_of(a.block_type) + accumulator + (a.mode == AccumulateMode::kAdd ? accumulator : 0);
  reductions_.to_host.launch(
      a.name, {.bytes = static_cast<double>(per_element * a.shard_elements)},
      [a, norm](void* /*native_stream*/) { reduce_alone(a, 0, a.shard_elements, *norm); });
}

// A failed launch also sets the device's last error, which ends the stream's events.
void StagedBackend::add_by_kernels(const ReduceArguments& a) {
  const bool is_wide = a.accumulator_type == DType::kF32;
  auto* const limbs = a.want_norm ? reinterpret_cast<std::uint64_t*>(norm_.data()) : nullptr;
  void* const accumulator = a.accumulator.device();
  const RankOrderSum sum{.own = a.block.device(),
                         .block_type = static_cast<int>(a.block_type),
                         .add = a.mode == AccumulateMode::kAdd,
                         .accumulator = is_wide ? static_cast<float*>(accumulator) : nullptr,
                         .copy = is_wide ? nullptr : accumulator,
                         .elements = a.shard_elements,
                         .norm = limbs};
  reductions_.to_host.launch(a.name, {}, [this, sum](void* stream) {
    if (sum.norm != nullptr) {
      (void)kernels_->clear_norm(sum.norm, stream);
    }
    (void)kernels_->add_in_rank_order(sum, stream);
  });
  if (a.want_norm) {
    reductions_.to_host.to_host({norm_here_, sizeof(NormLimbs)}, norm_.data());
  }
}

Task<GradientNorm> StagedBackend::reduce_on_device(ReduceArguments a) {
  TANDEM_CHECK(world() == 1, "several ranks reduce on the host");
  fences_.wait(reductions_.to_host, a.block.device());
  struct Reduction {
    StagedBackend& backend;
    ReduceArguments a;
    GradientNorm norm = {};
    Task<> operator()(Piece /*piece*/) {
      if (backend.kernels_ != nullptr) {
        backend.add_by_kernels(a);
      } else {
        backend.add_on_device(a, &norm);
      }
      co_await backend.reductions_.to_host.record().wait();
      if (backend.kernels_ != nullptr && a.want_norm) {
        norm = merge_norms({reinterpret_cast<const NormLimbs*>(backend.norm_here_), 1});
      }
    }
  } reduction{*this, a};
  co_await carry_out({.copy_streams = &reductions_}, &reduction);
  co_return reduction.norm;
}

Task<GradientNorm> StagedBackend::reduce_scatter_add(ReduceArguments a) { return reduce(a, false); }

Task<GradientNorm> StagedBackend::all_reduce_add(ReduceArguments a) { return reduce(a, true); }

Task<GradientNorm> StagedBackend::reduce(ReduceArguments a, bool is_all_reduce) {
  if (is_there(a.accumulator)) {
    TANDEM_CHECK(is_there(a.block), "what is added on the device lies there");
    co_return co_await reduce_on_device(a);
  }
  if (!is_there(a.block)) {
    Task<GradientNorm> sum =
        is_all_reduce ? inner_->all_reduce_add(a) : inner_->reduce_scatter_add(a);
    co_return co_await std::move(sum);
  }
  name_copies(reductions_, a.name);
  ReduceStep step{*inner_, a, is_all_reduce};
  const bool nothing_added =
      world() == 1 && a.mode == AccumulateMode::kOverwrite && a.accumulator_type == a.block_type;
  co_await carry_out(
      {.copy_streams = &reductions_,
       .part_bytes = a.shard_elements * bytes_of(a.block_type),
       .source = a.block.device(),
       .source_parts = is_all_reduce ? 1U : world(),
       .landing = nothing_added ? static_cast<std::byte*>(a.accumulator.host()) : nullptr},
      &step);
  co_return step.norm;
}

Task<> StagedBackend::exchange(ExchangeArguments a) {
  TANDEM_CHECK(a.bytes == 0 || a.mine.place() == a.all.place(),
               "both operands of an exchange lie on one side");
  if (a.bytes == 0) {
    co_await inner_->exchange({});
    co_return;
  }
  if (!is_there(a.mine)) {
    co_await inner_->exchange(a);
    co_return;
  }
  name_copies(reductions_, "exchange");
  ExchangeStep step{*inner_};
  co_await carry_out({.copy_streams = &reductions_,
                      .part_bytes = a.bytes,
                      .source = a.mine.device(),
                      .target = a.all.device(),
                      .target_parts = world()},
                     &step);
}

Task<> StagedBackend::all_to_all(AllToAllArguments a) {
  TANDEM_CHECK(a.from.place() == a.into.place(), "both operands of an all-to-all lie on one side");
  if (!is_there(a.from)) {
    co_await inner_->all_to_all(a);
    co_return;
  }
  if (a.in_use_until != nullptr) {
    gathers_.to_host.wait(*a.in_use_until);
    gathers_.to_device.wait(*a.in_use_until);
  }
  name_copies(gathers_, "all-to-all");
  AllToAllStep step{*inner_};
  co_await carry_out({.copy_streams = &gathers_,
                      .part_bytes = a.bytes,
                      .source = a.from.device(),
                      .source_parts = world(),
                      .target = a.into.device(),
                      .target_parts = world()},
                     &step);
}

// ---- piece by piece ----
std::size_t StagedBackend::Transfer::pieces() const noexcept {
  return std::max<std::size_t>(1, (part_bytes + piece_bytes - 1) / piece_bytes);
}

std::size_t StagedBackend::Transfer::length(std::size_t piece) const noexcept {
  return std::min(piece_bytes, part_bytes - piece * piece_bytes);
}

template <class Step>
Task<> StagedBackend::carry_out(Transfer transfer, Step* step) {
  // By the world, not by the parts at this end, so that all ranks cut alike.
  transfer.piece_bytes = stage_bytes_ / world() / kGrain * kGrain;
  std::exception_ptr error;
  try {
    co_await run_pieces(&transfer, step);
    co_return;
  } catch (const DeviceError& failed) {
    inner_->abort(failed.what());
    error = std::current_exception();
  } catch (...) {
    error = std::current_exception();
  }
  co_await until_idle(transfer.copy_streams);
  std::rethrow_exception(error);
}

// Half k % 2 gets piece k when it no longer has piece k - 2. For copies from the device that is
// already so, because the inner back end has finished with that piece; for copies to the device it
// is awaited.
template <class Step>
Task<> StagedBackend::run_pieces(const Transfer* t, Step* step) {
  const std::size_t pieces = t->pieces();
  std::array<std::optional<DeviceEvent>, 2> in;
  std::array<std::optional<DeviceEvent>, 2> out;
  if (t->source != nullptr) {
    fences_.wait(t->copy_streams->to_host, t->source);
    in[0] = copy_in(*t, 0);
  }
  if (t->target != nullptr) {
    if (t->copy_streams == &gathers_) {
      gather_fence_ = fences_.of(t->target);
    }
    fences_.wait(t->copy_streams->to_device, t->target);
  }
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t half = piece % 2;
    if (t->source != nullptr) {
      if (piece + 1 < pieces) {
        in[1 - half] = copy_in(*t, piece + 1);
      }
      co_await in[half]->wait();
    }
    if (out[half].has_value()) {
      co_await out[half]->wait();
    }
    co_await (*step)(Piece{.begin = piece * t->piece_bytes,
                           .bytes = t->length(piece),
                           .from_device = landing_of(*t, piece),
                           .for_device = t->copy_streams->for_device[half]});
    if (t->target != nullptr) {
      out[half] = copy_out(*t, piece);
    }
  }
  if (const auto& last = out[(pieces - 1) % 2]; last.has_value()) {
    co_await last->wait();  // and so all before it: a stream is in order
  }
}

std::byte* StagedBackend::landing_of(const Transfer& t, std::size_t piece) noexcept {
  return t.landing != nullptr ? t.landing + piece * t.piece_bytes
                              : t.copy_streams->from_device[piece % 2];
}

DeviceEvent StagedBackend::copy_in(const Transfer& t, std::size_t piece) {
  const std::size_t bytes = t.length(piece);
  std::byte* half = landing_of(t, piece);
  for (std::size_t part = 0; part < t.source_parts && bytes > 0; ++part) {
    t.copy_streams->to_host.to_host({half + part * bytes, bytes},
                                    t.source + part * t.part_bytes + piece * t.piece_bytes);
  }
  return t.copy_streams->to_host.record();
}

DeviceEvent StagedBackend::copy_out(const Transfer& t, std::size_t piece) {
  const std::size_t bytes = t.length(piece);
  const std::byte* half = t.copy_streams->for_device[piece % 2];
  for (std::size_t part = 0; part < t.target_parts && bytes > 0; ++part) {
    if (part != t.part_in_place) {
      t.copy_streams->to_device.to_device(t.target + part * t.part_bytes + piece * t.piece_bytes,
                                          {half + part * bytes, bytes});
    }
  }
  return t.copy_streams->to_device.record();
}

// After a failure: the operands are their owners' again when nothing copies them any more.
Task<> StagedBackend::until_idle(CopyStreams* copy_streams) {
  const std::array events = {copy_streams->to_host.record(), copy_streams->to_device.record()};
  for (const DeviceEvent& event : events) {
    try {
      co_await event.wait();
    } catch (const DeviceError&) {
      // A device that failed does nothing any more.
    }
  }
}

}  // namespace tandem
