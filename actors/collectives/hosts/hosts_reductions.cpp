// Reductions over several hosts: a partial sum in fp32 goes from the first host to the last, and
// each host adds its ranks' values, in rank order and with one rounding each, as one host with all
// ranks would. All pieces take this path, one after another, so every link is busy all the time.
//   reduce-scatter  With kAdd a sum begins with the owner's accumulator, which goes to the first
//                   host (kStart); from the last host the sum goes to its owner (kBack). A piece
//                   has values of the same shard from every rank. The pieces of all hosts take
//                   turns, so that the traffic to and from the owners is spread over them.
//   all-reduce      The ranks of a host divide a piece among themselves. Sums begin in the first
//                   host's accumulator, lie in place on every host, and go back from the last host
//                   to the first, while later pieces are still on their way there.
// With one rank on each host, both use another method: hosts_direct.cpp.
// With Order::kFast, each host sends its sum of a reduce-scatter's piece straight to the piece's
// owner, which adds the sums in the order of hosts.
#include <algorithm>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

struct HostsBackend::Reduction {
  ReduceArguments a;
  bool is_all;  // an all-reduce
  GradientNorm norm;
  // Pieces that have left a stage:
  Progress begun;  // of this rank's own alone
  Progress received;
  Progress added;
  Progress sent;
  Progress finished;

  [[nodiscard]] float* accumulator() const { return static_cast<float*>(a.accumulator.host()); }
  /// Sums begin with what is in the accumulator of their owner, which is elsewhere.
  [[nodiscard]] bool is_begun_by_owner() const noexcept {
    return !is_all && a.mode == AccumulateMode::kAdd;
  }
};

Task<GradientNorm> HostsBackend::reduce_scatter_add(ReduceArguments a) { return reduce(a, false); }

Task<GradientNorm> HostsBackend::all_reduce_add(ReduceArguments a) { return reduce(a, true); }

Task<GradientNorm> HostsBackend::reduce(ReduceArguments a, bool is_all) {
  TANDEM_CHECK(a.accumulator_type == DType::kF32, "ranks are added in fp32");
  if (local_world() == 1 && hosts() > 1) {
    co_return co_await reduce_directly(a, is_all);
  }
  cut(a, is_all);
  sums_.resize(std::max(sums_.size(), (kSlots + 1) * options_.piece_bytes / sizeof(float)));
  Reduction op{.a = a, .is_all = is_all};
  if (!is_all && options_.order == Order::kFast) {
    co_await run<Reduction, 3>(
        &op, {&HostsBackend::add_host, &HostsBackend::send_host_sums, &HostsBackend::add_hosts});
    co_return op.norm;
  }
  co_await run<Reduction, 5>(
      &op, {&HostsBackend::begin_sums, &HostsBackend::receive_sums, &HostsBackend::add_here,
            &HostsBackend::send_sums, &HostsBackend::finish_sums});
  co_return op.norm;
}

void HostsBackend::cut(const ReduceArguments& a, bool is_all) {
  const std::size_t piece = options_.piece_bytes / sizeof(float);
  const std::size_t all = a.shard_elements;
  pieces_.clear();
  if (!is_all) {
    for (std::size_t begin = 0; begin < all; begin += piece) {
      for (std::uint32_t step = 0; step < hosts(); ++step) {
        // In the fast order this host's own is the last.
        const std::uint32_t owner = options_.order == Order::kFast ? host_after(step + 1) : step;
        pieces_.push_back({.block = owner * local_world() * all + begin,
                           .stride = all,
                           .elements = std::min(piece, all - begin),
                           .at = begin,
                           .is_here = owner == host(),
                           .owner = owner});
      }
    }
    return;
  }
  // Every rank adds up all of a rest that is too little for a norm block of each rank.
  for (std::size_t begin = 0; begin < all;) {
    const std::size_t each = std::min(piece, (all - begin) / local_world() / kNormTile * kNormTile);
    pieces_.push_back({.block = begin,
                       .stride = each,
                       .elements = each > 0 ? each : all - begin,
                       .at = begin + local_rank() * each,
                       .is_here = true});
    begin += each > 0 ? local_world() * each : all - begin;
  }
}

/// Where the sum of a piece lies on this host: at its place, or on its way through.
std::span<std::byte> HostsBackend::place_of(const Reduction& op, std::size_t i) noexcept {
  const Piece& piece = pieces_[i];
  if (!piece.is_here) {
    return slot_of(i);
  }
  return std::as_writable_bytes(std::span(op.accumulator() + piece.at, piece.elements));
}

std::span<std::byte> HostsBackend::slot_of(std::size_t i) noexcept {
  const std::size_t place = i % kSlots * (options_.piece_bytes / sizeof(float));
  return std::as_writable_bytes(std::span(sums_.data() + place, pieces_[i].elements));
}

Task<> HostsBackend::begin_sums(Reduction* op) {
  if (!op->is_begun_by_owner() || host() == 0) {
    co_return;
  }
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].is_here) {
      co_await send(0, kStart, place_of(*op, i));
      op->begun.advance();
    }
  }
}

Task<> HostsBackend::receive_sums(Reduction* op) {
  std::size_t own = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    co_await op->sent.reach(i < kSlots ? 0 : i + 1 - kSlots);
    if (host() > 0) {
      if (op->is_begun_by_owner() && pieces_[i].is_here) {
        co_await op->begun.reach(++own);  // the place is free
      }
      co_await receive(host() - 1, kForward, place_of(*op, i));
    } else if (op->is_begun_by_owner() && !pieces_[i].is_here) {
      co_await receive(pieces_[i].owner, kStart, place_of(*op, i));
    }
    op->received.advance();
  }
}

