#include "runtime/device/populate.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/system/machine.hpp"

namespace tandem {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPartMin = std::size_t{32} << 20;  // below, a thread costs more than it gains

/// Calls `act` with parts of the range, each on a thread; on this one where a thread cannot be
/// made.
template <class Act>
void in_parts(std::span<std::byte> memory, int threads, Act act) {
  if (memory.size() < 2 * kPartMin) {
    act(memory);
    return;
  }
  const int most = threads > 0 ? threads : machine::usable_cpus();
  const std::size_t parts = std::min(memory.size() / kPartMin, static_cast<std::size_t>(most));
  const std::size_t length = (memory.size() / parts + kPage) / kPage * kPage;
  std::vector<std::thread> others;
  for (std::size_t begin = length; begin < memory.size(); begin += length) {
    const std::span<std::byte> part =
        memory.subspan(begin, std::min(length, memory.size() - begin));
    try {
      others.emplace_back([&act, part] { act(part); });
    } catch (const std::system_error&) {
      act(part);
    }
  }
  act(memory.first(std::min(length, memory.size())));
  for (std::thread& other : others) {
    other.join();
  }
}

/// The whole pages of the range.
std::span<std::byte> pages_of(std::span<std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t skipped = (kPage - begin % kPage) % kPage;
  return skipped >= memory.size()
             ? std::span<std::byte>()
             : memory.subspan(skipped, (memory.size() - skipped) / kPage * kPage);
}

void prefer(std::span<std::byte> pages, int node) {
  constexpr int kPreferred = 1;  // MPOL_PREFERRED: from other nodes where this one has none left
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[16] = {};
  if (node >= 0 && node < 16 * kBits) {
    mask[node / kBits] = 1UL << (node % kBits);
    (void)::syscall(SYS_mbind, pages.data(), pages.size(), kPreferred, mask, 16 * kBits, 0);
  }
}

/// Reads and writes a byte of each page, where the kernel has no call for it.
void touch(std::span<std::byte> part) {
  for (std::size_t at = 0; at < part.size(); at += kPage) {
    auto* const byte = reinterpret_cast<volatile unsigned char*>(part.data() + at);
    *byte = *byte;
  }
}

}  // namespace

void populate(std::span<std::byte> memory, int node, int threads) {
  const std::span<std::byte> pages = pages_of(memory);
  if (pages.empty()) {
    return;
  }
  prefer(pages, node);
  in_parts(pages, threads, [](std::span<std::byte> part) {
#ifdef MADV_POPULATE_WRITE
    if (::madvise(part.data(), part.size(), MADV_POPULATE_WRITE) == 0) {
      return;
    }
#endif
    touch(part);
  });
}

void fill_with_zeros(std::span<std::byte> memory, int threads) {
  in_parts(memory, threads,
           [](std::span<std::byte> part) { std::memset(part.data(), 0, part.size()); });
}

}  // namespace tandem
