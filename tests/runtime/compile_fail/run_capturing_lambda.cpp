// error: no matching member function for call to 'run'
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

void run(EventLoop& loop, int* value) {
  loop.run([value]() -> Task<> {
    *value = 1;
    co_return;
  });
}
