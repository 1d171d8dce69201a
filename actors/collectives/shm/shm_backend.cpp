#include "actors/collectives/shm/shm_backend.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "actors/collectives/rank_sum.hpp"
#include "runtime/flight.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/seconds_setting.hpp"

namespace tandem {
namespace {

constexpr std::size_t kStageBytes = std::size_t{1} << 20;  // of a channel; there are two, in turn
constexpr std::size_t kStepGrain = 4096;                   // whole norm tiles of every type
constexpr std::size_t kMostRanks = kStageBytes / kStepGrain;
constexpr std::size_t kCopyChunkBytes = std::size_t{256} << 10;
constexpr std::size_t kReduceChunk = std::size_t{64} << 10;  // elements
constexpr std::size_t kReduceTile = std::size_t{4} << 10;    // elements; stays in the first cache
// The loop copies up to this size itself, in some ten microseconds; a hand-over to the pool and
// back takes twice as long.
constexpr std::size_t kInlineBytes = std::size_t{128} << 10;
static_assert(kReduceChunk % kReduceTile == 0 && kReduceTile % kNormTile == 0);
static_assert(kStepGrain % (kNormTile * sizeof(float)) == 0);

constexpr std::size_t chunks_of(std::size_t total, std::size_t chunk) {
  return (total + chunk - 1) / chunk;
}

ShmHeader header_for(ShmKind kind, std::uint64_t number, std::size_t bytes) {
  return {.kind = kind, .number = number, .bytes = bytes};
}

std::uint32_t types_of(const ReduceArguments& a) {
  return static_cast<std::uint32_t>(a.block_type) * 2 + (a.mode == AccumulateMode::kAdd ? 1U : 0U);
}

std::size_t arena_bytes(const ShmBackend::Options& options) {
  const std::size_t stages = 2 * ShmControl::kChannels * kStageBytes;
  const std::size_t room = options.arena_bytes > 0
                               ? options.arena_bytes
                               : 2 * machine::memory_total_bytes() / options.world;
  return sizeof(ShmControl) + stages + room +
         (std::size_t{4} << 20);  // and the boundaries of pages
}

}  // namespace

Duration ShmBackend::default_timeout() {
  return seconds_setting("TANDEM_COLLECTIVE_TIMEOUT_S", std::chrono::seconds(600));
}

Duration ShmBackend::default_heartbeat() {
  return seconds_setting("TANDEM_HEARTBEAT_S", std::chrono::seconds(5));
}

std::unique_ptr<ShmBackend> ShmBackend::connect(EventLoop& loop, CpuPool& pool, Options options) {
  TANDEM_CHECK_LE(options.world, kMostRanks, "more ranks than a host can have");
  const flight::Span connecting(flight::Kind::kConnect);
  auto arena = std::make_unique<ShmArena>(arena_bytes(options));
  auto* control = new (arena->allocate(sizeof(ShmControl))) ShmControl();
  std::vector<ShmPeer> peers = bootstrap_shm({.rank = options.rank,
                                              .world = options.world,
                                              .first_rank = options.first_rank,
                                              .job = options.job,
                                              .timeout = options.connect_timeout},
                                             *arena);
  peers[options.rank].memory = arena->shared_mapping();
  return std::unique_ptr<ShmBackend>(
      new ShmBackend(loop, pool, std::move(arena), *control, std::move(peers), options));
}

ShmBackend::ShmBackend(EventLoop& loop, CpuPool& pool, std::unique_ptr<ShmArena> arena,
                       ShmControl& control, std::vector<ShmPeer> peers, const Options& options)
    : pool_(pool),
      arena_(std::move(arena)),
      sync_(loop, control, std::move(peers),
            {.rank = options.rank,
             .first_rank = options.first_rank,
             .all_ranks = options.all_ranks,
             .outside_ranks = options.outside_ranks,
             .run_waits = options.run_waits,
             .group_waits = options.group_waits,
             .timeout = options.timeout,
             .heartbeat = options.heartbeat}),
      stage_(arena_->allocate(2 * ShmControl::kChannels * kStageBytes)),
      all_norms_(options.world) {}

void ShmBackend::abort(std::string_view why) noexcept {
  fail(sync_.name_of(rank()), fmt::format("rank {} aborted: {}", sync_.name_of(rank()), why));
}

// ---- the operations ----
Task<> ShmBackend::all_gather(GatherArguments a) {
  if (a.is_replicated) {
    const auto copy = [block = a.block.host(), shard = a.shard.host(), bytes = a.shard_bytes] {
      std::memcpy(block, shard, shard == block ? 0 : bytes);
    };
    co_await pool_.run(copy, a.name);
    co_return;
  }
  co_await gather(Sequence::kGathers,
                  {a.shard.host(), a.block.host(), a.shard_bytes, a.shard_bytes, a.name});
}

Task<> ShmBackend::gather(Sequence sequence, Gather what) {
  const std::size_t channel = sequence == Sequence::kGathers ? kGathers : kReductions;
  const ShmHeader header = header_for(ShmKind::kAllGather, numbers_[channel]++, what.bytes);
  if (what.bytes <= kExchangeBytes) {
    co_await exchange_payload(channel, {what.part, what.bytes}, header,
                              [what](std::uint32_t from, const std::byte* payload) {
                                if (what.bytes > 0) {
                                  std::memcpy(what.into + from * what.stride, payload, what.bytes);
                                }
                              });
    co_return;
  }
  Operation op{.channel = channel,
               .header = header,
               .source = what.part,
               .part_bytes = what.bytes,
               .total_bytes = what.bytes * world(),
               .into_stride = what.stride,
               .into = what.into,
               .name = what.name};
  co_await carry_out(&op);
}

Task<> ShmBackend::all_to_all(AllToAllArguments a) {
  const ShmHeader header = header_for(ShmKind::kAllToAll, numbers_[kGathers]++, a.bytes);
  if (a.bytes * world() <= kExchangeBytes) {
    const std::size_t mine = rank() * a.bytes;
    co_await exchange_payload(kGathers, {a.from.host(), a.bytes * world()}, header,
                              [a, mine](std::uint32_t from, const std::byte* payload) {
                                std::copy_n(payload + mine, a.bytes,
                                            a.into.host() + from * a.bytes);
                              });
    co_return;
  }
  Operation op{.header = header,
               .source = a.from.host(),
               .scatters = true,
               .part_bytes = a.bytes,
               .total_bytes = a.bytes * world(),
               .from_stride = a.bytes,
               .into_stride = a.bytes,
               .into = a.into.host(),
               .name = "all-to-all"};
  co_await carry_out(&op);
}

Task<GradientNorm> ShmBackend::reduce_scatter_add(ReduceArguments a) {
  return reduce_parts(a, a.shard_elements * bytes_of(a.block_type));
}

Task<> ShmBackend::reduce(Reduce what) {
  (void)co_await reduce_parts({.block = what.block,
                               .block_type = what.block_type,
                               .accumulator = what.sum,
                               .shard_elements = what.elements,
                               .mode = what.mode,
                               .tree = what.tree,
                               .name = what.name},
                              what.stride * bytes_of(what.block_type));
}

Task<GradientNorm> ShmBackend::reduce_parts(ReduceArguments a, std::size_t from_stride) {
  TANDEM_CHECK(a.accumulator_type == DType::kF32, "ranks are added in fp32");
  const std::size_t bytes = a.shard_elements * bytes_of(a.block_type);
  Operation op{.channel = kReductions,
               .header = header_for(ShmKind::kReduceScatter, numbers_[kReductions]++, bytes),
               .source = a.block.host(),
               .scatters = true,
               .part_bytes = bytes,
               .total_bytes = bytes * world(),
               .from_stride = from_stride,
               .reduce = &a,
               .accumulator = static_cast<float*>(a.accumulator.host()),
               .name = a.name};
  op.header.types = types_of(a);
  co_await carry_out(&op);
  co_return op.norm;
}

// Three phases: each rank reduces its slice of the block, the slices go to every rank, and so do
// the norms.
Task<GradientNorm> ShmBackend::all_reduce_add(ReduceArguments a) {
  TANDEM_CHECK(a.accumulator_type == DType::kF32, "ranks are added in fp32");
  const std::size_t width = bytes_of(a.block_type);
  const std::size_t slice = chunks_of(chunks_of(a.shard_elements, kNormTile), world()) * kNormTile;
  auto* accumulator = static_cast<float*>(a.accumulator.host());
  Operation add{
      .channel = kReductions,
      .header = header_for(ShmKind::kAllReduce, numbers_[kReductions]++, a.shard_elements * width),
      .source = a.block.host(),
      .scatters = true,
      .part_bytes = slice * width,
      .total_bytes = a.shard_elements * width,
      .from_stride = slice * width,
      .reduce = &a,
      .name = a.name};
  add.header.types = types_of(a);
  const std::size_t own = add.part_begin(rank()) / width;
  add.accumulator = accumulator + own;
  add.first_element = static_cast<std::int64_t>(own);
  co_await carry_out(&add);

  Operation give{.channel = kReductions,
                 .header = add.header,
                 .source = reinterpret_cast<const std::byte*>(accumulator + own),
                 .part_bytes = slice * sizeof(float),
                 .total_bytes = a.shard_elements * sizeof(float),
                 .into_stride = slice * sizeof(float),
                 .into = static_cast<std::byte*>(a.accumulator.host()),
                 .name = a.name};
  give.header.phase = 1;
  co_await carry_out(&give);
  if (!a.want_norm) {
    co_return GradientNorm();
  }
  ShmHeader header = add.header;
  header.phase = 2;
  co_return co_await merge(add.norm, header);
}

Task<GradientNorm> ShmBackend::merge(GradientNorm norm, ShmHeader header) {
  const NormLimbs own = NormLimbs::of(norm);
  co_await exchange_small(kReductions,
                          {.mine = reinterpret_cast<const std::byte*>(&own),
                           .all = reinterpret_cast<std::byte*>(all_norms_.data()),
                           .bytes = sizeof(NormLimbs)},
                          header);
  co_return merge_norms(all_norms_);
}

Task<> ShmBackend::exchange(ExchangeArguments a) {
  TANDEM_CHECK_LE(a.bytes, kExchangeBytes, "an exchange is of a few bytes");
  return exchange_small(kReductions, a,
                        header_for(ShmKind::kExchange, numbers_[kReductions]++, a.bytes));
}

Task<> ShmBackend::exchange_small(std::size_t channel, ExchangeArguments a, ShmHeader header) {
  return exchange_payload(channel, {a.mine.host(), a.bytes}, header,
                          [a](std::uint32_t from, const std::byte* payload) {
                            if (a.bytes > 0) {
                              std::memcpy(a.all.host() + from * a.bytes, payload, a.bytes);
                            }
                          });
}

// The payload is sent with the headers, so the operation is complete when all ranks have arrived.
template <class Take>
Task<> ShmBackend::exchange_payload(std::size_t channel, std::span<const std::byte> mine,
                                    ShmHeader header, Take take) {
  const std::size_t place = sync_.sequence(channel) % 2;
  if (!mine.empty()) {
    std::memcpy(sync_.own().channels[channel].payload[place].data(), mine.data(), mine.size());
  }
  co_await sync_.arrive(channel, header);
  for (std::uint32_t from = 0; from < world(); ++from) {
    take(from, sync_.of(from).channels[channel].payload[place].data());
  }
  sync_.finish(channel);
}

// ---- one operation, step by step ----
std::size_t ShmBackend::Operation::part_begin(std::uint32_t rank) const noexcept {
  return std::min(rank * part_bytes, total_bytes);
}

std::size_t ShmBackend::Operation::part_length(std::uint32_t rank) const noexcept {
  return std::min(part_bytes, total_bytes - part_begin(rank));
}

std::size_t ShmBackend::Operation::given_bytes(std::uint32_t rank,
                                               std::uint32_t world) const noexcept {
  return !scatters                   ? part_length(rank)
         : from_stride == part_bytes ? total_bytes
                                     : (world - 1) * from_stride + part_bytes;
}

// With every operand in the arenas there is one step. Otherwise the halves of the transfer buffer
// are filled and emptied in turn: half k % 2 is filled with step k when all ranks have finished
// step k - 2.
Task<> ShmBackend::carry_out(Operation* op) {
  const std::size_t channel = op->channel;
  co_await begin(op);
  const std::uint64_t first = op->first_step;
  for (std::size_t step = 0; step < op->steps; ++step) {
    if (step > 0) {
      co_await sync_.all_reach(channel, ShmChannel::kStaged, first + step + 1);
    }
    if (step + 1 < op->steps) {
      if (step > 0) {
        co_await sync_.all_reach(channel, ShmChannel::kTaken, first + step);
      }
      co_await stage(op, step + 1);
      sync_.publish(channel, ShmChannel::kStaged, first + step + 2);
    }
    if (op->reduce != nullptr) {
      co_await reduce(op, step);
    } else {
      co_await copy(op, step);
    }
    sync_.publish(channel, ShmChannel::kTaken, first + step + 1);
  }
  co_await sync_.all_reach(channel, ShmChannel::kTaken, first + op->steps);
  steps_[channel] += op->steps;
  sync_.finish(channel);
}

Task<> ShmBackend::begin(Operation* op) {
  const std::size_t parts = op->scatters ? world() : 1;
  op->step_bytes = kStageBytes / parts / kStepGrain * kStepGrain;
  op->first_step = steps_[op->channel];
  const std::size_t given = op->given_bytes(rank(), world());
  const std::byte* base = arena_->mapping().data();
  if (given == 0) {
    op->header.offset = 0;
  } else if (arena_->mapping().contains(op->source, given)) {
    op->header.offset = static_cast<std::uint64_t>(op->source - base);
  } else {
    op->header.is_staged = 1;
    op->header.offset = static_cast<std::uint64_t>(stage_of(op->channel, 0) - base);
    co_await stage(op, 0);
  }
  co_await sync_.arrive(op->channel, op->header);
  check_operands(*op);
  bool staged = op->header.is_staged != 0;
  for (std::uint32_t peer = 0; peer < world() && !staged; ++peer) {
    staged = peer != rank() && sync_.header_of(peer, op->channel).is_staged != 0;
  }
  if (staged) {
    op->steps = std::max<std::size_t>(1, chunks_of(op->part_bytes, op->step_bytes));
  } else {
    op->step_bytes = op->part_bytes;
  }
}

void ShmBackend::check_operands(const Operation& op) {
  const std::size_t width = op.reduce != nullptr ? bytes_of(op.reduce->block_type) : 1;
  for (std::uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) {
      continue;
    }
    const ShmHeader& header = sync_.header_of(peer, op.channel);
    const std::size_t room = sync_.memory_bytes_of(peer);
    const std::size_t bytes =
        header.is_staged != 0 ? 2 * kStageBytes : op.given_bytes(peer, world());
    if (header.offset % width != 0 || header.offset > room || bytes > room - header.offset) {
      sync_.refuse_operand(op.channel, peer);
    }
  }
}

