// All-to-alls of pieces in a GPU's memory, issued by the compute lane: between GPUs by NCCL, and by
// way of host memory; on the fakes of both.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/exchange/lane_exchange.hpp"
#include "runtime/compute_lane.hpp"
#include "tests/support/fakes/fake_gpu.hpp"
#include "tests/support/fakes/nccl_thread_rank.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using test::FakeGroups;
using test::FakeNccl;
using test::NcclThreadRank;

enum class Way : std::uint8_t { kNccl, kHost };
constexpr std::array kWays = {Way::kNccl, Way::kHost};
const char* name_of(Way way) { return way == Way::kNccl ? "by NCCL" : "by host memory"; }

/// The fakes and what the ranks, which are threads, find each other by.
struct Machine {
  FakeCuda cuda{Clock::real()};
  FakeNccl nccl;
  FakeGroups groups;

  Machine() = default;
  /// Communicators are aborted by detached threads.
  ~Machine() {
    while (nccl.live() > 0) {
      std::this_thread::sleep_for(1ms);
    }
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  /// of_rank(exchange, gpu, rank) of each rank, on its lane; neighbours are groups of `sharers`.
  template <class OfRank>
  auto run(int world, int sharers, Way way, OfRank of_rank) {
    return on_ranks(world, [&](std::shared_ptr<Communicator> thread) {
      NcclThreadRank ranks(std::move(thread), {}, way == Way::kNccl ? &groups : nullptr);
      const int rank = ranks.rank();
      EventLoop loop;
      const std::shared_ptr<Gpu> gpu = test::fake_gpus(100us)(rank);
      LaneExchange exchange(ranks,
                            {.name = fmt::format("rows-{}", rank / sharers),
                             .rank = rank % sharers,
                             .world_size = sharers},
                            gpu, nullptr, 3);
      ComputeLane lane(loop, "compute");
      using Result = decltype(of_rank(exchange, *gpu, rank));
      return loop.run(
          [](ComputeLane* on, std::function<Result()> work) -> Task<Result> {
            co_return co_await on->run(std::move(work));
          },
          &lane, std::function<Result()>([&] { return of_rank(exchange, *gpu, rank); }));
    });
  }
};

/// Integers in memory of the fake device.
struct DevicePieces {
  DevicePieces(EventLoop& loop, std::size_t count)
      : device(loop, FakeCuda::api(), CudaDevice::Options{}),
        memory(device.allocate(count * sizeof(int))),
        values(reinterpret_cast<int*>(memory.data()), count) {}
  CudaDevice device;
  DeviceBuffer memory;
  std::span<int> values;
};

void all_to_all(LaneExchange& exchange, std::span<const int> from, std::span<int> into,
                bool on_device) {
  const Place place = on_device ? Place::kDevice : Place::kHost;
  exchange.all_to_all({place, std::as_bytes(from).data()},
                      {place, std::as_writable_bytes(into).data()},
                      from.size_bytes() / static_cast<std::size_t>(exchange.ranks()));
}

constexpr int value_of(int rank, std::size_t i) { return 10'000'000 * rank + static_cast<int>(i); }

// Pieces larger than a stage, written by work that the compute stream comes to later.
TEST(DeviceExchange, PiecesComeWholeBehindWhatTheComputeStreamWasGiven) {
  for (const Way way : kWays) {
    for (const auto& [world, sharers] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4}}) {
      Machine machine;
      const auto wrong = machine.run(
          world, sharers, way, [sharers = sharers](LaneExchange& exchange, Gpu& gpu, int rank) {
            constexpr std::size_t kPiece = 1'100'001;
            const std::size_t count = kPiece * static_cast<std::size_t>(sharers);
            EventLoop loop;
            const DevicePieces from(loop, count);
            const DevicePieces into(loop, count);
            std::size_t wrong = 0;
            for (int round = 0; round < 2; ++round) {
              gpu.compute->queue([values = from.values, rank, round] {
                for (std::size_t i = 0; i < values.size(); ++i) {
                  values[i] = value_of(rank, i) + round;
                }
              });
              all_to_all(exchange, from.values, into.values, true);
              for (std::size_t i = 0; i < count; ++i) {
                const int peer = rank / sharers * sharers + static_cast<int>(i / kPiece);
                const std::size_t at =
                    static_cast<std::size_t>(rank % sharers) * kPiece + i % kPiece;
                wrong += into.values[i] != value_of(peer, at) + round ? 1 : 0;
              }
            }
            return wrong;
          });
      EXPECT_EQ(wrong, std::vector<std::size_t>(static_cast<std::size_t>(world), 0))
          << world << " ranks, groups of " << sharers << ", " << name_of(way);
      EXPECT_EQ(machine.cuda.frees_in_use(), 0);
      const std::vector<std::string> launches = machine.nccl.launches(0);
      EXPECT_EQ(launches.empty(), way == Way::kHost);
      EXPECT_EQ(machine.nccl.mismatches(), std::vector<std::string>());
    }
  }
}

