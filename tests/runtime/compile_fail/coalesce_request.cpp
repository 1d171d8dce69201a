// error: a request has its own answer: it can't be coalesced
#include "runtime/actor.hpp"

using namespace tandem;

struct Question {
  using Reply = int;
};
struct Owner : Actor<Owner, Question> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  static bool coalesce(Question&, Question&&) { return true; }
  int handle(Question) { return 1; }
};

void make() { Owner owner; }
