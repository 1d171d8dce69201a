// bench/net/net_bench.cpp — frames between two processes of this host over UCX's TCP, beside
// ucx_perftest, UCX's own program, over the same transport; and a rank of collectives over hosts.
//
//   bench_net [Google Benchmark's flags]
//   bench_net --rank R --device INTERFACE      of two, started by tools/bench/net.py
//
// `latency`: half of a round trip of 8 bytes. `bandwidth`: frames of one size, four on their way.
// `x_perftest`: above 1 ours is better; of the least mean of our batches and the least median of
// its runs, or of the greatest bandwidths. They take turns. ucx_perftest never sleeps, our loops do
// once they found nothing for a while.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/net/collectives_rank.hpp"
#include "bench/program.hpp"
#include "runtime/clock.hpp"
#include "runtime/scope.hpp"
#include "runtime/ucx/ucx_net.hpp"

namespace tandem::bench {
namespace {

constexpr std::uint32_t kOrders = 0;
constexpr std::uint32_t kFrames = 1;
constexpr std::uint32_t kOnTheirWay = 4;
constexpr std::size_t kBytesMax = std::size_t{64} << 20;

struct Order {
  enum class Kind : std::uint32_t { kEnd, kPingPong, kStream };
  Kind kind = Kind::kEnd;
  std::uint32_t times = 0;
  std::uint64_t bytes = 0;
};

/// A part of a stream's frames, one after the other.
Task<> send_share(Net* net, std::span<std::byte> frame, std::uint32_t times) {
  for (std::uint32_t i = 0; i < times; ++i) {
    co_await net->send(1, kFrames, frame);
  }
}

Task<> receive_share(Net* net, std::span<std::byte> frame, std::uint32_t times) {
  for (std::uint32_t i = 0; i < times; ++i) {
    co_await net->recv(0, kFrames, frame);
  }
}

/// kOnTheirWay shares at once.
Task<> in_shares(decltype(&send_share) share, Net* net, std::span<std::byte> frame,
                 std::uint32_t times) {
  co_await with_scope(
      [](Scope& scope, decltype(&send_share) each, Net* n, std::span<std::byte> memory,
         std::uint32_t count) -> Task<> {
        for (std::uint32_t i = 0; i < kOnTheirWay; ++i) {
          scope.spawn("share", each, n, memory, count);
        }
        co_return;
      },
      share, net, frame, times);
}

/// Rank 1: does what rank 0 orders.
Task<> serve(Net* net, std::vector<std::byte>* memory) {
  for (;;) {
    Order order;
    co_await net->recv(0, kOrders, std::as_writable_bytes(std::span(&order, 1)));
    const std::span<std::byte> frame = std::span(*memory).first(order.bytes);
    if (order.kind == Order::Kind::kEnd) {
      co_return;
    }
    if (order.kind == Order::Kind::kPingPong) {
      for (std::uint32_t i = 0; i < order.times; ++i) {
        co_await net->recv(0, kFrames, frame);
        co_await net->send(0, kFrames, frame);
      }
      continue;
    }
    co_await in_shares(&receive_share, net, frame, order.times);
    co_await net->send(0, kOrders, {});
  }
}

/// Rank 0: gives the order and does its part.
Task<> carry_out(Net* net, std::vector<std::byte>* memory, Order order) {
  co_await net->send(1, kOrders, std::as_bytes(std::span(&order, 1)));
  const std::span<std::byte> frame = std::span(*memory).first(order.bytes);
  if (order.kind == Order::Kind::kPingPong) {
    for (std::uint32_t i = 0; i < order.times; ++i) {
      co_await net->send(1, kFrames, frame);
      co_await net->recv(1, kFrames, frame);
    }
  } else if (order.kind == Order::Kind::kStream) {
    co_await in_shares(&send_share, net, frame, order.times);
    co_await net->recv(1, kOrders, {});
  }
}

std::vector<std::string> exchange(int socket, std::uint32_t rank, const std::string& mine) {
  char other[4096];
  const bool sent = ::send(socket, mine.data(), mine.size(), 0) > 0;
  const ssize_t got = ::recv(socket, other, sizeof(other), 0);
  TANDEM_CHECK(sent && got > 0, "the two processes exchange their addresses");
  const std::string theirs(other, static_cast<std::size_t>(got));
  return rank == 0 ? std::vector{mine, theirs} : std::vector{theirs, mine};
}

struct Rank {
  Rank(int socket, std::uint32_t rank)
      : net(connect_ucx_net(
            loop, {.rank = rank, .world = 2, .run_key = 1, .devices = "lo"},
            [=](const std::string& mine) { return exchange(socket, rank, mine); })) {
    net.register_memory(memory);
  }
  std::vector<std::byte> memory = std::vector<std::byte>(kBytesMax);
  EventLoop loop;
  Net net;
};

/// The figure that ucx_perftest prints at the end of a test; 0: it is not there.
double perftest(const char* test, std::size_t bytes, std::uint32_t times, int column) {
  const std::string command = fmt::format(
      "export UCX_TLS=tcp UCX_NET_DEVICES=lo; timeout 22 ucx_perftest -p 13777 >/dev/null 2>&1 & "
      "sleep 0.5; "
      "timeout 20 ucx_perftest 127.0.0.1 -p 13777 -t {} -s {} -n {} -w {} 2>/dev/null | "
      "awk '/^Final:/ {{print ${}}}'; wait",
      test, bytes, times, std::max(times / 10, 1U), column);
  std::FILE* output = ::popen(command.c_str(), "r");
  double value = 0;
  if (output == nullptr || std::fscanf(output, "%lf", &value) != 1) {
    value = 0;
  }
  if (output != nullptr) {
    ::pclose(output);
  }
  return value;
}

double run_seconds(Rank* rank, const Order& order) {
  const TimePoint begin = Clock::real().now();
  rank->loop.run(&carry_out, &rank->net, &rank->memory, order);
  return std::chrono::duration<double>(Clock::real().now() - begin).count();
}

void latency(benchmark::State& state, Rank* rank) {
  constexpr std::uint32_t kTimes = 2000;
  constexpr std::size_t kBytes = 8;
  double least = 1e9;
  double peer_us = 1e9;
  for (auto _ : state) {
    const double seconds = run_seconds(rank, {Order::Kind::kPingPong, kTimes, kBytes});
    state.SetIterationTime(seconds);
    least = std::min(least, seconds / kTimes / 2);
    const double theirs = perftest("tag_lat", kBytes, kTimes, 3);
    peer_us = theirs > 0 ? std::min(peer_us, theirs) : peer_us;
  }
  state.counters["us"] = least * 1e6;
  if (peer_us < 1e9) {
    state.counters["perftest_us"] = peer_us;
    state.counters["x_perftest"] = peer_us / (least * 1e6);
  }
}

void bandwidth(benchmark::State& state, Rank* rank, std::size_t bytes) {
  const auto times = static_cast<std::uint32_t>((std::size_t{512} << 20) / bytes / kOnTheirWay);
  const std::uint32_t frames = times * kOnTheirWay;
  double most = 0;
  double peer_mb = 0;
  for (auto _ : state) {
    const double seconds = run_seconds(rank, {Order::Kind::kStream, times, bytes});
    state.SetIterationTime(seconds);
    most = std::max(most, static_cast<double>(bytes) * frames / seconds);
    peer_mb = std::max(peer_mb, perftest("tag_bw", bytes, frames, 7));
  }
  state.counters["MiB/s"] = most / (1 << 20);
  if (peer_mb > 0) {  // it means MiB
    state.counters["perftest_MiB/s"] = peer_mb;
    state.counters["x_perftest"] = most / (1 << 20) / peer_mb;
  }
}

int run(const Suite& suite) {
  if (!ucx_support().usable) {
    fmt::print(stderr, "bench: no UCX: {}\n", ucx_support().what);
    return 0;
  }
  int ends[2];
  TANDEM_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "a socket pair");
  const pid_t process = ::fork();
  if (process == 0) {
    Rank rank(ends[1], 1);
    rank.loop.run(&serve, &rank.net, &rank.memory);
    return 0;
  }
  int code = 0;
  {
    Rank rank(ends[0], 0);
    benchmark::RegisterBenchmark("latency/8", latency, &rank)->UseManualTime()->Iterations(5);
    for (const std::size_t bytes : {std::size_t{1} << 20, kBytesMax}) {
      benchmark::RegisterBenchmark(fmt::format("bandwidth/{}", bytes).c_str(), bandwidth, &rank,
                                   bytes)
          ->UseManualTime()
          ->Iterations(5);
    }
    code = suite.run();
    rank.loop.run(&carry_out, &rank.net, &rank.memory, Order{});
  }
  ::waitpid(process, nullptr, 0);
  return code;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Suite suite(argc, argv, "frames between two processes over UCX's TCP, beside ucx_perftest");
  const std::int64_t rank = suite.number("--rank", -1, {.least = -1, .most = 1},
                                         "of two, as tools/bench/net.py starts them");
  const std::string device = suite.text("--device", "", "with --rank: the network interface");
  suite.begin();
  if (rank >= 0 && !device.empty()) {
    return run_collectives_rank(static_cast<std::uint32_t>(rank), device);
  }
  return run(suite);
}
