#include <iostream>
#include <memory>

#include <gtest/gtest.h>

#include "runtime/util/credit_counter.hpp"
#include "tests/model/inbox_program.hpp"

namespace tandem::model {
namespace {

// Two senders with one credit between them: who gets it writes the one slot and pushes; the
// consumer reads the slot and gives the credit back. It closes at some time, and knows then how
// many messages are still to come.
template <template <class> class Credits, class Atomics, int kTakes, int kTries>
struct CreditProgram {
  static void build(Execution& run) {
    auto state = std::make_shared<CreditProgram>();
    for (int sender = 0; sender < 2; ++sender) {
      run.thread([state, sender] {
        for (int i = 0; i < kTries; ++i) {
          state->send(state->nodes[sender][i]);
        }
      });
    }
    run.thread([state] { state->consume(); });
    run.at_end([state] {
      check(state->accepted == state->taken, "what was accepted is taken, each once");
      check(state->credits.out() == 0, "every credit came back");
    });
  }

  void send(Node& node) {
    if (credits.reserve() != Reserved::kYes) {
      return;
    }
    ++accepted;
    check(accepted - given <= 1, "no more are out than there are credits");
    check(!counted, "the number of those accepted is final once it was counted");
    slot = slot + 1;
    if (inbox.push(node)) {
      wakes.wake();
    }
  }

  void consume() {
    OpQueue<Node> queue;
    if constexpr (kTakes > 0) {
      take(queue);  // whatever is there already
    }
    credits.close();
    // The number of those accepted is final now, and it is that of the messages still to come.
    std::uint64_t left = credits.out();
    counted = true;
    while (left > 0) {
      if (!inbox.take_all(queue) && inbox.try_sleep()) {
        wakes.wait();
        (void)inbox.wake_up(queue);
      }
      left -= take(queue);
    }
  }
  std::uint64_t take(OpQueue<Node>& queue) {
    std::uint64_t count = 0;
    (void)inbox.take_all(queue);
    while (queue.pop() != nullptr) {
      slot = slot - 1;
      ++taken;
      ++given;
      ++count;
      credits.give_back();
    }
    return count;
  }

  Credits<Atomics> credits{1};
  BasicMpscInbox<ModelAtomics, Node> inbox;
  BasicWakeCounter<ModelAtomics> wakes;
  Node nodes[2][kTries];
  Plain<int> slot;
  // Looked at by all threads, within the step that they follow: not part of the program.
  int accepted = 0;
  int taken = 0;
  int given = 0;
  bool counted = false;
};

template <class A>
using Credits = BasicCreditCounter<A>;

TEST(CreditModel, NeverTooManyAndNoneAfterTheClose) {
  const Result closes_at_once = explore(&CreditProgram<Credits, ModelAtomics, 0, 2>::build);
  EXPECT_FALSE(closes_at_once.failed) << closes_at_once.failure;
  const Result result = explore(&CreditProgram<Credits, ModelAtomics, 1, 2>::build);
  EXPECT_FALSE(result.failed) << result.failure;
  EXPECT_TRUE(result.complete && closes_at_once.complete);
  EXPECT_GE(result.executions, 100U);
  std::cout << closes_at_once.executions << " + " << result.executions << " executions\n";
}

enum class Flaw { kNoCompare, kSeparateClosedFlag, kCountsFirst };

template <class Atomics, Flaw kFlaw>
class FlawedCredits {
 public:
  explicit FlawedCredits(std::uint64_t credits) : credits_(credits) {}
  Reserved reserve() {
    if (closed_.load(std::memory_order_acquire) != 0) {
      return Reserved::kClosed;
    }
    if constexpr (kFlaw == Flaw::kCountsFirst) {
      const std::uint64_t before = taken_.fetch_add(1, std::memory_order_relaxed);
      return before - given_.load(std::memory_order_acquire) >= credits_ ? Reserved::kFull
                                                                         : Reserved::kYes;
    }
    std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    if (taken - given_.load(std::memory_order_acquire) >= credits_) {
      return Reserved::kFull;
    }
    if constexpr (kFlaw == Flaw::kNoCompare) {
      taken_.store(taken + 1, std::memory_order_relaxed);
      return Reserved::kYes;
    }
    return taken_.compare_exchange_strong(taken, taken + 1, std::memory_order_relaxed)
               ? Reserved::kYes
               : Reserved::kFull;
  }
  void give_back() { given_.fetch_add(1, std::memory_order_release); }
  void close() { closed_.store(1, std::memory_order_release); }
  std::uint64_t out() const {
    const std::uint64_t given = given_.load(std::memory_order_acquire);
    return taken_.load(std::memory_order_relaxed) - given;
  }

 private:
  using Word = typename Atomics::template Atomic<std::uint64_t>;
  std::uint64_t credits_;
  Word closed_{0};
  Word taken_{0};
  Word given_{0};
};
template <Flaw kFlaw>
struct With {
  template <class A>
  using Credits = FlawedCredits<A, kFlaw>;
};

template <template <class> class C, class Atomics = ModelAtomics, int kTries = 1>
bool found() {
  const Result after_some = explore(&CreditProgram<C, Atomics, 1, kTries>::build);
  const Result at_once = explore(&CreditProgram<C, Atomics, 0, kTries>::build);
  return after_some.failed || at_once.failed;
}

TEST(CreditModel, FindsEachFlaw) {
  EXPECT_TRUE(found<With<Flaw::kNoCompare>::template Credits>());
  EXPECT_TRUE(found<With<Flaw::kSeparateClosedFlag>::template Credits>());
  EXPECT_TRUE(found<With<Flaw::kCountsFirst>::template Credits>());
}
TEST(CreditModel, FindsEachOrderThatIsNeeded) {
  EXPECT_TRUE((found<Credits, WeakenedAtomics<Weaken::kAcquire>>()));
  EXPECT_TRUE((found<Credits, WeakenedAtomics<Weaken::kRelease>>()));
}

}  // namespace
}  // namespace tandem::model
