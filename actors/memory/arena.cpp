#include "actors/memory/arena.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
}  // namespace

HostBuffer::HostBuffer(std::size_t bytes, Options options) : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* mapped =
      ::mmap(nullptr, bytes, options.has_memory ? PROT_READ | PROT_WRITE : PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | (options.has_memory ? 0 : MAP_NORESERVE), -1, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    throw failure(ExitCode::kRefused, "memory",
                  "cannot allocate {} bytes of host memory: {}; use a smaller model or more ranks",
                  bytes, std::strerror(error));
  }
  data_ = static_cast<std::byte*>(mapped);
  if (options.has_memory && options.huge_pages && bytes >= kHugePageBytes) {
    (void)::madvise(mapped, bytes,
                    MADV_HUGEPAGE);  // advice: a kernel without them says no, and all is well
  }
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) {
    TANDEM_CHECK(::munmap(data_, bytes_) == 0, "a buffer unmaps what it mapped");
  }
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void HostBuffer::touch(std::size_t begin_byte, std::size_t end_byte) const noexcept {
  TANDEM_CHECK(begin_byte <= end_byte && end_byte <= bytes_, "a touched range lies in the buffer");
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t at = begin_byte; at < end_byte; at += page_bytes) {
    volatile std::byte* byte = data_ + at;
    *byte = *byte;
  }
}

}  // namespace tandem
