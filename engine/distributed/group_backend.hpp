// engine/distributed/group_backend.hpp — the collectives of some of a run's ranks, whose failures
// name ranks by their numbers in the run.
//
// The back end inside counts its own ranks; a failure there, or one that is told to it, is turned
// into the other count. So a rank that gives up because of one that is in no group with its peers
// still names that one to them, and not itself.
// Thread rule: of the back end inside.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "engine/distributed/communicator.hpp"

namespace tandem {

/// The group's ranks by their numbers in the run, in the group's order. All ranks of the run call
/// it, each for its group.
[[nodiscard]] std::vector<int> members_of(Communicator& communicator, const RankGroup& group);

class GroupBackend final : public CollectiveBackend {
 public:
  /// `inner` has as many ranks as there are members.
  GroupBackend(std::unique_ptr<CollectiveBackend> inner, std::vector<int> members)
      : inner_(std::move(inner)), members_(std::move(members)) {}

  /// As the group counts.
  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_->world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_->rank(); }

  std::byte* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> broadcast(BroadcastArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

  void begin_behind(const std::byte* block, const DeviceEvent& event) override {
    inner_->begin_behind(block, event);
  }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  /// `failed_rank`: of the run.
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override;

 private:
  template <class Result, class Arguments>
  Task<Result> in_run(Task<Result> (CollectiveBackend::*operation)(Arguments), Arguments arguments);

  std::unique_ptr<CollectiveBackend> inner_;
  std::vector<int> members_;
};

}  // namespace tandem
