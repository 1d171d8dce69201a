// error: no matching member function for call to 'spawn'
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

void spawn(Scope& scope, int* value) {
  scope.spawn("task", [value]() -> Task<> {
    *value = 1;
    co_return;
  });
}