std::byte* ShmBackend::stage_of(std::size_t channel, std::size_t step) const noexcept {
  return stage_ + (2 * channel + step % 2) * kStageBytes;
}

Task<> ShmBackend::stage(const Operation* op, std::size_t step) {
  if (op->header.is_staged == 0) {
    co_return;
  }
  if (op->step_bytes * (op->scatters ? world() : 1) <= kInlineBytes ||
      op->total_bytes <= kInlineBytes) {
    stage_now(*op, step);
  } else {
    co_await pool_.run([this, op, step] { stage_now(*op, step); }, op->name);
  }
}

void ShmBackend::stage_now(const Operation& op, std::size_t step) const {
  const std::size_t begin = step * op.step_bytes;
  std::byte* into = stage_of(op.channel, step);
  for (std::uint32_t part = 0; part < world(); ++part) {
    // A gather has one part to give, this rank's own; what is scattered to this rank itself stays
    // where it is.
    if (op.scatters == (part == rank())) {
      continue;
    }
    const std::size_t length = op.part_length(part);
    if (begin < length) {
      std::memcpy(into + (op.scatters ? part * op.step_bytes : 0),
                  op.source + (op.scatters ? part * op.from_stride : 0) + begin,
                  std::min(op.step_bytes, length - begin));
    }
  }
}

