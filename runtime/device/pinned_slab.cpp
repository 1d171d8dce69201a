#include "runtime/device/pinned_slab.hpp"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "runtime/device/populate.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
}  // namespace

PinnedSlab::PinnedSlab(const CudaApi& api, Options options)
    : api_(api), options_(std::move(options)) {}

PinnedSlab::~PinnedSlab() {
  for (const Piece& piece : pieces_) {
    if (piece.pinned) {
      (void)api_.give_pinned_back(piece.data);
    } else {
      ::operator delete(piece.data, std::align_val_t{kPage});
    }
  }
}

PinnedSlab::Piece PinnedSlab::take_piece(std::size_t bytes) {
  void* memory = nullptr;
  const CudaApi::Status status = api_.take_pinned(&memory, bytes);
  if (status == CudaApi::kSuccess) {
    return {static_cast<std::byte*>(memory), bytes, true};
  }
  memory = ::operator new(bytes, std::align_val_t{kPage}, std::nothrow);
  if (memory == nullptr) {
    throw failure(ExitCode::kRefused, "memory",
                  "{} bytes of pinned host memory cannot be had ({}), nor of ordinary memory; use "
                  "smaller units or more ranks",
                  bytes, api_.name_of(status));
  }
  if (refusals_++ == 0) {
    const std::string line = fmt::format(
        "[memory] {} bytes of host memory cannot be pinned ({}); ordinary memory takes their "
        "place, copies are slower: raise the limit of locked memory (ulimit -l)",
        bytes, api_.name_of(status));
    if (options_.say) {
      options_.say(line);
    } else {
      fmt::print(stderr, "{}\n", line);
    }
  }
  return {static_cast<std::byte*>(memory), bytes, false};
}

std::byte* PinnedSlab::allocate(std::size_t bytes) {
  const std::size_t wanted = std::max(whole_pages(bytes), kPage);
  if (pieces_.empty() || pieces_.back().bytes - used_ < wanted) {
    pieces_.push_back(take_piece(std::max(wanted, whole_pages(options_.piece_bytes))));
    used_ = 0;
  }
  std::byte* const lent = pieces_.back().data + used_;
  used_ += wanted;
  fill_with_zeros({lent, wanted});
  return lent;
}

std::size_t PinnedSlab::taken_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces_) {
    bytes += piece.bytes;
  }
  return bytes;
}

}  // namespace tandem
