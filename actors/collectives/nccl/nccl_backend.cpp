// actors/collectives/nccl/nccl_backend.cpp — the operations of NcclBackend.
#include "actors/collectives/nccl/nccl_backend.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "actors/gpu/norm_limbs.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

// A multiple of the norm tile of every type.
constexpr std::size_t kPieceGrain = kNormTile * sizeof(float);
static_assert(norm::kBlockElements == kNormTile && norm::kSumLimbs == ExactSum::kLimbs);
static_assert(sizeof(NormLimbs) == norm::kLimbs * sizeof(std::uint64_t));
static_assert(sizeof(NormLimbs) <= kExchangeBytes);

constexpr NcclApi kNoApi{};  // of one rank alone, which calls nothing

constexpr std::size_t chunks_of(std::size_t total, std::size_t chunk) {
  return (total + chunk - 1) / chunk;
}

ShmHeader header_for(ShmKind kind, std::uint64_t number, std::size_t bytes) {
  return {.kind = kind, .number = number, .bytes = bytes};
}

NcclType nccl_type(DType type) {
  switch (type) {
    case DType::kF32:
      return NcclType::kF32;
    case DType::kBF16:
      return NcclType::kBF16;
    case DType::kF16:
      return NcclType::kF16;
  }
  return NcclType::kBytes;
}

ShmHeader header_for(ShmKind kind, std::uint64_t number, const ReduceArguments& a) {
  ShmHeader made = header_for(kind, number, a.shard_elements * bytes_of(a.block_type));
  made.types =
      static_cast<std::uint32_t>(a.block_type) * 2 + (a.mode == AccumulateMode::kAdd ? 1U : 0U);
  return made;
}

/// NCCL's calls between start and end of a group; the first refusal counts, and the group is closed
/// in any case.
template <class Calls>
NcclResult grouped(const NcclApi& api, const Calls& calls) {
  const NcclResult started = api.group_start();
  if (started != NcclResult::kSuccess) {
    return started;
  }
  const NcclResult called = calls();
  const NcclResult ended = api.group_end();
  return called != NcclResult::kSuccess && called != NcclResult::kInProgress ? called : ended;
}

bool went(NcclResult result) {
  return result == NcclResult::kSuccess || result == NcclResult::kInProgress;
}

}  // namespace

// ---- making it ----
Task<std::unique_ptr<NcclBackend>> NcclBackend::connect(EventLoop* loop, CudaDevice* device,
                                                        Options options) {
  std::unique_ptr<NcclBackend> made(new NcclBackend(*loop, *device, std::move(options)));
  if (made->world() > 1) {
    co_await made->initialise(kGathers, "gathers");
    if (made->options_.reduces) {
      co_await made->initialise(kReductions, "reductions");
    }
  }
  co_return made;
}

NcclBackend::NcclBackend(EventLoop& loop, CudaDevice& device, Options options)
    : TickingPoller(loop),
      loop_(loop),
      device_(device),
      options_(std::move(options)),
      api_(options_.api != nullptr ? *options_.api : kNoApi),
      slab_(device.api(),
            {.say = [](const std::string&) {}}),  // what cannot be pinned is refused here
      watchdog_(api_,
                [&] {
                  NcclWatchdog::Options made = options_.watchdog;
                  made.clock = made.clock != nullptr ? made.clock : &loop.clock();
                  return made;
                }()),
      comms_{CommStream(device.stream("gathers", CudaDevice::Priority::kHigh)),
             CommStream(device.stream("reductions", CudaDevice::Priority::kHigh))} {
  TANDEM_CHECK(options_.world == 1 || (options_.api != nullptr && options_.peers != nullptr &&
                                       options_.from_rank_0 != nullptr),
               "several ranks have ways to tell each other something");
  for (CommStream& comm : comms_) {
    const std::size_t bytes = (1 + world()) * kExchangeBytes;
    comm.payload = allocate(bytes);
    comm.device_payload = device.allocate(bytes);
  }
  if (options_.peers != nullptr) {
    options_.peers->ask_for_waits([this](Duration at_least) { return awaited(at_least); });
  }
}

std::byte* NcclBackend::allocate(std::size_t bytes) {
  std::byte* const made = slab_.allocate(bytes);
  if (!slab_.is_pinned()) {
    throw failure(
        ExitCode::kRefused, "nccl",
        "{} bytes of host memory cannot be pinned for {}; raise the limit of locked memory "
        "(ulimit -l)",
        bytes, device_.name());
  }
  return made;
}

NcclBackend::~NcclBackend() {
  TANDEM_CHECK(!comms_[kGathers].busy && !comms_[kReductions].busy,
               "a collective outlives its back end");
  // Peers that go now may run the loop, which must not look here any more.
  rest();
  if (options_.peers != nullptr) {
    options_.peers->ask_for_waits(nullptr);
    options_.peers.reset();
  }
}

