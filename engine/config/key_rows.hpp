// engine/config/key_rows.hpp — shared declarations of the files with rows of the key table. A row
// has: path, field, accepted values and, if it is not simply applied, the reason.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/config/key_table.hpp"

namespace tandem::key_rows {

using Kind = RawKey::Kind;
using Rows = std::vector<KeyRow>;

inline constexpr double kCountMax = 2147483647;  // batch sizes and step counts
inline constexpr double kRateMax = 1e6;          // of learning rates and the like: finite in fp32

// Reasons that several rows give.
inline constexpr std::string_view kUnits =
    "memory and communication are planned in whole units (one per block of the model)";
inline constexpr std::string_view kPinning =
    "host memory that an accelerator copies is always pinned; the CPU needs none";
inline constexpr std::string_view kOneDivision =
    "gradients are summed over ranks in fp32 and divided once, in the update";
inline constexpr std::string_view kOwnCheckpoints = "checkpoints have a format of their own";

template <class T>
KeyRow key(std::string_view path, T* field) {
  return KeyRow{.path = std::string(path), .field = field};
}
inline KeyRow raw(std::string_view path, Kind kind, std::string_view default_json) {
  return KeyRow{.path = std::string(path), .field = RawKey{kind, std::string(default_json)}};
}
inline KeyRow block(std::string_view path) { return raw(path, Kind::kBlock, "null"); }

[[nodiscard]] Rows batch_rows(Config& c);
[[nodiscard]] Rows optimizer_rows(Config& c);
[[nodiscard]] Rows scheduler_rows(Config& c);
[[nodiscard]] Rows top_rows(Config& c);
[[nodiscard]] Rows precision_rows(Config& c);
[[nodiscard]] Rows zero_rows(Config& c);
[[nodiscard]] Rows monitor_rows(Config& c);
[[nodiscard]] Rows checkpoint_rows();
[[nodiscard]] Rows other_rows(Config& c);

}  // namespace tandem::key_rows
