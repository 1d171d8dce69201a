// error: the actor lacks a public handle()
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

struct Deaf : Actor<Deaf, Known, Unknown> {
  void handle(Known) {}
};
void start(Scope& scope, Deaf& deaf) { deaf.start(scope); }
