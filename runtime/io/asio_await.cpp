#include "runtime/io/asio_await.hpp"

#include "runtime/util/error.hpp"

namespace tandem::detail {
namespace {

// Keeps the thread's cancellation signals for reuse, at most kMost of them; further ones are freed.
class KeptSignals {
 public:
  static constexpr std::size_t kMost = 4096;
  KeptSignals() = default;
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;
  ~KeptSignals() {
    while (first_ != nullptr) {
      delete take();
    }
  }
  CancelSignal::Kept* take() {
    if (first_ == nullptr) {
      return new CancelSignal::Kept;
    }
    --count_;
    return std::exchange(first_, first_->next);
  }
  void give_back(CancelSignal::Kept* kept) noexcept {
    if (count_ == kMost) {
      delete kept;
      return;
    }
    ++count_;
    kept->next = first_;
    first_ = kept;
  }

 private:
  CancelSignal::Kept* first_ = nullptr;
  std::size_t count_ = 0;
};

KeptSignals& kept_signals() {
  thread_local KeptSignals signals;
  return signals;
}

}  // namespace

bool is_aborted(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const asio::system_error& failure) {
    return is_aborted(failure.code());
  } catch (...) {
    return false;
  }
}

std::exception_ptr dropped_handler_error() noexcept {
  return std::make_exception_ptr(
      failure(ExitCode::kFailure, "asio",
              "an operation has gone without a result: what it ran on died first; end the "
              "operation before that"));
}

CancelSignal::CancelSignal() : kept_(kept_signals().take()) {}
CancelSignal::~CancelSignal() {
  // An operation that installs nothing would leave what the last one did, whose socket may be gone.
  kept_->signal.slot().clear();
  kept_signals().give_back(kept_);
}

}  // namespace tandem::detail
