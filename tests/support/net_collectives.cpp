#include "tests/support/net_collectives.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/scope.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {
namespace {

Task<> send_to(Net* net, std::uint32_t peer, std::uint32_t channel,
               std::span<const std::byte> frame, StopToken stop) {
  co_await net->send(peer, channel, frame, stop);
}

void copy_own(const std::byte* from, std::byte* into, std::size_t bytes) {
  if (bytes > 0 && from != into) {
    std::memcpy(into, from, bytes);
  }
}

// Adds the slices in `order` to the accumulator, the last one with the norm.
GradientNorm add_slices(const ReduceArguments& a, const std::byte* slices,
                        const std::vector<std::uint32_t>& order) {
  const std::size_t slice_bytes = a.shard_elements * bytes_of(a.block_type);
  auto* accumulator = static_cast<float*>(a.accumulator);
  AccumulateMode mode = a.mode;
  GradientNorm norm;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::byte* slice = slices + order[i] * slice_bytes;
    if (a.want_norm && i + 1 == order.size()) {
      accumulate_with_norm(accumulator, slice, a.block_type, 0, a.shard_elements, mode, norm);
    } else {
      accumulate(accumulator, slice, a.block_type, 0, a.shard_elements, mode);
    }
    mode = AccumulateMode::kAdd;
  }
  return norm;
}

}  // namespace

NetCollectives::NetCollectives(Net& net, CpuPool& pool, std::uint32_t first_channel)
    : net_(net), pool_(pool), first_channel_(first_channel) {}

Task<> NetCollectives::receive(std::uint32_t peer, std::uint32_t channel, std::span<std::byte> into,
                               StopToken stop) {
  const std::size_t bytes = co_await net_.recv(peer, channel, into, stop);
  if (bytes != into.size()) {
    throw failure(ExitCode::kPeer, "collectives",
                  "rank {} sent {} bytes where {} were expected: the ranks are not at the same "
                  "operation",
                  peer, bytes, into.size());
  }
  if (planted(Bug::kReduceInArrivalOrder)) {
    order_.push_back(peer);
  }
}

Task<> NetCollectives::trade(Trade what) {
  co_await with_scope(
      [](Scope& scope, NetCollectives* self, Trade t) -> Task<> {
        for (std::uint32_t peer = 0; peer < self->world(); ++peer) {
          if (peer != self->rank()) {
            scope.spawn("send", &send_to, &self->net_, peer, t.channel,
                        std::span(t.from + peer * t.step, t.bytes), scope.stop_token());
            scope.spawn("receive", &NetCollectives::receive, self, peer, t.channel,
                        std::span(t.into + peer * t.bytes, t.bytes), scope.stop_token());
          }
        }
        co_return;
      },
      this, what);
}

std::byte* NetCollectives::allocate(std::size_t bytes) {
  return allocated_.emplace_back(bytes).data();
}

Task<> NetCollectives::all_gather(GatherArguments a) {
  if (a.is_replicated) {
    copy_own(a.shard, a.block, a.shard_bytes);
    co_return;
  }
  copy_own(a.shard, a.block + rank() * a.shard_bytes, a.shard_bytes);
  co_await trade({first_channel_, a.shard, 0, a.block, a.shard_bytes});
}

Task<GradientNorm> NetCollectives::reduce_scatter_add(ReduceArguments a) {
  return reduce(a, a.shard_elements * bytes_of(a.block_type));
}

Task<GradientNorm> NetCollectives::all_reduce_add(ReduceArguments a) { return reduce(a, 0); }

Task<GradientNorm> NetCollectives::reduce(ReduceArguments a, std::size_t step) {
  TANDEM_CHECK(a.accumulator_type == DType::kF32, "ranks are added in fp32");
  const std::size_t slice_bytes = a.shard_elements * bytes_of(a.block_type);
  slices_.resize(slice_bytes * world());
  copy_own(a.block + rank() * step, slices_.data() + rank() * slice_bytes, slice_bytes);
  order_.clear();
  co_await trade({first_channel_ + 1, a.block, step, slices_.data(), slice_bytes});
  if (planted(Bug::kReduceInArrivalOrder)) {
    order_.push_back(rank());
  } else {
    for (std::uint32_t i = 0; i < world(); ++i) {
      order_.push_back(i);
    }
  }
  const ReduceArguments* arguments = &a;
  const auto add = [this, arguments] { return add_slices(*arguments, slices_.data(), order_); };
  co_return co_await pool_.run(add);
}

Task<> NetCollectives::exchange(ExchangeArguments a) {
  TANDEM_CHECK(a.bytes <= kExchangeBytes, "an exchange is of a few bytes");
  copy_own(a.mine, a.all + rank() * a.bytes, a.bytes);
  order_.clear();
  co_await trade({first_channel_ + 1, a.mine, 0, a.all, a.bytes});
}

Task<> NetCollectives::broadcast(BroadcastArguments a) {
  TANDEM_CHECK(a.root < world(), "the root is a rank");
  if (a.root != rank()) {
    const StopToken stop = co_await current_stop_token();
    co_await receive(a.root, first_channel_, {a.data, a.bytes}, stop);
    co_return;
  }
  co_await with_scope(
      [](Scope& scope, NetCollectives* self, BroadcastArguments b) -> Task<> {
        for (std::uint32_t peer = 0; peer < self->world(); ++peer) {
          if (peer != self->rank()) {
            scope.spawn("send", &send_to, &self->net_, peer, self->first_channel_,
                        std::span<const std::byte>(b.data, b.bytes), scope.stop_token());
          }
        }
        co_return;
      },
      this, a);
}

Task<> NetCollectives::all_to_all(AllToAllArguments a) {
  copy_own(a.from + rank() * a.bytes, a.into + rank() * a.bytes, a.bytes);
  co_await trade({first_channel_, a.from, a.bytes, a.into, a.bytes});
}

}  // namespace tandem
