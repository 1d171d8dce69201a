// compiles
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

void send(const Address<Known>& address) { (void)address.try_send(Known()); }
Task<> wait(Owner::AddressType address) {
  co_await address.send(Known());
  (void)co_await address.ask(Question());
}
Address<Known> narrow(const Owner& owner) { return owner.address(); }
void start(Scope& scope, Owner& owner) {
  owner.start(scope);
  scope.spawn("task", [](int) -> Task<> { co_return; }, 1);
}