Task<> HostsBackend::add_here(Reduction* op) {
  const std::size_t width = bytes_of(op->a.block_type);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (!planted(Bug::kReduceInArrivalOrder)) {
      co_await op->received.reach(i + 1);
    }
    co_await local_.reduce({.block = op->a.block.host() + piece.block * width,
                            .block_type = op->a.block_type,
                            .stride = piece.stride,
                            .sum = reinterpret_cast<float*>(place_of(*op, i).data()),
                            .elements = piece.elements,
                            .mode = host() == 0 ? op->a.mode : AccumulateMode::kAdd,
                            .tree = op->a.tree,
                            .name = op->a.name});
    op->added.advance();
  }
  // Behind all sums, since the host's ranks must do all of this in one order.
  for (std::size_t i = 0; i < pieces_.size() && op->is_all; ++i) {
    co_await op->finished.reach(i + 1);
    if (const Piece& piece = pieces_[i]; piece.stride > 0) {
      const std::span<std::byte> own = place_of(*op, i);
      co_await local_.gather(HostLevel::Sequence::kReductions,
                             {.part = own.data(),
                              .into = reinterpret_cast<std::byte*>(op->accumulator() + piece.block),
                              .bytes = own.size(),
                              .stride = own.size(),
                              .name = op->a.name});
    }
  }
  if (op->is_all && op->a.want_norm) {
    op->norm = co_await merge(op->norm);
  }
}

Task<> HostsBackend::send_sums(Reduction* op) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    co_await op->added.reach(i + 1);
    if (host() + 1 < hosts()) {
      co_await send(host() + 1, kForward, place_of(*op, i));
    } else if (!pieces_[i].is_here) {
      co_await send(pieces_[i].owner, kBack, place_of(*op, i));
    }
    op->sent.advance();
  }
}

// The sums of this rank's own pieces come back; with an all-reduce they go on.
Task<> HostsBackend::finish_sums(Reduction* op) {
  const std::uint32_t last = hosts() - 1;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (!piece.is_here) {
      continue;
    }
    co_await op->sent.reach(i + 1);
    if (host() < last) {
      co_await receive(op->is_all ? host() + 1 : last, kBack, place_of(*op, i));
    }
    if (op->is_all && host() > 0) {
      co_await send(host() - 1, kBack, place_of(*op, i));
    }
    if (piece.stride > 0 || local_rank() == 0) {
      co_await add_norm_of(op, &piece);
    }
    op->finished.advance();
  }
}

Task<> HostsBackend::add_norm_of(Reduction* op, const Piece* piece) {
  if (!op->a.want_norm) {
    co_return;
  }
  const auto norm_of = [op, piece] {
    GradientNorm norm;
    add_norm(op->accumulator(), DType::kF32, piece->at, piece->at + piece->elements, norm);
    return norm;
  };
  op->norm.merge(co_await pool_.run(norm_of, op->a.name));
}

// ---- the fast order ----
Task<> HostsBackend::add_host(Reduction* op) {
  const std::size_t width = bytes_of(op->a.block_type);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    co_await op->sent.reach(i < kSlots ? 0 : i + 1 - kSlots);
    co_await local_.reduce({.block = op->a.block.host() + pieces_[i].block * width,
                            .block_type = op->a.block_type,
                            .stride = pieces_[i].stride,
                            .sum = reinterpret_cast<float*>(slot_of(i).data()),
                            .elements = pieces_[i].elements,
                            .tree = op->a.tree,
                            .name = op->a.name});
    op->added.advance();
  }
}

Task<> HostsBackend::send_host_sums(Reduction* op) {
  std::size_t own = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    co_await op->added.reach(i + 1);
    if (pieces_[i].is_here) {
      co_await op->finished.reach(++own);
    } else {
      co_await send(pieces_[i].owner, kForward, slot_of(i));
    }
    op->sent.advance();
  }
}

Task<> HostsBackend::add_hosts(Reduction* op) {
  const std::span<float> comes = std::span(sums_).last(options_.piece_bytes / sizeof(float));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (!piece.is_here) {
      continue;
    }
    for (std::uint32_t from = 0; from < hosts(); ++from) {
      std::span<std::byte> sum = std::as_writable_bytes(comes.first(piece.elements));
      if (from == host()) {
        co_await op->added.reach(i + 1);
        sum = slot_of(i);
      } else {
        co_await receive(from, kForward, sum);
      }
      const auto add = [op, &piece, sum, mode = from == 0 ? op->a.mode : AccumulateMode::kAdd] {
        accumulate(op->accumulator() + piece.at, sum.data(), DType::kF32, 0, piece.elements, mode);
      };
      co_await pool_.run(add, op->a.name);
    }
    co_await add_norm_of(op, &piece);
    op->finished.advance();
  }
}

// Every host has the same sums; each of its ranks has computed the norm of a part.
Task<GradientNorm> HostsBackend::merge(GradientNorm norm) {
  norms_.resize(local_world());
  norms_[local_rank()] = NormLimbs::of(norm);
  co_await local_.gather(HostLevel::Sequence::kReductions,
                         {.part = reinterpret_cast<const std::byte*>(&norms_[local_rank()]),
                          .into = reinterpret_cast<std::byte*>(norms_.data()),
                          .bytes = sizeof(NormLimbs),
                          .stride = sizeof(NormLimbs)});
  co_return merge_norms(norms_);
}

}  // namespace tandem
