#include "runtime/detail/mailbox/message_pool.hpp"

#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace tandem::detail {

TANDEM_NEAR_THREAD_LOCAL MessagePool* t_message_pool = nullptr;

namespace {

// Pools whose thread has ended, for the next thread.
struct Orphans {
  std::mutex mutex;
  std::vector<MessagePool*> pools;
};

Orphans& orphans() {
  static Orphans& instance = *new Orphans;
  return instance;
}

constinit thread_local bool t_thread_ends = false;

// Hands the pool over when the thread ends.
struct Holder {
  Holder() {
    Orphans& all = orphans();
    const std::lock_guard lock(all.mutex);
    if (all.pools.empty()) {
      t_message_pool = new MessagePool;
    } else {
      t_message_pool = all.pools.back();
      all.pools.pop_back();
    }
  }
  ~Holder() {
    t_thread_ends = true;
    Orphans& all = orphans();
    const std::lock_guard lock(all.mutex);
    all.pools.push_back(std::exchange(t_message_pool, nullptr));
  }
};

MessagePool* make_pool() {
  if (t_thread_ends) {
    return nullptr;
  }
  thread_local Holder holder;
  return t_message_pool;
}

}  // namespace

// The thread's own list of that size is empty, or it has no pool.
void* MessagePool::allocate_new(std::size_t size_class) {
  MessagePool* pool = nullptr;
  Block* block = nullptr;
  if (!kAddressSanitizer && size_class <= kClasses) {
    pool = t_message_pool != nullptr ? t_message_pool : make_pool();
    block = pool != nullptr ? pool->take_returned(size_class) : nullptr;
  }
  if (block == nullptr) {
    block = static_cast<Block*>(std::malloc(size_class * kGranule));
    if (block == nullptr) {
      throw std::bad_alloc();
    }
    block->owner = pool;
  }
  return block + 1;
}

// Takes over what other threads have given back; or, from a pool that was another thread's, what
// that has left.
MessagePool::Block* MessagePool::take_returned(std::size_t size_class) noexcept {
  List& list = lists_[size_class];
  // acquire: what the returning thread did with the block is done.
  if (list.local == nullptr && list.returned.load(std::memory_order_relaxed) != nullptr) {
    list.local = list.returned.exchange(nullptr, std::memory_order_acquire);
    list.kept = list.returned_count.exchange(0, std::memory_order_relaxed);
  }
  if (list.local == nullptr) {
    return nullptr;
  }
  --list.kept;
  return std::exchange(list.local, list.local->next);
}

// The block is no thread's, another's, or one too many.
void MessagePool::deallocate_elsewhere(Block& block, std::size_t size_class) noexcept {
  if (block.owner == nullptr || block.owner == t_message_pool) {
    std::free(&block);
  } else {
    block.owner->put_from_other_thread(block, size_class);
  }
}

void MessagePool::put_from_other_thread(Block& block, std::size_t size_class) noexcept {
  List& list = lists_[size_class];
  const std::int32_t count = list.returned_count.load(std::memory_order_relaxed);
  if (count >= kKeptPerClass) [[unlikely]] {
    std::free(&block);
    return;
  }
  // About: a bound needs no more.
  list.returned_count.store(count + 1, std::memory_order_relaxed);
  std::atomic<Block*>& head = list.returned;
  Block* first = head.load(std::memory_order_relaxed);
  do {
    block.next = first;
  } while (!head.compare_exchange_weak(first, &block, std::memory_order_release,
                                       std::memory_order_relaxed));
}

}  // namespace tandem::detail