TEST(DeviceExchange, HostMemoryGoesTheHostsWayBetweenThem) {
  for (const Way way : kWays) {
    Machine machine;
    const auto came = machine.run(2, 2, way, [](LaneExchange& exchange, Gpu&, int rank) {
      EXPECT_EQ(exchange.device(), at::Device(at::kCPU)) << "the fake's tensors";
      EventLoop loop;
      const DevicePieces from(loop, 2);
      const DevicePieces into(loop, 2);
      const std::array<int, 2> own = {100 * rank, 100 * rank + 1};
      std::array<int, 2> theirs{};
      std::vector<int> all;
      for (int round = 0; round < 3; ++round) {
        from.values[0] = 10 * rank + round;
        from.values[1] = 10 * rank + round + 1000;
        all_to_all(exchange, from.values, into.values, true);
        all_to_all(exchange, own, theirs, false);
        all.insert(all.end(), {into.values[0], into.values[1], theirs[0], theirs[1]});
      }
      return all;
    });
    EXPECT_EQ(came[0], (std::vector<int>{0, 10, 0, 100, 1, 11, 0, 100, 2, 12, 0, 100}));
    EXPECT_EQ(came[1],
              (std::vector<int>{1000, 1010, 1, 101, 1001, 1011, 1, 101, 1002, 1012, 1, 101}));
  }
}

TEST(DeviceExchange, ALostPeerEndsTheLanesWaitAndHasItsNumberInTheRun) {
  for (const Way way : kWays) {
    Machine machine;
    const auto errors =
        machine.run(4, 2, way, [](LaneExchange& exchange, Gpu&, int rank) -> std::string {
          EventLoop loop;
          const DevicePieces from(loop, 2);
          const DevicePieces into(loop, 2);
          const auto exchange_once = [&] { all_to_all(exchange, from.values, into.values, true); };
          if (rank == 2) {
            return error_text(
                [&] {
                  exchange_once();
                  exchange_once();
                },
                ExitCode::kPeer);
          }
          exchange_once();
          if (rank == 3) {
            exchange.give_up(std::runtime_error("it had enough"));
          }
          return "";
        });
    EXPECT_NE(errors[2].find("rank 3 is at fault"), std::string::npos) << errors[2];
    EXPECT_NE(errors[2].find("it had enough"), std::string::npos) << errors[2];
  }
}

TEST(DeviceExchange, ADeviceThatFailsEndsTheExchange) {
  for (const Way way : kWays) {
    Machine machine;
    const auto errors =
        machine.run(2, 2, way, [&machine](LaneExchange& exchange, Gpu&, int) -> std::string {
          EventLoop loop;
          const DevicePieces from(loop, 2);
          const DevicePieces into(loop, 2);
          all_to_all(exchange, from.values, into.values, false);  // both are here
          machine.cuda.lose();
          return error_text([&] { all_to_all(exchange, from.values, into.values, true); },
                            ExitCode::kFailure);
        });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("gpu 0 (fake)"), std::string::npos) << error;
    }
  }
}

}  // namespace
}  // namespace tandem
