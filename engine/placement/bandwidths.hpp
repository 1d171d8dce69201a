// engine/placement/bandwidths.hpp — how fast this machine's pool updates: measured with the kernel
// of the run, kept in a file.
//
// Measuring takes tenths of a second, for it has to move more than the caches keep; the file
// (bandwidths.tsv in the user's cache folder) has a line for each machine, thread count and kernel.
// A line of the key `*`, which only a person writes, stands for all keys without a line: nothing is
// measured then.
// It is a cache and nothing more: what is missing, unreadable or no number is measured anew, and a
// file that cannot be written is left out. It is replaced as a whole, so readers see the old one or
// the new one. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "actors/kernels/dtype.hpp"
#include "actors/kernels/update/optimizer_step.hpp"

namespace tandem {

/// The properties on which an update's speed depends.
struct UpdateKernel {
  UpdateConfig update;
  StateLayout layout = StateLayout::kFp32;
  DType weight = DType::kF32;
  DType gradient = DType::kF32;
  int threads = 1;
  bool speculative = false;  // out of place, before the verdict
};

/// Bytes that an update reads and writes per element: state and gradient, and the weight where it
/// is not the master.
[[nodiscard]] double update_bytes_per_element(const UpdateKernel& kernel);

/// Measured here and now, on threads of its own: bytes read and written per second, by all of them
/// together.
[[nodiscard]] double measure_update_speed(const UpdateKernel& kernel);

class BandwidthCache {
 public:
  /// The user's; no path: nothing is kept.
  [[nodiscard]] static BandwidthCache of_user();
  explicit BandwidthCache(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// From the file, or by `measure`, whose result is then written. Never throws because of the
  /// file.
  template <class Measure>
  double get(std::string_view key, Measure measure) const {
    if (const double known = find(key); known > 0) {
      return known;
    }
    const double measured = measure();
    keep(key, measured);
    return measured;
  }

 private:
  [[nodiscard]] double find(std::string_view key) const;  // 0: not there
  void keep(std::string_view key, double value) const;

  std::string path_;
};

/// The name of this machine and this kernel in the file.
[[nodiscard]] std::string cache_key(const UpdateKernel& kernel);

/// measure_update_speed() through the user's file.
[[nodiscard]] double update_speed(const UpdateKernel& kernel);

}  // namespace tandem
