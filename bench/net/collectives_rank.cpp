#include "bench/net/collectives_rank.hpp"

#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "engine/distributed/joined_hosts.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/ucx/ucx_net.hpp"
#include "runtime/util/check.hpp"

namespace tandem::bench {
namespace {

constexpr std::uint32_t kWorld = 2;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::vector<std::string> exchange(const std::string& mine) {
  std::cout << to_hex(mine) << std::endl;
  std::vector<std::string> all(kWorld);
  for (std::string& one : all) {
    std::string text;
    std::cin >> text;
    one = from_hex(text);
  }
  return all;
}

struct Operation {
  std::string name;
  std::size_t bytes = 0;  // of the block: what all ranks' parts make together
  std::uint32_t times = 0;
};

/// As ProcessGroup makes a rank that is alone on its host.
class Rank {
 public:
  Rank(std::uint32_t rank, const std::string& device)
      : backend_(
            ShmBackend::connect(loop_, pool_,
                                {.job = fmt::format("bench-net-{}", rank),
                                 .first_rank = rank,
                                 .all_ranks = kWorld,
                                 .arena_bytes = 3 * kMostBytes + (std::size_t{16} << 20)}),
            connect_ucx_net(loop_, {.rank = rank, .world = kWorld, .run_key = 1, .devices = device},
                            &exchange),
            pool_, {.frame_bytes = frame_bytes_for(device)}),
        block_(backend_.allocate(kMostBytes)),
        into_(backend_.allocate(kMostBytes)),
        shard_(backend_.allocate(kMostBytes / kWorld)) {
    std::memset(block_, 0, kMostBytes);
    std::memset(into_, 0, kMostBytes);
    std::memset(shard_, 0, kMostBytes / kWorld);
  }

  double run(const Operation& operation) {
    return loop_.run([](Rank* self, Operation o) { return self->batch(std::move(o)); }, this,
                     operation);
  }

 private:
  Task<double> batch(Operation o) {
    co_await backend_.exchange({});
    const auto start = std::chrono::steady_clock::now();
    for (std::uint32_t i = 0; i < o.times; ++i) {
      co_await once(&o);
    }
    co_return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Task<> once(const Operation* o) {
    const std::size_t part = o->bytes / kWorld;
    ReduceArguments reduce{.block = block_, .accumulator = into_};
    if (o->name == "all_gather") {
      co_await backend_.all_gather({shard_, into_, part});
    } else if (o->name == "reduce_scatter") {
      reduce.shard_elements = part / sizeof(float);
      (void)co_await backend_.reduce_scatter_add(reduce);
    } else if (o->name == "all_reduce") {
      reduce.shard_elements = o->bytes / sizeof(float);
      (void)co_await backend_.all_reduce_add(reduce);
    } else if (o->name == "all_to_all") {
      co_await backend_.all_to_all({block_, into_, part});
    } else {
      throw std::invalid_argument("no operation " + o->name);
    }
  }

  EventLoop loop_;
  CpuPool pool_{loop_, {.threads = 1}};
  JoinedHosts backend_;
  std::byte* block_;
  std::byte* into_;
  std::byte* shard_;
};

}  // namespace

int run_collectives_rank(std::uint32_t rank, const std::string& device) {
  Rank worker(rank, device);
  for (Operation operation; std::cin >> operation.name >> operation.bytes >> operation.times;) {
    std::cout << fmt::format("{}", worker.run(operation)) << std::endl;
  }
  return 0;
}

}  // namespace tandem::bench
