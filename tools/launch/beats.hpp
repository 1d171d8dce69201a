// tools/launch/beats.hpp — a thread that tells hosts that their launch still lives.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tools/launch/node_link.hpp"

namespace tandem {

/// Says "alive" to all hosts, even while this process waits for the reader of its output.
class Beats {
 public:
  explicit Beats(std::vector<int> to) : to_(std::move(to)), thread_([this] { run(); }) {}
  ~Beats() {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  Beats(const Beats&) = delete;
  Beats& operator=(const Beats&) = delete;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, beat(), [this] { return ends_; })) {
      for (const int one : to_) {
        (void)!::write(one, "alive\n", 6);  // whole or not at all
      }
    }
  }

  std::vector<int> to_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tandem
