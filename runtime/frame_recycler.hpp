// runtime/frame_recycler.hpp — free lists for coroutine frames, by size class, one set per event loop.
//
// A frame is taken from, and given back to, the recycler of the loop that runs on this thread; without one it comes from
// malloc. Every block is a malloc'd block of its class, so it does not matter where it was taken when it is given back.
// In sanitizer builds nothing is reused, and in debug builds a freed frame is overwritten: a dangling use shows at once.
// Thread rule: of the loop's thread.
#pragma once

#include <array>
#include <cstddef>

namespace tandem {

class FrameRecycler {
 public:
  FrameRecycler() noexcept = default;
  ~FrameRecycler();
  FrameRecycler(const FrameRecycler&) = delete;
  FrameRecycler& operator=(const FrameRecycler&) = delete;

  /// The recycler that frames of this thread use from now on (null: malloc); returns the one before.
  static FrameRecycler* install(FrameRecycler* recycler) noexcept;

  /// For the promise types' operator new and delete.
  static void* allocate(std::size_t bytes);
  static void deallocate(void* block, std::size_t bytes) noexcept;

 private:
  static constexpr std::size_t kGranule = 64;
  static constexpr std::size_t kClasses = 64;          // up to 4 KiB; larger frames go to malloc
  static constexpr std::size_t kKeptPerClass = 16384;  // blocks; what is beyond goes back to malloc

  struct Block {
    Block* next;
  };
  struct List {
    Block* head = nullptr;
    std::size_t count = 0;
  };

  std::array<List, kClasses + 1> lists_{};
};

}  // namespace tandem
