// error: coalesce() is used with kWhenFull = WhenFull::kCoalesce only
#include "runtime/actor.hpp"

using namespace tandem;

struct Known {};
struct Owner : Actor<Owner, Known> {
  static bool coalesce(Known&, Known&&) { return true; }
  void handle(Known) {}
};

void make() { Owner owner; }
