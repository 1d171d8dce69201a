#include "trainer/report/curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace tandem {

Curve::Curve(std::size_t values)
    : per_bucket_(values <= kMostPoints ? 1 : (values + kMostPoints / 2 - 1) / (kMostPoints / 2)) {}

void Curve::add(std::int64_t step, double value) {
  const Point point{.step = step, .value = value};
  if (!std::isfinite(value)) {
    gap_ = point;
  } else {
    if (!lowest_ || value < lowest_->value) {
      lowest_ = point;
    }
    if (!highest_ || value > highest_->value) {
      highest_ = point;
    }
  }
  if (++count_ % per_bucket_ == 0) {
    end_bucket();
  }
}

void Curve::end_bucket() {
  const auto first = static_cast<std::ptrdiff_t>(points_.size());
  for (const std::optional<Point>& point : {lowest_, highest_, gap_}) {
    if (point &&
        (points_.size() == static_cast<std::size_t>(first) || points_.back().step != point->step)) {
      points_.push_back(*point);
    }
  }
  std::sort(points_.begin() + first, points_.end(),
            [](const Point& a, const Point& b) { return a.step < b.step; });
  lowest_.reset();
  highest_.reset();
  gap_.reset();
}

void Curve::write(JsonWriter& json) {
  end_bucket();
  json.begin_object().key("x").begin_array();
  for (const Point& point : points_) {
    json.value(point.step);
  }
  json.end_array().key("y").begin_array();
  for (const Point& point : points_) {
    if (std::isfinite(point.value)) {
      json.raw(fmt::format("{:.7g}", point.value));
    } else {
      json.value(nullptr);
    }
  }
  json.end_array().end_object();
}

}  // namespace tandem