Task<> NcclBackend::initialise(std::size_t index, const char* what) {
  CommStream* const comm = &comms_[index];
  comm->name = fmt::format("{} {}", options_.name, what);
  const Busy busy(*this, index, ShmHeader{});
  NcclUniqueId id{};
  if (rank() == 0) {
    comm->result = api_.unique_id(&id);
    co_await settle(comm);
  }
  const std::string agreed =
      options_.from_rank_0(fmt::format("nccl/{}", comm->name), std::string(id.bytes, sizeof(id)));
  TANDEM_CHECK(agreed.size() == sizeof(id), "an id of NCCL's is of its size");
  std::memcpy(id.bytes, agreed.data(), sizeof(id));
  NcclConfig config;
  config.blocking = 0;
  config.name = comm->name.c_str();
  device_.use();
  void* communicator = nullptr;
  comm->result = api_.init_rank(&communicator, static_cast<int>(world()), id,
                                static_cast<int>(rank()), &config);
  watchdog_.adopt(index, communicator);
  co_await settle(comm);
}

// ---- gathers ----
Task<> NcclBackend::all_gather(GatherArguments a) {
  CommStream* const comm = &comms_[kGathers];
  const Busy busy(*this, kGathers,
                  header_for(ShmKind::kAllGather, comm->operations++, a.shard_bytes));
  if (a.shard_bytes == 0) {
    co_return;
  }
  fences_.wait(comm->stream, a.block.memory());
  if (world() > 1 && !a.is_replicated) {
    co_await launch(comm, [&a](const NcclApi& api, void* communicator, void* stream) {
      return api.all_gather(a.shard.memory(), a.block.memory(), a.shard_bytes, NcclType::kBytes,
                            communicator, stream);
    });
  } else if (a.shard != a.block) {
    comm->stream.to_device(a.block.memory(), {a.shard.memory(), a.shard_bytes});
  }
  co_await finish(comm);
}

Task<> NcclBackend::all_to_all(AllToAllArguments a) {
  CommStream* const comm = &comms_[kGathers];
  const Busy busy(*this, kGathers, header_for(ShmKind::kAllToAll, comm->operations++, a.bytes));
  if (a.bytes == 0) {
    co_return;
  }
  if (a.in_use_until != nullptr) {
    // By the host: a launch that cannot begin yet holds up those behind it, of other communicators
    // too, since NCCL keeps them in order.
    comm->awaits_operands = true;
    co_await reach(comm, *a.in_use_until);
    comm->awaits_operands = false;
  }
  if (world() > 1) {
    co_await launch(comm, [&a, this](const NcclApi& api, void* communicator, void* stream) {
      return grouped(api, [&] {
        NcclResult result = NcclResult::kSuccess;
        for (std::uint32_t p = 0; p < world() && went(result); ++p) {
          const int peer = static_cast<int>(p);
          result = api.send(a.from.memory() + p * a.bytes, a.bytes, NcclType::kBytes, peer,
                            communicator, stream);
          if (went(result)) {
            result = api.receive(a.into.memory() + p * a.bytes, a.bytes, NcclType::kBytes, peer,
                                 communicator, stream);
          }
        }
        return result;
      });
    });
  } else {
    comm->stream.to_device(a.into.memory(), {a.from.memory(), a.bytes});
  }
  co_await finish(comm);
}

// ---- small exchanges ----
Task<> NcclBackend::exchange(ExchangeArguments a) {
  TANDEM_CHECK_LE(a.bytes, kExchangeBytes, "an exchange is of a few bytes");
  CommStream* const comm = &comms_[kReductions];
  const Busy busy(*this, kReductions, header_for(ShmKind::kExchange, comm->operations++, a.bytes));
  std::byte* const all = comm->payload + kExchangeBytes;
  if (a.bytes > 0) {
    std::memcpy(world() > 1 ? comm->payload : all, a.mine.host(), a.bytes);
  }
  if (world() > 1) {
    // waiting for all ranks is a transfer, too
    const std::size_t bytes = std::max<std::size_t>(a.bytes, 1);
    std::byte* const device_all = comm->device_payload.data() + kExchangeBytes;
    comm->stream.to_device(comm->device_payload.data(), {comm->payload, bytes});
    co_await launch(comm, [=](const NcclApi& api, void* communicator, void* stream) {
      return api.all_gather(comm->device_payload.data(), device_all, bytes, NcclType::kBytes,
                            communicator, stream);
    });
    comm->stream.to_host({all, bytes * world()}, device_all);
    co_await finish(comm);
  }
  if (a.bytes > 0) {
    std::memcpy(a.all.host(), all, a.bytes * world());
  }
}

