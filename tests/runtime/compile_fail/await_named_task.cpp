// error: no member named 'await_ready'
#include "runtime/actor.hpp"

using namespace tandem;

struct Known {};
struct Unknown {};
struct Question {
  using Reply = int;
};
struct Stranger {
  using Reply = int;
};
struct Owner : Actor<Owner, Known, Question> {
  void handle(Known) {}
  int handle(Question) { return 1; }
};

Task<int> one() { co_return 1; }
Task<> twice() {
  auto task = one();
  (void)co_await task;
}
