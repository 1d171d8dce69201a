#include "actors/collectives/comms_log.hpp"

#include <chrono>
#include <utility>

#include "runtime/util/check.hpp"

namespace tandem {

namespace {
double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }
}  // namespace

void CommsLog::add(CommsKey key, Duration took, Duration exposed) {
  if (!counts_ || (options_.operations >> static_cast<std::uint32_t>(key.what) & 1U) == 0) {
    return;
  }
  key.unit = options_.by_unit ? key.unit : flight::kNoUnit;
  if (options_.verbose && !verbose_is_full()) {
    ++verbose_count_;
    verbose_.push_back({.key = key, .seconds = seconds_of(took)});
  }
  auto row = rows_.find(key);
  if (row == rows_.end()) {
    if (rows_.size() == kMostRows) {
      ++left_out_;
      return;
    }
    row = rows_.emplace(key, CommsCount()).first;
  }
  CommsCount& count = row->second;
  const auto latency_s = static_cast<float>(seconds_of(took));
  if (count.latest_s.size() < kLatest) {
    count.latest_s.push_back(latency_s);
  } else {
    count.latest_s[count.operations % kLatest] = latency_s;
  }
  ++count.operations;
  count.total_s += seconds_of(took);
  count.exposed_s += seconds_of(exposed);
}

void CommsLog::lane_waits(CommSequence sequence, TimePoint now) noexcept {
  Standing& standing = standing_[static_cast<std::size_t>(sequence)];
  if (standing.waits++ == 0) {
    standing.since = now;
  }
}

void CommsLog::lane_goes_on(CommSequence sequence, TimePoint now) noexcept {
  Standing& standing = standing_[static_cast<std::size_t>(sequence)];
  TANDEM_CHECK(standing.waits > 0, "a wait that ends has begun");
  if (--standing.waits == 0) {
    standing.total += now - standing.since;
  }
}

Duration CommsLog::stood_still(CommSequence sequence, TimePoint now) const noexcept {
  const Standing& standing = standing_[static_cast<std::size_t>(sequence)];
  return standing.total + (standing.waits > 0 ? now - standing.since : Duration(0));
}

std::vector<CommsLog::Verbose> CommsLog::take_verbose() { return std::exchange(verbose_, {}); }

}  // namespace tandem
