#include "actors/collectives/group_waits.hpp"

#include <algorithm>
#include <utility>

#include "runtime/io/net.hpp"
#include "runtime/util/planted.hpp"

namespace tandem {

void RunWaits::know(std::span<const Awaited> by_rank) {
  const std::lock_guard lock(mutex_);
  known_.assign(by_rank.begin(), by_rank.end());
}

Awaited RunWaits::in_groups() const {
  const std::lock_guard lock(mutex_);
  Awaited all;
  for (const auto& [group, awaited] : said_) {
    all.add(awaited);
  }
  return all;
}

void RunWaits::fail(std::uint32_t failed_rank, std::string_view why) {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_.emplace(failed_rank, std::string(why));
  }
}

GroupWaits::GroupWaits(std::shared_ptr<RunWaits> run, std::vector<std::uint32_t> members)
    : run_(std::move(run)), members_(std::move(members)) {}

std::uint32_t GroupWaits::in_run(std::uint32_t rank) const noexcept {
  const auto count = static_cast<std::uint32_t>(members_.size());
  return rank < count ? members_[rank] : rank == kUnknownRank ? rank : rank - count;
}

std::uint32_t GroupWaits::in_group(std::uint32_t rank) const noexcept {
  const auto count = static_cast<std::uint32_t>(members_.size());
  const auto member = std::ranges::find(members_, rank);
  return member != members_.end()      ? static_cast<std::uint32_t>(member - members_.begin())
         : rank < kUnknownRank - count ? rank + count
                                       : kUnknownRank;
}

void GroupWaits::say(Awaited awaited) {
  if (planted(Bug::kGroupWaitUnsaid)) {
    return;
  }
  Awaited in_run_numbers;
  awaited.for_each([&](std::uint32_t rank) { in_run_numbers.add(in_run(rank)); });
  const std::lock_guard lock(run_->mutex_);
  if (in_run_numbers.packed() == 0) {
    run_->said_.erase(this);
  } else {
    run_->said_[this] = in_run_numbers;
  }
}

Awaited GroupWaits::of(std::uint32_t rank) const {
  const std::uint32_t number = in_run(rank);
  const std::lock_guard lock(run_->mutex_);
  return number < run_->known_.size() ? run_->known_[number] : Awaited();
}

EndOfWaits GroupWaits::end_of(std::uint32_t waiter, std::uint32_t awaited) const {
  const std::lock_guard lock(run_->mutex_);
  const std::vector<Awaited>& known = run_->known_;
  const std::uint32_t world =
      std::max(static_cast<std::uint32_t>(known.size()), 1 + *std::ranges::max_element(members_));
  EndOfWaits end = end_of_waits(in_run(waiter), in_run(awaited), world, [&](std::uint32_t rank) {
    return rank < known.size() ? known[rank] : Awaited();
  });
  end.rank = in_group(end.rank);
  return end;
}

std::optional<RunWaits::Failure> GroupWaits::failure() const {
  const std::lock_guard lock(run_->mutex_);
  std::optional<RunWaits::Failure> failure = run_->failure_;
  if (failure) {
    failure->rank = in_group(failure->rank);
  }
  return failure;
}

}  // namespace tandem
