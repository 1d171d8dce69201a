// tests/support/fakes/nccl_thread_rank.hpp — a rank that is a thread and has a GPU of its own,
// joined to the others by NCCL: all of them fakes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/collectives/group_backend.hpp"
#include "actors/collectives/nccl/nccl_backend.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/distributed/group_members.hpp"
#include "tests/support/nccl_world.hpp"

namespace tandem::test {

/// The messages between the ranks of each group beside NCCL. Any thread.
class FakeGroups {
 public:
  [[nodiscard]] FakePeers& of(const RankGroup& group) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<FakePeers>& peers = by_name_[group.name];
    if (peers == nullptr) {
      peers = std::make_unique<FakePeers>();
      peers->world = static_cast<std::uint32_t>(group.world_size);
    }
    return *peers;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<FakePeers>> by_name_;
};

class NcclThreadRank final : public Communicator {
 public:
  using Peers = std::function<std::shared_ptr<NcclPeers>(EventLoop& loop, std::uint32_t rank)>;

  /// `groups` outlives it; null: groups go through host memory.
  NcclThreadRank(std::shared_ptr<Communicator> thread, Peers peers, FakeGroups* groups = nullptr)
      : thread_(std::move(thread)), peers_(std::move(peers)), groups_(groups) {}
  [[nodiscard]] int rank() const override { return thread_->rank(); }
  [[nodiscard]] int world_size() const override { return thread_->world_size(); }
  void require_same(std::string_view /*what*/, std::string_view /*value*/) override {}
  [[nodiscard]] std::vector<std::string> of_all_ranks(std::string value) override {
    return thread_->of_all_ranks(std::move(value));
  }
  std::unique_ptr<CollectiveBackend> make_backend(EventLoop& loop, CpuPool& pool) override {
    return thread_->make_backend(loop, pool);
  }
  std::unique_ptr<CollectiveBackend> make_group_backend(EventLoop& loop, CpuPool& pool,
                                                        const RankGroup& group) override {
    return thread_->make_group_backend(loop, pool, group);
  }
  std::unique_ptr<CollectiveBackend> make_gpu_backend(EventLoop& loop, CpuPool& /*pool*/,
                                                      CudaDevice& gpu,
                                                      std::string_view /*uuid*/) override {
    return connect(loop, gpu, peers_(loop, static_cast<std::uint32_t>(rank())),
                   {.rank = static_cast<std::uint32_t>(rank()),
                    .world = static_cast<std::uint32_t>(world_size())});
  }
  std::unique_ptr<CollectiveBackend> make_gpu_group_backend(EventLoop& loop, CudaDevice& gpu,
                                                            const RankGroup& group) override {
    if (groups_ == nullptr) {
      return nullptr;
    }
    const std::vector<int> members = members_of(*this, group);
    auto waits = std::make_shared<GroupWaits>(
        std::make_shared<RunWaits>(), std::vector<std::uint32_t>(members.begin(), members.end()));
    const auto rank = static_cast<std::uint32_t>(group.rank);
    return std::make_unique<GroupBackend>(
        connect(loop, gpu, std::make_shared<FakePeers::OfRank>(groups_->of(group), rank),
                {.rank = rank,
                 .world = static_cast<std::uint32_t>(group.world_size),
                 .reduces = false,
                 .name = "tandem " + group.name}),
        waits);
  }

 private:
  static std::unique_ptr<CollectiveBackend> connect(EventLoop& loop, CudaDevice& gpu,
                                                    const std::shared_ptr<NcclPeers>& peers,
                                                    NcclBackend::Options options) {
    options.api = &FakeNccl::api();
    options.kernels = &fake_kernels();
    options.peers = peers;  // which end when the loop does not run
    options.from_rank_0 = [](std::string_view key, const std::string& value) {
      std::string id(key);  // the same on all ranks, and that is all it needs to be
      id.resize(value.size());
      return id;
    };
    return loop.run(&NcclBackend::connect, &loop, &gpu, std::move(options));
  }

  std::shared_ptr<Communicator> thread_;
  Peers peers_;
  FakeGroups* groups_;
};

}  // namespace tandem::test
