// tests/models/recorded_operations.hpp — counts LibTorch's operations on this thread while it
// lives, those that other operations call too.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <ATen/record_function.h>

namespace tandem::test {

class RecordedOperations {
 public:
  RecordedOperations() : before_(std::exchange(current(), this)) {
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count_one).scopes({at::RecordScope::FUNCTION}));
  }
  ~RecordedOperations() {
    at::removeCallback(handle_);
    current() = before_;
  }
  RecordedOperations(const RecordedOperations&) = delete;
  RecordedOperations& operator=(const RecordedOperations&) = delete;

  /// [operation, as "aten::mm"] how often it ran.
  [[nodiscard]] const std::map<std::string, int>& counts() const noexcept { return counts_; }
  [[nodiscard]] int matmuls() const {
    int sum = 0;
    for (const char* name : {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm"}) {
      const auto found = counts_.find(name);
      sum += found == counts_.end() ? 0 : found->second;
    }
    return sum;
  }

 private:
  static RecordedOperations*& current() {
    thread_local RecordedOperations* one = nullptr;
    return one;
  }
  static std::unique_ptr<at::ObserverContext> count_one(const at::RecordFunction& function) {
    ++current()->counts_[function.name()];
    return nullptr;
  }

  RecordedOperations* before_;
  at::CallbackHandle handle_{};
  std::map<std::string, int> counts_;
};

}  // namespace tandem::test
