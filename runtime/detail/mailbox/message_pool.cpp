#include "runtime/detail/mailbox/message_pool.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "runtime/util/build.hpp"

namespace tandem::detail {
namespace {

constexpr std::size_t kGranule = 64;
constexpr std::size_t kClasses = 16;  // blocks up to 1 KiB are pooled
// Blocks of a class that a pool keeps: what a burst needed beyond is given back.
constexpr std::uint32_t kKeptPerClass = 8192;

class ThreadPool;

struct alignas(16) Block {
  ThreadPool* owner;  // null: not pooled
  union {
    std::size_t size_class;
    Block* next;  // only while it is in a list whose class is known
  };
};

// The blocks of one thread.
class ThreadPool {
 public:
  Block* take(std::size_t size_class) noexcept {
    List& list = lists_[size_class];
    if (list.local == nullptr) {
      // acquire: what the returning thread did with the block is done.
      if (list.returned.load(std::memory_order_relaxed) != nullptr) {
        list.local = list.returned.exchange(nullptr, std::memory_order_acquire);
        list.kept = list.returned_count.exchange(0, std::memory_order_relaxed);
      }
      if (list.local == nullptr) {
        return nullptr;
      }
    }
    list.kept -= list.kept > 0 ? 1 : 0;  // a count of returned blocks may miss some
    return std::exchange(list.local, list.local->next);
  }

  void put(Block& block, std::size_t size_class) noexcept {
    List& list = lists_[size_class];
    if (list.kept >= kKeptPerClass) [[unlikely]] {
      std::free(&block);
      return;
    }
    ++list.kept;
    block.next = list.local;
    list.local = &block;
  }

  void put_from_other_thread(Block& block, std::size_t size_class) noexcept {
    List& list = lists_[size_class];
    const std::uint32_t count = list.returned_count.load(std::memory_order_relaxed);
    if (count >= kKeptPerClass) [[unlikely]] {
      std::free(&block);
      return;
    }
    list.returned_count.store(count + 1,
                              std::memory_order_relaxed);  // about: a bound needs no more
    std::atomic<Block*>& head = list.returned;
    Block* first = head.load(std::memory_order_relaxed);
    do {
      block.next = first;
    } while (!head.compare_exchange_weak(first, &block, std::memory_order_release,
                                         std::memory_order_relaxed));
  }

 private:
  struct alignas(64) List {
    std::atomic<Block*> returned{nullptr};
    std::atomic<std::uint32_t> returned_count{0};
    alignas(64) Block* local = nullptr;
    std::uint32_t kept = 0;  // in `local`
  };
  std::array<List, kClasses + 1> lists_;
};

// Pools whose thread has ended, for the next thread.
struct Orphans {
  std::mutex mutex;
  std::vector<ThreadPool*> pools;
};

Orphans& orphans() {
  static Orphans& instance = *new Orphans;
  return instance;
}

constinit thread_local ThreadPool* t_pool = nullptr;
constinit thread_local bool t_thread_ends = false;

// Hands the pool over when the thread ends.
struct Holder {
  Holder() {
    Orphans& all = orphans();
    const std::lock_guard lock(all.mutex);
    if (all.pools.empty()) {
      t_pool = new ThreadPool;
    } else {
      t_pool = all.pools.back();
      all.pools.pop_back();
    }
  }
  ~Holder() {
    t_thread_ends = true;
    Orphans& all = orphans();
    const std::lock_guard lock(all.mutex);
    all.pools.push_back(std::exchange(t_pool, nullptr));
  }
};

ThreadPool* make_pool() {
  if (t_thread_ends) {
    return nullptr;
  }
  thread_local Holder holder;
  return t_pool;
}

}  // namespace

void* MessagePool::allocate(std::size_t bytes) {
  const std::size_t size_class = (bytes + sizeof(Block) + kGranule - 1) / kGranule;
  ThreadPool* pool = nullptr;
  Block* block = nullptr;
  if (!kAddressSanitizer && size_class <= kClasses) {
    pool = t_pool != nullptr ? t_pool : make_pool();
    block = pool != nullptr ? pool->take(size_class) : nullptr;
  }
  if (block == nullptr) {
    block = static_cast<Block*>(std::malloc(size_class * kGranule));
    if (block == nullptr) {
      throw std::bad_alloc();
    }
  }
  block->owner = pool;
  block->size_class = size_class;
  return block + 1;
}

void MessagePool::deallocate(void* memory) noexcept {
  Block* block = static_cast<Block*>(memory) - 1;
  ThreadPool* owner = block->owner;
  if (owner == nullptr) {
    std::free(block);
  } else if (owner == t_pool) {
    owner->put(*block, block->size_class);
  } else {
    owner->put_from_other_thread(*block, block->size_class);
  }
}

}  // namespace tandem::detail
