// A reduce-scatter of ranks that are alone on their hosts: each sends the values of every shard to
// its owner at once, in their own type, and the owner adds them in rank order. The bits are those
// of a sum that goes from host to host, after one message's way instead of one for each host; with
// a rank on each host there is nothing to add first.
#include <algorithm>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

struct HostsBackend::DirectReduction {
  ReduceArguments a;
  std::size_t piece;  // elements, whole norm blocks
  std::size_t depth;  // pieces that have come and are not added yet, at most
  GradientNorm norm;
  Progress came;  // frames
  Progress added;

  [[nodiscard]] std::size_t width() const noexcept { return bytes_of(a.block_type); }
  [[nodiscard]] std::size_t elements(std::size_t begin) const noexcept {
    return std::min(piece, a.shard_elements - begin);
  }
};

Task<GradientNorm> HostsBackend::reduce_directly(ReduceArguments a) {
  const std::size_t others = hosts() - 1;
  const std::size_t room = (kSlots + 1) * options_.piece_bytes / bytes_of(a.block_type);
  const std::size_t most =
      std::min({options_.piece_bytes / bytes_of(a.block_type),
                options_.frame_bytes / bytes_of(a.block_type), room / (2 * others)});
  DirectReduction op{.a = a, .piece = std::max(most / kNormBlock, std::size_t{1}) * kNormBlock};
  op.depth = std::max(room / (others * op.piece), std::size_t{2});
  sums_.resize(std::max(sums_.size(), op.depth * others * op.piece * op.width() / sizeof(float)));
  co_await run<DirectReduction, 3>(
      &op, {&HostsBackend::send_values, &HostsBackend::receive_values, &HostsBackend::add_values});
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
  for (std::size_t begin = 0; begin < op->a.shard_elements; begin += op->piece) {
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      const std::uint32_t to = host_after(step);
      co_await send(to, kForward,
                    {op->a.block + (to * op->a.shard_elements + begin) * op->width(),
                     op->elements(begin) * op->width()});
    }
  }
}

Task<> HostsBackend::receive_values(DirectReduction* op) {
  std::size_t i = 0;
  for (std::size_t begin = 0; begin < op->a.shard_elements; begin += op->piece, ++i) {
    co_await op->added.reach(i < op->depth ? 0 : i + 1 - op->depth);
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      const std::uint32_t from = host_after(hosts() - step);
      co_await receive(from, kForward, {place_of(*op, i, from), op->elements(begin) * op->width()});
      op->came.advance();
    }
  }
}

Task<> HostsBackend::add_values(DirectReduction* op) {
  std::size_t i = 0;
  for (std::size_t begin = 0; begin < op->a.shard_elements; begin += op->piece, ++i) {
    if (!planted(Bug::kReduceInArrivalOrder)) {
      co_await op->came.reach((i + 1) * (hosts() - 1));
    }
    const auto add = [this, op, i, begin] { add_piece(*op, i, begin); };
    if (stays_on_loop(op->elements(begin) * op->width() * hosts())) {
      add();
    } else {
      co_await pool_.run(add, op->a.name);
    }
    op->added.advance();
  }
}

// Tile by tile: a tile of the accumulator stays in the first cache while all ranks' are added.
void HostsBackend::add_piece(DirectReduction& op, std::size_t i, std::size_t begin) {
  constexpr std::size_t kTile = 8 * kNormBlock;
  const std::size_t end = begin + op.elements(begin);
  for (std::size_t at = begin; at < end; at += kTile) {
    const std::size_t count = std::min(kTile, end - at);
    float* const sum = static_cast<float*>(op.a.accumulator) + at;
    AccumulateMode mode = op.a.mode;
    GradientNorm tile;
    for (std::uint32_t from = 0; from < hosts(); ++from) {
      const std::byte* values = from == host()
                                    ? op.a.block + (host() * op.a.shard_elements + at) * op.width()
                                    : place_of(op, i, from) + (at - begin) * op.width();
      if (op.a.want_norm && from + 1 == hosts()) {
        accumulate_with_norm(sum, values, op.a.block_type, 0, count, mode, tile);
      } else {
        accumulate(sum, values, op.a.block_type, 0, count, mode);
      }
      mode = AccumulateMode::kAdd;
    }
    if (tile.first_bad_element >= 0) {
      tile.first_bad_element += static_cast<std::int64_t>(at);
    }
    op.norm.merge(tile);
  }
}

}  // namespace tandem
