// error: call to deleted constructor
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

Task<> one() { co_return; }
void move_task() {
  auto first = one();
  auto second = std::move(first);
}