// ---- reductions ----
std::size_t NcclBackend::Slices::begin(std::uint32_t rank) const noexcept {
  return std::min(rank * slice, elements);
}
std::size_t NcclBackend::Slices::length(std::uint32_t rank) const noexcept {
  return std::min(slice, elements - begin(rank));
}

Task<GradientNorm> NcclBackend::reduce_scatter_add(ReduceArguments a) {
  TANDEM_CHECK(
      a.accumulator_type == DType::kF32 || (world() == 1 && a.block_type == a.accumulator_type &&
                                            a.mode == AccumulateMode::kOverwrite),
      "nothing is added in 16 bits");
  CommStream* const comm = &comms_[kReductions];
  const Busy busy(*this, kReductions, header_for(ShmKind::kReduceScatter, comm->operations++, a));
  fences_.wait(comm->stream, a.block.memory());
  clear_norm(*comm, a.want_norm);
  const Slices slices{.arguments = &a,
                      .slice = a.shard_elements,
                      .elements = a.shard_elements * world(),
                      .accumulator = static_cast<float*>(a.accumulator.memory()),
                      .first_element = 0};
  if (options_.own_sums && world() > 1) {
    co_await add_own_sum(comm, &a, false);
  } else {
    co_await add_slices(comm, &slices);
  }
  fetch_norms(*comm, a.want_norm, 1);
  co_await finish(comm);
  co_return a.want_norm ? norm_of(*comm, 1) : GradientNorm();
}

// Each rank reduces a slice, then the slices and their norms go to every rank.
Task<GradientNorm> NcclBackend::all_reduce_add(ReduceArguments a) {
  if (world() == 1) {
    co_return co_await reduce_scatter_add(a);  // the slice of the only rank is the whole block
  }
  TANDEM_CHECK(a.accumulator_type == DType::kF32, "ranks are added in fp32");
  CommStream* const comm = &comms_[kReductions];
  const Busy busy(*this, kReductions, header_for(ShmKind::kAllReduce, comm->operations++, a));
  fences_.wait(comm->stream, a.block.memory());
  clear_norm(*comm, a.want_norm);
  if (options_.own_sums) {
    co_await add_own_sum(comm, &a, true);
    fetch_norms(*comm, a.want_norm, 1);
    co_await finish(comm);
    co_return a.want_norm ? norm_of(*comm, 1) : GradientNorm();
  }
  auto* const accumulator = static_cast<float*>(a.accumulator.memory());
  Slices slices{.arguments = &a,
                .slice = chunks_of(chunks_of(a.shard_elements, kNormTile), world()) * kNormTile,
                .elements = a.shard_elements};
  slices.accumulator = accumulator + slices.begin(rank());
  slices.first_element = static_cast<std::int64_t>(slices.begin(rank()));
  co_await add_slices(comm, &slices);
  co_await launch(comm, [&, this](const NcclApi& api, void* communicator, void* stream) {
    return grouped(api, [&] {
      NcclResult result = NcclResult::kSuccess;
      if (slices.slice * world() == slices.elements) {
        result = api.all_gather(slices.accumulator, accumulator, slices.slice, NcclType::kF32,
                                communicator, stream);
      } else {
        for (std::uint32_t p = 0; p < world() && went(result); ++p) {
          float* const part = accumulator + slices.begin(p);
          if (slices.length(p) > 0) {
            result = api.broadcast(part, part, slices.length(p), NcclType::kF32,
                                   static_cast<int>(p), communicator, stream);
          }
        }
      }
      if (a.want_norm && went(result)) {
        result = api.all_gather(norm_limbs(*comm), comm->device_payload.data() + kExchangeBytes,
                                sizeof(NormLimbs), NcclType::kBytes, communicator, stream);
      }
      return result;
    });
  });
  fetch_norms(*comm, a.want_norm, world());
  co_await finish(comm);
  co_return a.want_norm ? norm_of(*comm, world()) : GradientNorm();
}

// NCCL writes its sum into the workspace; it is added to the accumulator like one rank's values.
Task<> NcclBackend::add_own_sum(CommStream* comm, const ReduceArguments* a, bool is_all) {
  have_workspace(a->shard_elements * bytes_of(a->block_type));
  co_await launch(comm, [a, is_all, this](const NcclApi& api, void* communicator, void* stream) {
    const auto sum = is_all ? api.all_reduce : api.reduce_scatter;
    return sum(a->block.memory(), workspace_.data(), a->shard_elements, nccl_type(a->block_type),
               NcclOp::kSum, communicator, stream);
  });
  add(*comm, {.own = workspace_.data(),
              .block_type = static_cast<int>(a->block_type),
              .add = a->mode == AccumulateMode::kAdd,
              .accumulator = static_cast<float*>(a->accumulator.memory()),
              .elements = a->shard_elements,
              .norm = a->want_norm ? norm_limbs(*comm) : nullptr});
}

