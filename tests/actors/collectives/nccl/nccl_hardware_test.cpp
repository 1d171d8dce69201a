// The NCCL back end on real GPUs, with the real kernels: the bits of `self`. One GPU shows the
// device and the kernels, two or more show NCCL; ranks are threads with a GPU each.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "actors/collectives/nccl/nccl_backend.hpp"
#include "actors/collectives/nccl/shm_nccl_peers.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "tests/support/reduction_reference.hpp"
#include "tests/support/shm_world.hpp"

namespace tandem {
namespace {

constexpr std::size_t kShard = std::size_t{512} * 3001;
constexpr std::uint32_t kRounds = 3;

/// Ids by key; rank 0's thread sets them.
class Ids {
 public:
  std::string from_rank_0(std::uint32_t rank, std::string_view key, const std::string& value) {
    std::unique_lock lock(mutex_);
    if (rank == 0) {
      all_[std::string(key)] = value;
      set_.notify_all();
    }
    set_.wait(lock, [&] { return all_.contains(std::string(key)); });
    return all_[std::string(key)];
  }

 private:
  std::mutex mutex_;
  std::condition_variable set_;
  std::map<std::string, std::string> all_;
};

struct Result {
  std::vector<float> shard;  // result of reduce-scatters
  std::vector<float> all;    // result of all-reduces
  std::vector<float> gathered;
  GradientNorm norm;      // the shard's
  GradientNorm all_norm;  // the all-reduced block's
};

/// Operands on the device, and the host's copies of them.
struct Operands {
  DeviceStream stream;
  HostBuffer host;
  DeviceBuffer block, shard, all, gathered;

  Operands(CudaDevice& device, std::size_t elements, std::size_t width)
      : stream(device.stream("operands")),
        host(elements * 4),
        block(device.allocate(elements * width)),
        shard(device.allocate(kShard * 4)),
        all(device.allocate(elements * 4)),
        gathered(device.allocate(elements * 4)) {}
  Task<> give(const DeviceBuffer& to, std::size_t bytes) {
    stream.to_device(to.data(), {host.data(), bytes});
    co_await stream.record().wait();
  }
  Task<> take(std::vector<float>* into, const DeviceBuffer& from) {
    into->resize(from.size_bytes() / 4);
    stream.to_host({reinterpret_cast<std::byte*>(into->data()), from.size_bytes()}, from.data());
    co_await stream.record().wait();
  }
};

Task<> reduce_and_gather(NcclBackend* backend, Operands* o, DType type, Result* out) {
  const std::size_t elements = kShard * backend->world();
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    test::fill_block(o->host.data(), type, elements, backend->rank(), round);
    co_await o->give(o->block, elements * bytes_of(type));
    ReduceArguments a{.block = o->block.data(),
                      .block_type = type,
                      .accumulator = o->shard.data(),
                      .shard_elements = kShard,
                      .mode = round == 0 ? AccumulateMode::kOverwrite : AccumulateMode::kAdd,
                      .want_norm = true};
    out->norm = co_await backend->reduce_scatter_add(a);
    a.accumulator = o->all.data();
    a.shard_elements = elements;
    out->all_norm = co_await backend->all_reduce_add(a);
  }
  co_await backend->all_gather({o->shard.data(), o->gathered.data(), kShard * 4});
  co_await o->take(&out->shard, o->shard);
  co_await o->take(&out->all, o->all);
  co_await o->take(&out->gathered, o->gathered);
  std::vector<std::uint64_t> ranks(backend->world());
  const std::uint64_t mine = backend->rank();
  co_await backend->exchange({reinterpret_cast<const std::byte*>(&mine),
                              reinterpret_cast<std::byte*>(ranks.data()), sizeof(mine)});
  EXPECT_EQ(ranks.back(), backend->world() - 1);
}

Task<> run_rank(EventLoop* loop, CudaDevice* device, NcclBackend::Options options, DType type,
                Result* out) {
  const auto backend = co_await NcclBackend::connect(loop, device, options);
  Operands operands(*device, kShard * options.world, bytes_of(type));
  co_await reduce_and_gather(backend.get(), &operands, type, out);
}

void run_on_gpus(std::uint32_t world, DType type) {
  const std::string job = test::random_job();
  Ids ids;
  std::vector<Result> results(world);
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      try {
        EventLoop loop({.name = fmt::format("rank {}", r)});
        CudaDevice device(loop, CudaApi::load(),
                          {.index = static_cast<int>(r), .name = fmt::format("gpu {}", r)});
        NcclBackend::Options options;
        options.rank = r;
        options.world = world;
        options.kernels = &SumKernels::load();
        if (world > 1) {
          options.api = &NcclApi::load();
          options.peers = ShmNcclPeers::connect(loop, {.rank = r, .world = world, .job = job});
          options.from_rank_0 = [&ids, r](std::string_view key, const std::string& value) {
            return ids.from_rank_0(r, key, value);
          };
        }
        loop.run(&run_rank, &loop, &device, options, type, &results[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(errors, std::vector<std::string>(world));
  const test::Expected expected(world, type, kShard * world, kRounds);
  GradientNorm norm;
  for (std::uint32_t r = 0; r < world; ++r) {
    EXPECT_EQ(results[r].all, expected.sum) << "rank " << r;
    EXPECT_EQ(results[r].gathered, expected.sum) << "rank " << r;
    EXPECT_EQ(0,
              std::memcmp(results[r].shard.data(), expected.sum.data() + r * kShard, kShard * 4));
    EXPECT_EQ(results[r].all_norm.sum_of_squares, expected.norm.sum_of_squares);
    norm.merge(results[r].norm);
  }
  EXPECT_EQ(norm.sum_of_squares, expected.norm.sum_of_squares);
}

TEST(NcclHardware, RealRankOnOneGpuHasTheBitsOfTheCpu) {
  if (gpus().empty()) {
    GTEST_SKIP() << "no GPU here";
  }
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    run_on_gpus(1, type);
  }
}

TEST(NcclHardware, RealRanksOnGpusOfTheirOwnHaveTheBitsOfTheCpu) {
  const auto world = static_cast<std::uint32_t>(std::min<std::size_t>(gpus().size(), 4));
  if (world < 2) {
    GTEST_SKIP() << "fewer than two GPUs here";
  }
  for (const DType type : {DType::kF32, DType::kBF16}) {
    run_on_gpus(world, type);
  }
}

}  // namespace
}  // namespace tandem
