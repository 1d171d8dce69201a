// tests/support/net_ranks.hpp — ranks that run the same task, each with a net of one kind: in a
// simulated world, or over UCX on the loopback, where each rank is a thread with a loop of its own.
//
//   on_net_ranks(NetKind::kUcx, 3, &exchange_frames, &shared);   // Task<> exchange_frames(Net*,
//   Shared*)
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/io/net.hpp"
#include "runtime/scope.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/ucx/ucx_net.hpp"

namespace tandem {

enum class NetKind { kSim, kUcx };

inline std::string name_of_net(const ::testing::TestParamInfo<NetKind>& info) {
  return info.param == NetKind::kSim ? "Sim" : "Ucx";
}
inline void PrintTo(NetKind kind, std::ostream* out) { *out << name_of_net({kind, 0}); }

/// Where ranks that are threads learn each other's addresses.
class AddressBook {
 public:
  explicit AddressBook(std::uint32_t world) : addresses_(world) {}
  std::vector<std::string> all(std::uint32_t rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    addresses_[rank] = mine;
    changed_.notify_all();
    changed_.wait(lock, [this] {
      return std::ranges::none_of(addresses_, [](const std::string& one) { return one.empty(); });
    });
    return addresses_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> addresses_;
};

inline UcxNetOptions loopback_options(std::uint32_t rank, std::uint32_t world) {
  return {.rank = rank, .world = world, .run_key = 0x7a11'57e5, .devices = "lo"};
}

inline std::unique_ptr<NetBackend> connect_on_loopback(EventLoop& loop,
                                                       const UcxNetOptions& options,
                                                       AddressBook& book) {
  return connect_ucx_net(loop, options,
                         [&](const std::string& mine) { return book.all(options.rank, mine); });
}

template <class Shared>
void on_sim_ranks(std::uint32_t world_size, Task<> (*body)(Net*, Shared*), Shared* shared) {
  SimWorld world({.seed = 7, .ranks = world_size});
  SimNet links(world, {});
  std::vector<std::unique_ptr<Net>> nets;
  std::vector<std::unique_ptr<Scope>> scopes;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    nets.push_back(std::make_unique<Net>(links.attach(rank)));
    scopes.push_back(std::make_unique<Scope>(world.loop(rank), Name("rank")));
    scopes.back()->spawn("body", body, nets.back().get(), shared);
  }
  const auto done = [&] {
    return std::ranges::all_of(scopes, [](const auto& scope) { return scope->running() == 0; });
  };
  EXPECT_EQ(world.run(done), SimWorld::End::kDone);
  for (const auto& scope : scopes) {
    for (const TaskFailure& failure : scope->failures()) {
      std::rethrow_exception(failure.error);
    }
  }
}

template <class Shared>
void on_ucx_ranks(std::uint32_t world_size, Task<> (*body)(Net*, Shared*), Shared* shared) {
  AddressBook book(world_size);
  std::vector<std::exception_ptr> failures(world_size);
  std::vector<std::thread> threads;
  threads.reserve(world_size);
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        EventLoop loop({.name = "rank"});
        Net net(connect_on_loopback(loop, loopback_options(rank, world_size), book));
        loop.run(body, &net, shared);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
  }
}

/// Runs `body` on all ranks. An exception of a rank's task is thrown again once all have ended.
template <class Shared>
void on_net_ranks(NetKind kind, std::uint32_t world_size, Task<> (*body)(Net*, Shared*),
                  Shared* shared) {
  kind == NetKind::kSim ? on_sim_ranks(world_size, body, shared)
                        : on_ucx_ranks(world_size, body, shared);
}

/// Skips where the kind of net is missing.
class NetTest : public ::testing::TestWithParam<NetKind> {
 protected:
  void SetUp() override {
    if (GetParam() == NetKind::kUcx && !ucx_support().usable) {
      GTEST_SKIP() << "no UCX: " << ucx_support().what;
    }
  }
};

inline const auto kBothNets = ::testing::Values(NetKind::kSim, NetKind::kUcx);

}  // namespace tandem