// Returns the address of byte `at` of the data that `from` gives to this rank.
const std::byte* ShmBackend::part_of(const Operation& op, std::uint32_t from, std::size_t step,
                                     std::size_t at) const {
  if (from == rank()) {
    return op.source + (op.scatters ? rank() * op.from_stride : 0) + at;
  }
  const ShmHeader& header = sync_.header_of(from, op.channel);
  const std::byte* operand = sync_.memory_of(from) + header.offset;
  if (header.is_staged != 0) {
    return operand + step % 2 * kStageBytes + (op.scatters ? rank() * op.step_bytes : 0) +
           (at - step * op.step_bytes);
  }
  return operand + (op.scatters ? rank() * op.from_stride : 0) + at;
}

Task<> ShmBackend::copy(const Operation* op, std::size_t step) {
  const std::size_t begin = step * op->step_bytes;
  const std::size_t longest =
      std::min(op->step_bytes, op->part_bytes - std::min(begin, op->part_bytes));
  const std::size_t per_rank = chunks_of(longest, kCopyChunkBytes);
  const std::size_t chunks = per_rank * world();
  if (longest * world() <= kInlineBytes) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      copy_chunk(*op, step, chunk, per_rank);
    }
  } else {
    const auto copy_one = [this, op, step, per_rank](std::size_t chunk) {
      copy_chunk(*op, step, chunk, per_rank);
    };
    co_await pool_.for_chunks(chunks, copy_one, {.name = op->name});
  }
}

