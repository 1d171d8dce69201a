// engine/rendezvous/blocked_signals.hpp — a guard that keeps signals away from the threads that a
// rendezvous makes; the program's own threads handle them.
//
// Thread rule: made and destroyed by one thread. Internal.
#pragma once

#include <csignal>

namespace tandem {

/// While it lives, all signals are blocked for the calling thread. A thread that is started
/// meanwhile inherits the mask and keeps it.
class BlockedSignals {
 public:
  BlockedSignals() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace tandem
