#include "runtime/sim/sim_log.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace tandem {

void SimLog::mix(std::uint64_t value) noexcept {
  hash_ = (hash_ ^ value) * 0x9e3779b97f4a7c15;
  hash_ ^= hash_ >> 29;
}

void SimLog::add(const Record& record) {
  mix(static_cast<std::uint64_t>(record.time_ns));
  for (const char* c = record.what; *c != '\0'; ++c) {
    mix(static_cast<unsigned char>(*c));
  }
  mix(record.rank);
  mix(record.a);
  mix(record.b);
  if (ring_.size() < kKept) {
    ring_.push_back(record);
  } else {
    ring_[count_ % kKept] = record;
  }
  ++count_;
}

std::string SimLog::tail(std::size_t most) const {
  std::string text;
  const std::uint64_t kept = std::min<std::uint64_t>(count_, std::min(most, ring_.size()));
  for (std::uint64_t i = count_ - kept; i < count_; ++i) {
    const Record& r = ring_[i % kKept];
    text +=
        fmt::format("{:>14.3f} us  rank {:>2}  {} {} {}\n", static_cast<double>(r.time_ns) * 1e-3,
                    static_cast<std::int32_t>(r.rank), r.what, r.a, r.b);
  }
  return text;
}

}  // namespace tandem
