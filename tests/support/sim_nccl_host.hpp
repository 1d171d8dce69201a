// tests/support/sim_nccl_host.hpp — the messages between the ranks of one simulated host beside
// NCCL, in virtual time, as ShmNcclPeers has them.
//
// A decision that is overwritten before a rank of the host has begun its turn is a breach. When a
// rank dies, the others of its host notice after detect_after; one that says nothing for
// silent_after is silent. Lives as long as the world runs.
//
//   SimNcclHost host(world, 4, 2);   std::unique_ptr<HostNcclPeers> peers = host.attach(5);
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "actors/collectives/nccl/host_nccl_peers.hpp"
#include "runtime/sim/sim_world.hpp"
#include "runtime/util/check.hpp"
#include "tests/support/uncounted.hpp"

namespace tandem {

class SimNcclHost {
 public:
  struct Options {
    Duration detect_after = std::chrono::milliseconds(50);
    Duration silent_after = std::chrono::seconds(15);
  };
  /// Has the world's ranks [first, first + ranks).
  SimNcclHost(SimWorld& world, std::uint32_t first, std::uint32_t ranks, Options options)
      : world_(world), first_(first), options_(options), members_(ranks) {
    world_.on_death([this](std::uint32_t dead) {
      if (dead - first_ < members_.size()) {
        tell({dead, fmt::format("rank {} is gone: its process ended", dead)}, dead,
             options_.detect_after);
      }
    });
  }
  SimNcclHost(const SimNcclHost&) = delete;
  SimNcclHost& operator=(const SimNcclHost&) = delete;

  [[nodiscard]] std::unique_ptr<HostNcclPeers> attach(std::uint32_t rank) {
    auto made = std::make_unique<Member>(*this, rank - first_);
    members_[rank - first_] = made.get();
    return made;
  }

 private:
  class Member final : public HostNcclPeers {
   public:
    Member(SimNcclHost& host, std::uint32_t local) : host_(host), local_(local) {}
    ~Member() override { host_.members_[local_] = nullptr; }

    void decide(std::uint64_t turn, const NcclLaunch& launch) noexcept override {
      TANDEM_CHECK(local_ == 0 && turn == host_.decided_, "turns are decided in their order");
      for (const Member* member : host_.members_) {
        TANDEM_CHECK(member == nullptr || turn < kMostAhead || member->begun_ > turn - kMostAhead,
                     "a decision is kept until every rank has begun its turn");
      }
      host_.launches_[turn % kMostAhead] = launch;
      ++host_.decided_;
    }
    std::optional<NcclLaunch> decided(std::uint64_t turn) noexcept override {
      return turn < host_.decided_ ? std::optional(host_.launches_[turn % kMostAhead])
                                   : std::nullopt;
    }
    void has_begun(std::uint64_t turn) noexcept override { begun_ = turn; }
    std::uint64_t begun(std::uint32_t rank) const noexcept override {
      if (rank - host_.first_ < world()) {
        const Member* const member = host_.members_[rank - host_.first_];
        return member != nullptr ? member->begun_ : 0;
      }
      const auto found = host_.received_.find(rank);
      return found != host_.received_.end() ? found->second : 0;
    }
    void has_received(std::uint32_t rank, std::uint64_t begun) noexcept override {
      const test::Uncounted uncounted;
      host_.received_[rank] = begun;
    }
    [[nodiscard]] std::uint32_t first_rank() const noexcept override { return host_.first_; }
    [[nodiscard]] std::uint32_t world() const noexcept override {
      return static_cast<std::uint32_t>(host_.members_.size());
    }
    [[nodiscard]] std::uint32_t rank() const noexcept override { return local_; }

    void say_awaited(std::uint32_t rank, Awaited awaited) noexcept override {
      const test::Uncounted uncounted;
      host_.awaited_[rank] = awaited;
      spoke_at_ = host_.world_.now();
    }
    [[nodiscard]] Awaited awaited(std::uint32_t rank) const noexcept override {
      const auto said = host_.awaited_.find(rank);
      Awaited all = said != host_.awaited_.end() ? said->second : Awaited();
      if (rank - host_.first_ < world()) {
        const Member* const member = host_.members_[rank - host_.first_];
        all.set_silent(member != this &&
                       (member == nullptr ||
                        host_.world_.now() - member->spoke_at_ > host_.options_.silent_after));
      }
      return all;
    }

    void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept override {
      if (!loss_) {
        loss_ = NcclLoss{failed_rank, cause};
        host_.tell(*loss_, host_.first_ + local_, std::chrono::microseconds(1));
      }
    }
    std::optional<NcclLoss> loss() noexcept override { return loss_; }
    void receive(const NcclLoss& loss) {
      if (!loss_) {
        loss_ = loss;
      }
    }

   private:
    SimNcclHost& host_;
    std::uint32_t local_;
    std::uint64_t begun_ = 0;
    TimePoint spoke_at_;
    std::optional<NcclLoss> loss_;
  };

  void tell(const NcclLoss& loss, std::uint32_t except, Duration after) {
    for (std::uint32_t local = 0; local < members_.size(); ++local) {
      if (first_ + local != except) {
        world_.after(after, first_ + local, [this, local, loss] {
          if (members_[local] != nullptr) {
            members_[local]->receive(loss);
          }
        });
      }
    }
  }

  SimWorld& world_;
  std::uint32_t first_;
  Options options_;
  std::uint64_t decided_ = 0;
  std::array<NcclLaunch, NcclPeers::kMostAhead> launches_;
  std::map<std::uint32_t, std::uint64_t> received_;  // turns begun, by rank of other hosts
  std::map<std::uint32_t, Awaited> awaited_;         // by rank among all
  std::vector<Member*> members_;                     // by rank of this host
};

}  // namespace tandem
