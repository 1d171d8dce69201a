// actors/net_collectives.cpp — see net_collectives.hpp.
#include "actors/net_collectives.hpp"

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

Task<> NetCollectives::receive(std::uint32_t peer, Exchange what, StopToken stop) {
  std::byte* into = what.into + peer * what.bytes;
  const std::size_t bytes = co_await net_.recv(peer, what.channel, {into, what.bytes}, stop);
  if (bytes != what.bytes) {
    throw failure(ExitCode::kPeer, "collectives",
                  "rank {} sent {} bytes where {} were expected: the ranks are not at the same "
                  "operation",
                  peer, bytes, what.bytes);
  }
  if (planted(Bug::kReduceInArrivalOrder)) {
    order_.push_back(peer);
  }
}

Task<> NetCollectives::exchange(Exchange what) {
  co_await with_scope(
      [](Scope& scope, NetCollectives* self, Exchange e) -> Task<> {
        for (std::uint32_t peer = 0; peer < self->world(); ++peer) {
          if (peer != self->rank()) {
            scope.spawn("send", &send_to, &self->net_, peer, e.channel,
                        std::span(e.from + peer * e.step, e.bytes), scope.stop_token());
            scope.spawn("receive", &NetCollectives::receive, self, peer, e, scope.stop_token());
          }
        }
        co_return;
      },
      this, what);
}

Task<> NetCollectives::all_gather(GatherArguments a) {
  if (a.shard_bytes > 0) {
    std::memcpy(a.block + rank() * a.shard_bytes, a.shard, a.shard_bytes);
  }
  co_await exchange({first_channel_, a.shard, 0, a.block, a.shard_bytes});
}

Task<GradientNorm> NetCollectives::reduce_scatter_add(ReduceArguments a) {
  TANDEM_CHECK(a.accumulator_type == DType::kF32, "ranks are added in fp32");
  const std::size_t slice_bytes = a.shard_elements * bytes_of(a.block_type);
  slices_.resize(slice_bytes * world());
  if (slice_bytes > 0) {
    std::memcpy(slices_.data() + rank() * slice_bytes, a.block + rank() * slice_bytes, slice_bytes);
  }
  order_.clear();
  co_await exchange({first_channel_ + 1, a.block, slice_bytes, slices_.data(), slice_bytes});
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

Task<GradientNorm> NetCollectives::all_reduce_norm(GradientNorm local) {
  norms_.resize(world());
  WireNorm& own = norms_[rank()];
  std::ranges::copy(local.sum_of_squares.words(), own.words.begin());
  own.first_bad_element = local.first_bad_element;
  order_.clear();
  co_await exchange({first_channel_ + 2, reinterpret_cast<const std::byte*>(&own), 0,
                     reinterpret_cast<std::byte*>(norms_.data()), sizeof(WireNorm)});
  GradientNorm all;
  for (const WireNorm& norm : norms_) {
    all.merge({ExactSum::from_words(norm.words), norm.first_bad_element});
  }
  co_return all;
}

}  // namespace tandem
