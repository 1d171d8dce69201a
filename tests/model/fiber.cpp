#include "tests/model/fiber.hpp"

#include "runtime/util/build.hpp"

#ifdef TANDEM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace tandem::model {
namespace {
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
Fiber* g_entering = nullptr;
Fiber* g_leaving = nullptr;
}  // namespace

Fiber::Fiber()
    : stack_(new char[kStackBytes]), stack_begin_(stack_.get()), stack_bytes_(kStackBytes) {}

Fiber::Fiber(int) {}

std::unique_ptr<Fiber> Fiber::of_this_thread() { return std::unique_ptr<Fiber>(new Fiber(0)); }

void Fiber::restart(void (*body)()) {
  body_ = body;
  fake_stack_ = nullptr;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_.get();
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::enter, 0);
}

void Fiber::enter() {
#ifdef TANDEM_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &g_leaving->stack_begin_, &g_leaving->stack_bytes_);
#endif
  g_entering->body_();
}

void Fiber::switch_to(Fiber& other) {
  g_leaving = this;
  g_entering = &other;
#ifdef TANDEM_ASAN
  __sanitizer_start_switch_fiber(&fake_stack_, other.stack_begin_, other.stack_bytes_);
#endif
  swapcontext(&context_, &other.context_);
#ifdef TANDEM_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &g_leaving->stack_begin_, &g_leaving->stack_bytes_);
#endif
}

}  // namespace tandem::model
