// error: no matching member function for call to 'ask'
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

Task<> wait(Owner::AddressType address) { co_await address.ask(Known()); }
