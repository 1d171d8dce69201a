#include "actors/collectives/shm/shm_arena.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// The arenas of this process, so that ranks that are its threads use one mapping: that halves the
// page tables, and ThreadSanitizer, which identifies memory by its address, sees both sides.
struct Registry {
  std::mutex mutex;
  std::map<ShmMapping::Token, std::weak_ptr<ShmMapping>> arenas;
};
Registry& registry() {
  static Registry* const kept = new Registry;  // never destroyed: arenas may outlive static objects
  return *kept;
}

}  // namespace

ShmMapping::~ShmMapping() {
  TANDEM_CHECK(::munmap(data_, bytes_) == 0, "an arena unmaps what it mapped");
}

std::shared_ptr<ShmMapping> ShmMapping::of_peer(int descriptor, std::size_t bytes,
                                                const Token& token) {
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.arenas.find(token); found != all.arenas.end()) {
      if (auto own = found->second.lock()) {
        return own;
      }
    }
  }
  struct stat status{};
  if (::fstat(descriptor, &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    throw failure(ExitCode::kPeer, "shm", "a peer's memory has {} bytes, it said {}",
                  status.st_size, bytes);
  }
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw failure(ExitCode::kPeer, "shm",
                  "a peer's memory is not sealed; run the same version on all ranks");
  }
  void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (mapped == MAP_FAILED) {
    throw failure(ExitCode::kRefused, "shm",
                  "cannot map {} bytes of a peer's memory: {}; raise the limit of address space",
                  bytes, std::strerror(errno));
  }
  return std::make_shared<ShmMapping>(static_cast<std::byte*>(mapped), bytes);
}

ShmArena::ShmArena(std::size_t bytes) {
  bytes = round_up(std::max<std::size_t>(bytes, 1), kPageBytes);
  descriptor_ = ::memfd_create("tandem-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Sealed: no peer can make it shorter under the others' feet.
  if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
      ::getrandom(token_.data(), sizeof(token_), 0) != sizeof(token_)) {
    const int error = errno;
    close_descriptor();
    throw failure(ExitCode::kRefused, "shm", "cannot make {} bytes of shared memory: {}", bytes,
                  std::strerror(error));
  }
  void* mapped =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    close_descriptor();
    throw failure(ExitCode::kRefused, "shm",
                  "cannot map {} bytes of shared memory: {}; raise the limit of address space",
                  bytes, std::strerror(error));
  }
  mapping_ = std::make_shared<ShmMapping>(static_cast<std::byte*>(mapped), bytes);
  // The mapping above stays the only writable one. Older kernels do not know the first seal.
  if (::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    (void)::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SEAL);
  }
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.arenas.emplace(token_, mapping_);
}

ShmArena::~ShmArena() {
  close_descriptor();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.arenas.erase(token_);
}

std::byte* ShmArena::allocate(std::size_t bytes) {
  const bool huge = bytes >= kHugePageBytes;
  const auto base = reinterpret_cast<std::uintptr_t>(mapping_->data());
  const std::size_t begin = round_up(base + used_, huge ? kHugePageBytes : kPageBytes) - base;
  if (begin > mapping_->size_bytes() || bytes > mapping_->size_bytes() - begin) {
    throw failure(ExitCode::kRefused, "shm",
                  "{} more bytes of shared memory, {} of {} are used; use a smaller model or more "
                  "ranks",
                  bytes, used_, mapping_->size_bytes());
  }
  used_ = begin + bytes;
  if (huge) {
    // Advice: a kernel without huge pages for shared memory says no, and all is well.
    (void)::madvise(mapping_->data() + begin, bytes, MADV_HUGEPAGE);
  }
  return mapping_->data() + begin;
}

void ShmArena::close_descriptor() noexcept {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

}  // namespace tandem
