// actors/collectives/group_backend.hpp — the collectives of a group of ranks, whose failures name
// ranks by their numbers in the run.
//
// The inner back end numbers the group's ranks; this class translates the ranks in failures between
// both numberings. So if a rank aborts because of a rank outside of the group, it names that rank
// to its peers, and not itself.
// Thread rule: that of the inner back end.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/group_waits.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

/// Returns the failure with the rank's number in the run.
[[nodiscard]] PeerLost lost_in_run(const GroupWaits& waits, const PeerLost& lost);

class GroupBackend final : public CollectiveBackend {
 public:
  /// `inner` connects the members of `waits`, to which it reports its own waits.
  GroupBackend(std::unique_ptr<CollectiveBackend> inner, std::shared_ptr<GroupWaits> waits)
      : waits_(std::move(waits)), inner_(std::move(inner)) {}

  /// The number of the group's ranks.
  [[nodiscard]] std::uint32_t world() const noexcept override { return inner_->world(); }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return inner_->rank(); }

  std::byte* allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  Task<> all_gather(GatherArguments arguments) override;
  Task<GradientNorm> reduce_scatter_add(ReduceArguments arguments) override;
  Task<GradientNorm> all_reduce_add(ReduceArguments arguments) override;
  Task<> exchange(ExchangeArguments arguments) override;
  Task<> all_to_all(AllToAllArguments arguments) override;

  void begin_behind(const std::byte* block, const DeviceEvent& event) override {
    inner_->begin_behind(block, event);
  }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }
  /// `failed_rank`: its number in the run.
  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override {
    inner_->fail(waits_->in_group(failed_rank), why);
  }

 private:
  template <class Result, class Arguments>
  Task<Result> in_run(Task<Result> (CollectiveBackend::*operation)(Arguments), Arguments arguments);

  std::shared_ptr<GroupWaits> waits_;
  std::unique_ptr<CollectiveBackend> inner_;
};

}  // namespace tandem
