#include "actors/collectives/hosts/hosts_backend.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/util/check.hpp"
#include "runtime/when_all.hpp"

namespace tandem {
namespace {

void move_bytes(std::byte* into, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && into != from) {
    std::memcpy(into, from, bytes);
  }
}

}  // namespace

HostsBackend::HostsBackend(HostLevel& local, Net& net, CpuPool& pool, Options options)
    : local_(local),
      net_(net),
      pool_(pool),
      options_(std::move(options)),
      waits_(local, net, options_.waits, [this](std::uint32_t failed_rank, const std::string& why) {
        if (!is_broken_) {
          overdue_ = fmt::format("[collectives] {}", why);
          fail(failed_rank, why);
        }
      }) {
  TANDEM_CHECK(net.world() % local.world() == 0 && net.rank() % local.world() == local.rank(),
               "the ranks of a host are neighbours, and all hosts have as many");
  TANDEM_CHECK(options_.piece_bytes > 0 && options_.piece_bytes % (kNormTile * sizeof(float)) == 0,
               "a piece is whole norm tiles");
  TANDEM_CHECK(options_.frame_bytes > 0, "a frame has bytes");
}

void HostsBackend::fail(std::uint32_t failed_rank, std::string_view why) noexcept {
  if (!is_broken_) {
    is_broken_ = true;
    local_.fail(failed_rank, why);
    net_.abort(failed_rank);
  }
}

void HostsBackend::throw_with_host(const PeerLost& lost) const {
  const std::size_t host = lost.rank() / local_world();
  const std::vector<std::string>& names = options_.waits.host_names;
  const std::string why = overdue_.empty() ? lost.what() : overdue_;
  if (host >= names.size()) {
    throw PeerLost(why, lost.rank());
  }
  throw PeerLost(fmt::format("{}; rank {} is on host {}", why, lost.rank(), names[host]),
                 lost.rank());
}

Task<> HostsBackend::send(std::uint32_t to, Channel channel, std::span<const std::byte> bytes) {
  const StopToken stop = co_await current_stop_token();
  const std::uint32_t peer = to * local_world() + local_rank();
  do {
    const auto frame = bytes.first(std::min(options_.frame_bytes, bytes.size()));
    const NetWaits::Wait wait(waits_, peer, NetWaits::For::kTaking);
    co_await net_.send(peer, options_.first_channel + channel, frame, stop);
    bytes = bytes.subspan(frame.size());
  } while (!bytes.empty());
}

Task<> HostsBackend::receive(std::uint32_t from, Channel channel, std::span<std::byte> into) {
  const StopToken stop = co_await current_stop_token();
  const std::uint32_t peer = from * local_world() + local_rank();
  do {
    const auto frame = into.first(std::min(options_.frame_bytes, into.size()));
    const NetWaits::Wait wait(waits_, peer, NetWaits::For::kFrame);
    const std::size_t bytes =
        co_await net_.recv(peer, options_.first_channel + channel, frame, stop);
    if (bytes != frame.size()) {
      throw failure(ExitCode::kPeer, "collectives",
                    "rank {} sent {} bytes where {} were expected: the ranks are not at the same "
                    "operation",
                    peer, bytes, frame.size());
    }
    into = into.subspan(bytes);
  } while (!into.empty());
}

// ---- all-gather: piece by piece, and of each piece host by host, the next one first ----
struct HostsBackend::Gathering {
  GatherArguments a;
  std::size_t piece_bytes;
  Progress received;
};

Task<> HostsBackend::all_gather(GatherArguments a) {
  if (a.is_replicated) {
    co_await pool_.run([a] { move_bytes(a.block.host(), a.shard.host(), a.shard_bytes); }, a.name);
    co_return;
  }
  Gathering op{.a = a, .piece_bytes = options_.piece_bytes};
  co_await run<Gathering, 3>(&op, {&HostsBackend::send_shards, &HostsBackend::receive_shards,
                                   &HostsBackend::share_shards});
}

Task<> HostsBackend::send_shards(Gathering* op) {
  const std::size_t all = op->a.shard_bytes;
  for (std::size_t begin = 0; begin < all; begin += op->piece_bytes) {
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      co_await send(host_after(step), kMoves,
                    {op->a.shard.host() + begin, std::min(op->piece_bytes, all - begin)});
    }
  }
}

Task<> HostsBackend::receive_shards(Gathering* op) {
  const std::size_t all = op->a.shard_bytes;
  for (std::size_t begin = 0; begin < all; begin += op->piece_bytes) {
    for (std::uint32_t step = 1; step < hosts(); ++step) {
      const std::uint32_t from = host_after(hosts() - step);
      co_await receive(from, kMoves,
                       {op->a.block.host() + (from * local_world() + local_rank()) * all + begin,
                        std::min(op->piece_bytes, all - begin)});
      op->received.advance();
    }
  }
}