// Each rank begins with its next neighbour, so that not all of them read one rank's memory at a
// time.
void ShmBackend::copy_chunk(const Operation& op, std::size_t step, std::size_t chunk,
                            std::size_t chunks_per_rank) const {
  const auto from = static_cast<std::uint32_t>((rank() + 1 + chunk / chunks_per_rank) % world());
  const std::size_t begin = step * op.step_bytes + chunk % chunks_per_rank * kCopyChunkBytes;
  const std::size_t step_end = (step + 1) * op.step_bytes;
  const std::size_t length = op.scatters ? op.part_length(rank()) : op.part_length(from);
  const std::size_t end = std::min({begin + kCopyChunkBytes, step_end, length});
  if (begin >= end) {
    return;
  }
  const std::byte* source = part_of(op, from, step, begin);
  std::byte* target = op.into + from * op.into_stride + begin;
  if (source != target) {
    std::memcpy(target, source, end - begin);
  }
}

Task<> ShmBackend::reduce(Operation* op, std::size_t step) {
  const std::size_t width = bytes_of(op->reduce->block_type);
  const std::size_t begin = step * op->step_bytes;
  const std::size_t length = op->part_length(rank());
  const std::size_t bytes = std::min(op->step_bytes, length - std::min(begin, length));
  const std::size_t chunks = chunks_of(bytes / width, kReduceChunk);
  norms_.assign(chunks, GradientNorm());
  GradientNorm* norms = norms_.data();
  if (bytes * world() <= kInlineBytes) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      reduce_chunk(*op, step, chunk, norms[chunk]);
    }
  } else {
    const auto reduce_one = [this, op, step, norms](std::size_t chunk) {
      reduce_chunk(*op, step, chunk, norms[chunk]);
    };
    co_await pool_.for_chunks(chunks, reduce_one, {.name = op->name});
  }
  for (const GradientNorm& norm : norms_) {
    op->norm.merge(norm);
  }
}

// Tile by tile: a tile of the accumulator stays in the first cache while the ranks' are added to
// it, in their order.
void ShmBackend::reduce_chunk(const Operation& op, std::size_t step, std::size_t chunk,
                              GradientNorm& norm) const {
  const DType type = op.reduce->block_type;
  const std::size_t width = bytes_of(type);
  const std::size_t step_end = std::min((step + 1) * op.step_bytes, op.part_length(rank())) / width;
  const std::size_t begin = step * op.step_bytes / width + chunk * kReduceChunk;
  const std::size_t end = std::min(begin + kReduceChunk, step_end);
  for (std::size_t at = begin; at < end; at += kReduceTile) {
    const std::size_t count = std::min(kReduceTile, end - at);
    GradientNorm tile;
    const RankSum sum{op.accumulator + at, type, count, op.reduce->mode, world(), op.reduce->tree};
    const auto of_rank = [&](std::uint32_t from) { return part_of(op, from, step, at * width); };
    add_ranks(sum, of_rank, op.reduce->want_norm ? &tile : nullptr);
    merge_part(norm, tile, at + static_cast<std::size_t>(op.first_element));
  }
}

}  // namespace tandem
