// error: the handler returns the Reply
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

struct Wrong : Actor<Wrong, Question> {
  double handle(Question) { return 1; }
};
void start(Scope& scope, Wrong& wrong) { wrong.start(scope); }
