// Reductions between hosts with one rank each: every rank sends the values of each slice to the
// slice's owner at once, in their own type, and the owner adds them in rank order. The bits are
// those of a sum that goes from host to host, but the delay is one message instead of one per host.
// With one rank on each host, nothing can be added before sending.
//   reduce-scatter  A slice is a shard.
//   all-reduce      The block is divided among the ranks in whole norm tiles. The values to which
//                   a slice is added are the same on all ranks; its sums go to all ranks, piece by
//                   piece.
#include <algorithm>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "actors/collectives/rank_sum.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

struct HostsBackend::DirectReduction {
  ReduceArguments a;
  bool is_all;
  std::size_t slice;      // elements of an owner's, at its number times that in the block
  std::size_t whole;      // elements of all slices
  std::size_t piece = 0;  // elements, whole norm tiles
  std::size_t depth = 0;  // pieces that have come and are not added yet, at most
  GradientNorm norm;
  Progress came;  // frames
  Progress added;

  [[nodiscard]] std::size_t width() const noexcept { return bytes_of(a.block_type); }
  /// Elements of the owner's slice from `begin` on, at most a piece.
  [[nodiscard]] std::size_t elements(std::uint32_t owner, std::size_t begin) const noexcept {
    const std::size_t from = std::min(owner * slice + begin, whole);
    const std::size_t end = std::min((owner + 1) * slice, whole);
    return std::min(piece, end - std::min(from, end));
  }
  /// Where sums of the owner's slice lie.
  [[nodiscard]] float* sum(std::uint32_t owner, std::size_t begin) const {
    return static_cast<float*>(a.accumulator.host()) + (is_all ? owner * slice : 0) + begin;
  }
  [[nodiscard]] std::span<std::byte> sums(std::uint32_t owner, std::size_t begin) const {
    return std::as_writable_bytes(std::span(sum(owner, begin), elements(owner, begin)));
  }
};

Task<GradientNorm> HostsBackend::reduce_directly(ReduceArguments a, bool is_all) {
  const std::size_t others = hosts() - 1;
  const std::size_t width = bytes_of(a.block_type);
  const std::size_t blocks = (a.shard_elements + kNormTile - 1) / kNormTile;
  DirectReduction op{
      .a = a,
      .is_all = is_all,
      .slice = is_all ? (blocks + hosts() - 1) / hosts() * kNormTile : a.shard_elements,
      .whole = is_all ? a.shard_elements : hosts() * a.shard_elements};
  const std::size_t room = (kSlots + 1) * options_.piece_bytes / width;
  const std::size_t most =
      std::min({options_.piece_bytes / width, options_.frame_bytes / width, room / (2 * others)});
  op.piece = std::max(most / kNormTile, std::size_t{1}) * kNormTile;
  op.depth = std::max(room / (others * op.piece), std::size_t{2});
  sums_.resize(std::max(sums_.size(), op.depth * others * op.piece * width / sizeof(float)));
  if (!is_all) {
    co_await run<DirectReduction, 3>(
        &op,
        {&HostsBackend::send_values, &HostsBackend::receive_values, &HostsBackend::add_values});
    co_return op.norm;
  }
  co_await run<DirectReduction, 5>(
      &op, {&HostsBackend::send_values, &HostsBackend::receive_values, &HostsBackend::add_values,
            &HostsBackend::send_own_sums, &HostsBackend::receive_other_sums});
  if (a.want_norm) {
    norms_.resize(hosts());
    const NormLimbs own = NormLimbs::of(op.norm);
    co_await exchange({.mine = reinterpret_cast<const std::byte*>(&own),
                       .all = reinterpret_cast<std::byte*>(norms_.data()),
                       .bytes = sizeof(NormLimbs)});
    co_return merge_norms(norms_);
  }
  co_return op.norm;
}

/// Where what `from` gives of piece `i` lies once it is here.
std::byte* HostsBackend::place_of(const DirectReduction& op, std::size_t i,
                                  std::uint32_t from) noexcept {
  const std::uint32_t step = (from + hosts() - host()) % hosts();
  const std::size_t frame = i % op.depth * (hosts() - 1) + step - 1;
  return reinterpret_cast<std::byte*>(sums_.data()) + frame * op.piece * op.width();
}

Task<> HostsBackend::send_values(DirectReduction* op) {
  for (std::size_t begin = 0; begin < op->slice; begin += op->piece) {
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      const std::uint32_t to = host_after(step);
      if (const std::size_t elements = op->elements(to, begin); elements > 0) {
        co_await send(
            to, kForward,
            {op->a.block.host() + (to * op->slice + begin) * op->width(), elements * op->width()});
      }
    }
  }
}

Task<> HostsBackend::receive_values(DirectReduction* op) {
  std::size_t i = 0;
  for (std::size_t begin = 0; op->elements(host(), begin) > 0; begin += op->piece, ++i) {
    co_await op->added.reach(i < op->depth ? 0 : i + 1 - op->depth);
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      const std::uint32_t from = host_after(hosts() - step);
      co_await receive(from, kForward,
                       {place_of(*op, i, from), op->elements(host(), begin) * op->width()});
      op->came.advance();
    }
  }
}

Task<> HostsBackend::add_values(DirectReduction* op) {
  std::size_t i = 0;
  for (std::size_t begin = 0; op->elements(host(), begin) > 0; begin += op->piece, ++i) {
    if (!planted(Bug::kReduceInArrivalOrder)) {
      co_await op->came.reach((i + 1) * (hosts() - 1));
    }
    const auto add = [this, op, i, begin] { add_piece(*op, i, begin); };
    if (stays_on_loop(op->elements(host(), begin) * op->width() * hosts())) {
      add();
    } else {
      co_await pool_.run(add, op->a.name);
    }
    op->added.advance();
  }
}

// Tile by tile: a tile of the accumulator stays in the first cache while all ranks' are added.
void HostsBackend::add_piece(DirectReduction& op, std::size_t i, std::size_t begin) {
  constexpr std::size_t kTile = 8 * kNormTile;
  const std::size_t first = host() * op.slice;  // of this rank's, in the block
  const std::size_t end = begin + op.elements(host(), begin);
  for (std::size_t at = begin; at < end; at += kTile) {
    const std::size_t count = std::min(kTile, end - at);
    GradientNorm tile;
    add_ranks(
        {.sum = op.sum(host(), at),
         .type = op.a.block_type,
         .count = count,
         .mode = op.a.mode,
         .ranks = hosts(),
         .tree = op.a.tree},
        [&](std::uint32_t from) -> const std::byte* {
          return from == host() ? op.a.block.host() + (first + at) * op.width()
                                : place_of(op, i, from) + (at - begin) * op.width();
        },
        op.a.want_norm ? &tile : nullptr);
    merge_part(op.norm, tile, (op.is_all ? first : 0) + at);
  }
}

// ---- of an all-reduce: the sums, to all ----
Task<> HostsBackend::send_own_sums(DirectReduction* op) {
  std::size_t i = 0;
  for (std::size_t begin = 0; op->elements(host(), begin) > 0; begin += op->piece) {
    co_await op->added.reach(++i);
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      co_await send(host_after(step), kBack, op->sums(host(), begin));
    }
  }
}

Task<> HostsBackend::receive_other_sums(DirectReduction* op) {
  for (std::size_t begin = 0; begin < op->slice; begin += op->piece) {
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      const std::uint32_t from = host_after(hosts() - step);
      if (op->elements(from, begin) > 0) {
        co_await receive(from, kBack, op->sums(from, begin));
      }
    }
  }
}

}  // namespace tandem
