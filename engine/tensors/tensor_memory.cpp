#include "engine/tensors/tensor_memory.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "runtime/system/machine.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {
constexpr std::size_t kLine = 64;
constexpr std::size_t kGrowth = std::size_t{64} << 20;
// The process's one; lives as long as tensors do, of which some are static.
TensorMemory* of_process = nullptr;
}  // namespace

// It lies in the block, so neighbours of the same size do not begin at the same place of a page.
struct alignas(kLine) TensorMemory::Block {
  TensorMemory* owner;
  std::size_t begin, bytes;
};

TensorMemory::TensorMemory(std::size_t range_bytes, c10::Allocator& other) : other_(other) {
  for (; range_ == nullptr && range_bytes >= kGrowth; range_bytes /= 2) {
    void* const range =
        mmap(nullptr, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range != MAP_FAILED) {
      range_ = static_cast<std::byte*>(range);
      range_bytes_ = range_bytes;
    }
  }
}

TensorMemory::~TensorMemory() {
  if (range_ != nullptr) {
    munmap(range_, range_bytes_);
  }
}

c10::DataPtr TensorMemory::allocate(std::size_t bytes) {
  Block* const block = bytes < kLeastBytes ? nullptr : take(bytes);
  return block == nullptr
             ? other_.allocate(bytes)
             : c10::DataPtr(block + 1, block + 1, &give_back, c10::Device(c10::DeviceType::CPU));
}

void TensorMemory::copy_data(void* to, const void* from, std::size_t bytes) const {
  default_copy_data(to, from, bytes);
}

std::size_t TensorMemory::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

c10::DeleterFnPtr TensorMemory::raw_deleter() const {
  return this == of_process ? &give_back_any : nullptr;
}

void TensorMemory::give_back(void* tensor) {
  const Block& block = static_cast<const Block*>(tensor)[-1];
  block.owner->free(block);
}

void TensorMemory::give_back_any(void* memory) {
  const auto* const begin = static_cast<std::byte*>(memory);
  const std::less<> before;
  if (begin != nullptr && !before(begin, of_process->range_) &&
      before(begin, of_process->range_ + of_process->range_bytes_)) {
    give_back(memory);
  } else {
    of_process->other_.raw_deleter()(memory);
  }
}

TensorMemory::Block* TensorMemory::take(std::size_t bytes) {
  if (bytes > range_bytes_) {
    return nullptr;
  }
  const std::size_t needed = sizeof(Block) + round_up(bytes, kLine);
  const std::lock_guard lock(mutex_);
  auto best = gaps_.end();
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second >= needed && (best == gaps_.end() || gap->second < best->second)) {
      best = gap;
    }
  }
  std::size_t begin = used_;
  if (best != gaps_.end()) {
    begin = best->first;
    if (best->second > needed) {
      gaps_.emplace(begin + needed, best->second - needed);
    }
    gaps_.erase(best);
  } else {
    const auto last = gaps_.empty() ? gaps_.end() : std::prev(gaps_.end());
    const bool grows = last != gaps_.end() && last->first + last->second == used_;
    begin = grows ? last->first : used_;
    if (needed > range_bytes_ - begin || !make_writable(begin + needed)) {
      return nullptr;
    }
    if (grows) {
      gaps_.erase(last);
    }
    used_ = begin + needed;
  }
  return new (range_ + begin) Block{.owner = this, .begin = begin, .bytes = needed};
}

bool TensorMemory::make_writable(std::size_t end) {
  if (end <= writable_) {
    return true;
  }
  const std::size_t until = std::min(round_up(end, kGrowth), range_bytes_);
  if (mprotect(range_ + writable_, until - writable_, PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  writable_ = until;
  return true;
}

void TensorMemory::free(const Block& block) {
  std::size_t begin = block.begin;
  std::size_t bytes = block.bytes;
  const std::lock_guard lock(mutex_);
  auto next = gaps_.lower_bound(begin);
  if (next != gaps_.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  gaps_.emplace(begin, bytes);
}

void use_tensor_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::Allocator* const given = c10::GetCPUAllocator();
    if (given == c10::GetDefaultCPUAllocator()) {
      // Addresses for gaps, too; under a limit a quarter of them.
      rlimit addresses{};
      (void)getrlimit(RLIMIT_AS, &addresses);
      of_process = new TensorMemory(
          std::min<std::uint64_t>(2 * machine::memory_total_bytes(), addresses.rlim_cur / 4),
          *given);
      c10::SetCPUAllocator(of_process);
    }
  });
}

}  // namespace tandem
