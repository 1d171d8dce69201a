// runtime/device/pinned_slab.hpp — allocates pinned host memory from a few large pieces.
//
// Pinning costs a call into the driver that may wait for the device, and the system bounds it; so
// pieces are allocated rarely, kept, and used from beginning to end. If the system refuses to pin,
// ordinary memory is used, and one line says so: copies then go through the driver's own small
// buffers, and the host waits for them.
// Invariant: the memory that allocate() returns is zeroed and page aligned, and stays at its
// address until the slab is destroyed. No copy may be under way then.
// Thread rule: any thread, one at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/device/cuda_api.hpp"

namespace tandem {

class PinnedSlab {
 public:
  struct Options {
    std::size_t piece_bytes = std::size_t{16} << 20;  // the least size of a piece
    std::function<void(const std::string&)> say;      // prints a line; empty: to stderr
  };
  explicit PinnedSlab(const CudaApi& api) : PinnedSlab(api, Options()) {}
  PinnedSlab(const CudaApi& api, Options options);
  ~PinnedSlab();
  PinnedSlab(const PinnedSlab&) = delete;
  PinnedSlab& operator=(const PinnedSlab&) = delete;

  /// Returns `bytes` of host memory. Throws Error(kRefused) if there is no memory at all.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);
  /// True if all memory that was allocated so far is pinned.
  [[nodiscard]] bool is_pinned() const noexcept { return refusals_ == 0; }
  [[nodiscard]] std::size_t taken_bytes() const noexcept;

 private:
  struct Piece {
    std::byte* data;
    std::size_t bytes;
    bool pinned;
  };
  Piece take_piece(std::size_t bytes);

  const CudaApi& api_;
  Options options_;
  std::vector<Piece> pieces_;
  std::size_t used_ = 0;  // of the last piece
  std::size_t refusals_ = 0;
};

}  // namespace tandem