Task<> HostsBackend::share_shards(Gathering* op) {
  const std::size_t all = op->a.shard_bytes;
  if (local_world() == 1) {
    co_await keep_shard(op);
    co_return;
  }
  std::size_t needed = 0;
  for (std::size_t begin = 0; begin < all; begin += op->piece_bytes) {
    for (std::uint32_t step = 0; step < hosts(); ++step) {
      const std::uint32_t from = host_after(hosts() - step);
      std::byte* into = op->a.block.host() + from * local_world() * all + begin;
      needed += step == 0 ? 0 : 1;
      co_await op->received.reach(needed);
      co_await local_.gather(
          HostLevel::Sequence::kGathers,
          {.part = step == 0 ? op->a.shard.host() + begin : into + local_rank() * all,
           .into = into,
           .bytes = std::min(op->piece_bytes, all - begin),
           .stride = all,
           .name = op->a.name});
    }
  }
}

// Copies the own shard of a rank that is alone on its host, where frames arrive in place. On the
// loop a piece is copied when as many have come, so that frames get their turns.
Task<> HostsBackend::keep_shard(Gathering* op) {
  const std::size_t all = op->a.shard_bytes;
  std::size_t came = 0;
  for (std::size_t begin = 0; begin < all; begin += op->piece_bytes, came += hosts() - 1) {
    const std::size_t bytes = std::min(op->piece_bytes, all - begin);
    const std::byte* from = op->a.shard.host() + begin;
    std::byte* into = op->a.block.host() + rank() * all + begin;
    if (into == from) {
      co_return;
    }
    const auto copy = [from, into, bytes] { move_bytes(into, from, bytes); };
    if (stays_on_loop(bytes)) {
      co_await op->received.reach(came);
      copy();
    } else {
      co_await pool_.run(copy, op->a.name);
    }
  }
}

// ---- all-to-all: what a host's ranks have for one rank goes to it as one frame ----
struct HostsBackend::Collecting {
  AllToAllArguments a;
  std::size_t frame_bytes;
  Progress collected;
  Progress sent;
};

Task<> HostsBackend::all_to_all(AllToAllArguments a) {
  Collecting op{.a = a, .frame_bytes = local_world() * a.bytes};
  if (hosts() > 1 && local_world() > 1) {
    collected_.resize(kSlots * op.frame_bytes);
  }
  co_await run<Collecting, 3>(&op, {&HostsBackend::collect, &HostsBackend::send_collected,
                                    &HostsBackend::receive_collected});
}

// For this host last: the links have work by then.
Task<> HostsBackend::collect(Collecting* op) {
  for (std::uint32_t step = 1; step <= hosts(); ++step) {
    const std::size_t to = host_after(step) * op->frame_bytes;
    std::byte* into = op->a.into.host() + to;
    if (step < hosts() && local_world() == 1) {  // it goes from where it is
      op->collected.advance();
      continue;
    }
    if (step < hosts()) {
      co_await op->sent.reach(step > kSlots ? step - kSlots : 0);
      into = collected_.data() + step % kSlots * op->frame_bytes;
    }
    co_await local_.all_to_all({.from = op->a.from + to, .into = into, .bytes = op->a.bytes});
    op->collected.advance();
  }
}

Task<> HostsBackend::send_collected(Collecting* op) {
  for (std::uint32_t step = 1; step < hosts(); ++step) {
    co_await op->collected.reach(step);
    const std::uint32_t to = host_after(step);
    const std::byte* from = local_world() == 1
                                ? op->a.from.host() + to * op->frame_bytes
                                : collected_.data() + step % kSlots * op->frame_bytes;
    co_await send(to, kMoves, {from, op->frame_bytes});
    op->sent.advance();
  }
}

Task<> HostsBackend::receive_collected(Collecting* op) {
  for (std::uint32_t step = 1; step < hosts(); ++step) {
    const std::uint32_t from = host_after(hosts() - step);
    co_await receive(from, kMoves, {op->a.into.host() + from * op->frame_bytes, op->frame_bytes});
  }
}

// ---- exchange ----
Task<> HostsBackend::exchange(ExchangeArguments a) {
  TANDEM_CHECK_LE(a.bytes, kExchangeBytes, "an exchange is of a few bytes");
  co_await run<ExchangeArguments, 1>(&a, {&HostsBackend::trade_rounds});
}

// After the round of distance d this rank has the bytes of its local rank on 2 d hosts, those from
// this one on in a circle.
Task<> HostsBackend::trade_rounds(ExchangeArguments* a) {
  const std::size_t bytes = a->bytes;
  rounds_.resize(hosts() * bytes);
  shared_.resize(world() * bytes);
  move_bytes(rounds_.data(), a->mine.host(), bytes);
  for (std::uint32_t have = 1; have < hosts(); have *= 2) {
    const std::size_t more = std::min(have, hosts() - have) * bytes;
    const std::uint32_t to = host_after(hosts() - have);
    co_await when_all(send(to, kForward, {rounds_.data(), more}),
                      receive(host_after(have), kForward, {rounds_.data() + have * bytes, more}));
  }
  co_await local_.gather(HostLevel::Sequence::kReductions, {.part = rounds_.data(),
                                                            .into = shared_.data(),
                                                            .bytes = hosts() * bytes,
                                                            .stride = hosts() * bytes});
  for (std::uint32_t of = 0; of < local_world(); ++of) {
    for (std::uint32_t step = 0; step < hosts(); ++step) {
      move_bytes(a->all.host() + (host_after(step) * local_world() + of) * bytes,
                 shared_.data() + (of * hosts() + step) * bytes, bytes);
    }
  }
}

}  // namespace tandem
