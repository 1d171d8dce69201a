// engine/placement/bandwidths.hpp — the speed of updates on this machine's pool, measured with the
// run's kernel and stored in a file.
//
// A measurement takes tenths of a second, because it moves more bytes than the caches hold. The
// file (bandwidths.tsv in the user's cache folder) has a line for each machine, thread count and
// kernel. A line with the key `*`, which only a person writes, applies to all keys without a line:
// then nothing is measured. The file is only a cache: entries that are missing, unreadable or not
// numbers are measured again, and a file that cannot be written is ignored. The file is replaced as
// a whole, so readers see the old one or the new one. Any thread.
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

/// Returns the bytes that an update reads and writes per element: state, gradient and, if it is not
/// the master, the weight.
[[nodiscard]] double update_bytes_per_element(const UpdateKernel& kernel);

/// Measures on threads of its own; returns the bytes that all of them together read and write per
/// second.
[[nodiscard]] double measure_update_speed(const UpdateKernel& kernel);

class BandwidthCache {
 public:
  /// Returns the user's cache; without a path nothing is stored.
  [[nodiscard]] static BandwidthCache of_user();
  explicit BandwidthCache(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Returns the value from the file, else calls `measure` and stores its result. Errors of the
  /// file are ignored.
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

/// Returns the key of this machine and this kernel in the file.
[[nodiscard]] std::string cache_key(const UpdateKernel& kernel);

/// measure_update_speed() through the user's file.
[[nodiscard]] double update_speed(const UpdateKernel& kernel);

}  // namespace tandem