// Piece by piece: the ranks' values of a piece are received into the workspace, and a kernel adds
// them, before the next piece is received.
Task<> NcclBackend::add_slices(CommStream* comm, const Slices* slices) {
  const std::size_t width = bytes_of(slices->arguments->block_type);
  if (world() == 1) {
    add_piece(*comm, *slices, 0, slices->slice);
    co_return;
  }
  const std::size_t most =
      std::max(options_.workspace_bytes / world() / kPieceGrain, std::size_t{1}) * kPieceGrain /
      width;
  const std::size_t piece = std::min(most, slices->slice);
  have_workspace(piece * width * world());
  for (std::size_t at = 0; at < slices->slice; at += piece) {
    co_await transfer_piece(comm, slices, at, piece);
    add_piece(*comm, *slices, at, piece);
  }
}

Task<> NcclBackend::transfer_piece(CommStream* comm, const Slices* slices, std::size_t at,
                                   std::size_t most) {
  return launch(comm, [=, this](const NcclApi& api, void* communicator, void* stream) {
    return grouped(api, [&] {
      const std::size_t width = bytes_of(slices->arguments->block_type);
      const auto count_of = [&](std::uint32_t r) {
        return std::min(most, slices->length(r) - std::min(at, slices->length(r)));
      };
      NcclResult result = NcclResult::kSuccess;
      for (std::uint32_t p = 0; p < world() && went(result); ++p) {
        const int peer = static_cast<int>(p);
        if (p != rank() && count_of(p) > 0) {
          result = api.send(slices->arguments->block.memory() + (slices->begin(p) + at) * width,
                            count_of(p) * width, NcclType::kBytes, peer, communicator, stream);
        }
        if (p != rank() && count_of(rank()) > 0 && went(result)) {
          result = api.receive(workspace_.data() + p * most * width, count_of(rank()) * width,
                               NcclType::kBytes, peer, communicator, stream);
        }
      }
      return result;
    });
  });
}

void NcclBackend::add_piece(CommStream& comm, const Slices& slices, std::size_t at,
                            std::size_t most) {
  const ReduceArguments& a = *slices.arguments;
  const std::size_t width = bytes_of(a.block_type);
  const std::size_t length = slices.length(rank());
  const bool widens = a.accumulator_type == DType::kF32;
  if (a.accumulator.identity() == a.block.identity() && !a.want_norm) {
    return;  // one rank alone: the sum is in place
  }
  add(comm, {.own = a.block.memory() + (slices.begin(rank()) + at) * width,
             .others = workspace_.data(),
             .stride_bytes = most * width,
             .world = world(),
             .rank = rank(),
             .block_type = static_cast<int>(a.block_type),
             .add = a.mode == AccumulateMode::kAdd,
             .accumulator = widens ? slices.accumulator + at : nullptr,
             .copy = widens ? nullptr : a.accumulator.memory(),
             .elements = std::min(most, length - std::min(at, length)),
             .norm = a.want_norm ? norm_limbs(comm) : nullptr,
             .first_element = slices.first_element + static_cast<std::int64_t>(at)});
}

void NcclBackend::add(CommStream& comm, const RankOrderSum& sum) {
  if (sum.elements > 0) {
    comm.stream.launch("add in rank order", {}, [this, &sum](void* stream) {
      device_.check(options_.kernels->add_in_rank_order(sum, stream), "a sum cannot be launched");
    });
  }
}

// It grows in the first steps. The old memory is not in use: an operation ends after its last
// kernel.
void NcclBackend::have_workspace(std::size_t bytes) {
  if (workspace_.size_bytes() < bytes) {
    workspace_ = DeviceBuffer();
    workspace_ = device_.allocate(bytes);
  }
}

// ---- norms ----
std::uint64_t* NcclBackend::norm_limbs(const CommStream& comm) const {
  return reinterpret_cast<std::uint64_t*>(comm.device_payload.data());
}

void NcclBackend::clear_norm(CommStream& comm, bool wanted) {
  if (wanted) {
    comm.stream.launch("clear norm", {}, [this, &comm](void* stream) {
      device_.check(options_.kernels->clear_norm(norm_limbs(comm), stream),
                    "a norm cannot be cleared");
    });
  }
}

// One norm is this rank's own; several are the gathered ones.
void NcclBackend::fetch_norms(CommStream& comm, bool wanted, std::size_t count) {
  if (wanted) {
    const std::size_t at = count == 1 ? 0 : kExchangeBytes;
    comm.stream.to_host({comm.payload + at, count * sizeof(NormLimbs)},
                        comm.device_payload.data() + at);
  }
}

GradientNorm NcclBackend::norm_of(const CommStream& comm, std::size_t count) const {
  const std::byte* const at = comm.payload + (count == 1 ? 0 : kExchangeBytes);
  return merge_norms({reinterpret_cast<const NormLimbs*>(at), count});
}

}  // namespace tandem
