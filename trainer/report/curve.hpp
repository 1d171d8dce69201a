// trainer/report/curve.hpp — one figure over a run's steps with a bounded number of
// points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/util/json_writer.hpp"

namespace tandem {

/// Each of up to kMostPoints values is a point. With more values, neighbours form groups, of which
/// the smallest and the largest value stay: so a spike of one step is visible in a run of a million
/// steps.
class Curve {
 public:
  static constexpr std::size_t kMostPoints = 2000;

  /// `values`: at most that many add() follow.
  explicit Curve(std::size_t values);

  /// Values must come in the order of their steps; one that is not finite is a gap.
  void add(std::int64_t step, double value);

  [[nodiscard]] bool is_empty() const noexcept { return count_ == 0; }
  /// Values per bucket; 1: every value is a point.
  [[nodiscard]] std::size_t per_bucket() const noexcept { return per_bucket_; }
  /// {"x": [...], "y": [...]}; a gap is null.
  void write(JsonWriter& json);

 private:
  struct Point {
    std::int64_t step = 0;
    double value = 0;
  };

  void end_bucket();

  std::size_t per_bucket_;
  std::size_t count_ = 0;
  std::vector<Point> points_;
  std::optional<Point> lowest_;
  std::optional<Point> highest_;
  std::optional<Point> gap_;
};

}  // namespace tandem
