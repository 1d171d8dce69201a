// engine/placement/shared_resources.hpp — activities that share a machine's links, memory, pool and
// disk, in predicted time.
//
// An activity needs some seconds of each resource when it is alone. All activities that use a
// resource get equal shares of it, and the resource that delays an activity most sets its speed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tandem {

enum Resource : std::uint8_t { kToDevice, kToHost, kMemory, kPool, kDisk, kResources };
using Demand = std::array<double, kResources>;  // seconds of each, alone

inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// One operation of one kind.
struct Activity {
  Demand demand{};
  double left = 0;  // share of it
  std::size_t unit = 0;
  bool runs = false;
};

/// One activity of each kind.
template <std::size_t kKinds>
class SharedResources {
 public:
  [[nodiscard]] Activity& operator[](std::size_t kind) noexcept { return activities_[kind]; }

  /// Returns the seconds until the first activity ends; kNever if none runs.
  [[nodiscard]] double seconds_to_next_end() noexcept {
    std::array<int, kResources> users{};
    for (const Activity& activity : activities_) {
      for (std::size_t r = 0; r < kResources; ++r) {
        users[r] += activity.runs && activity.demand[r] > 0 ? 1 : 0;
      }
    }
    double seconds = kNever;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      if (activities_[kind].runs) {
        rates_[kind] = rate_of(activities_[kind], users);
        seconds =
            std::min(seconds, rates_[kind] == kNever ? 0 : activities_[kind].left / rates_[kind]);
      }
    }
    return seconds;
  }

  /// Lets `seconds` pass, at most seconds_to_next_end(), which was called before. Calls
  /// `ended(kind, unit)` for each activity that ends then; it may start others.
  template <class Ended>
  void pass(double seconds, Ended ended) {
    std::array<bool, kKinds> ends{};
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      Activity& activity = activities_[kind];
      if (activity.runs) {
        activity.left = rates_[kind] == kNever ? 0 : activity.left - rates_[kind] * seconds;
        activity.runs = activity.left > kRounding;
        ends[kind] = !activity.runs;
      }
    }
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      if (ends[kind]) {
        ended(kind, activities_[kind].unit);
      }
    }
  }

 private:
  static constexpr double kRounding = 1e-12;  // of a share

  /// Returns the share of the activity that is done in a second.
  [[nodiscard]] static double rate_of(const Activity& activity,
                                      const std::array<int, kResources>& users) noexcept {
    double slowest = 0;
    for (std::size_t r = 0; r < kResources; ++r) {
      slowest = std::max(slowest, activity.demand[r] * users[r]);
    }
    return slowest > 0 ? 1 / slowest : kNever;
  }

  std::array<Activity, kKinds> activities_{};
  std::array<double, kKinds> rates_{};
};

}  // namespace tandem
