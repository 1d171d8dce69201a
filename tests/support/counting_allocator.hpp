// tests/support/counting_allocator.hpp — in front of ATen's allocator of host memory: every block's
// bytes, the most at a time, and all that were asked for. Any thread.
//
//   CountingAllocator counting;   const CountedTensors counted(counting);
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include <c10/core/CPUAllocator.h>

namespace tandem::test {

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const block = new Block{this, bytes, std::malloc(bytes + 1)};
    const std::int64_t now = live += static_cast<std::int64_t>(bytes);
    asked += static_cast<std::int64_t>(bytes);
    std::int64_t most = peak;
    while (now > most && !peak.compare_exchange_weak(most, now)) {
    }
    return {block->memory, block, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::atomic<std::int64_t> live{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> asked{0};

 private:
  struct Block {
    CountingAllocator* owner;
    std::size_t bytes;
    void* memory;
  };
  static void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->owner->live -= static_cast<std::int64_t>(block->bytes);
    std::free(block->memory);
  }
};

/// While it lives ATen's host memory is the counter's.
class CountedTensors {
 public:
  explicit CountedTensors(CountingAllocator& by) : before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(&by, kOverAll);
  }
  ~CountedTensors() { c10::SetCPUAllocator(before_, kOverAll); }
  CountedTensors(const CountedTensors&) = delete;
  CountedTensors& operator=(const CountedTensors&) = delete;

 private:
  static constexpr std::uint8_t kOverAll = 1;  // priority
  c10::Allocator* before_;
};

}  // namespace tandem::test
