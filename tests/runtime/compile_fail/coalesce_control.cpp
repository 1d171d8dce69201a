// error: a control message needs no credit: it is never coalesced
#include "runtime/actor.hpp"

using namespace tandem;

struct Urgent {
  static constexpr bool kControl = true;
};
struct Owner : Actor<Owner, Urgent> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  static bool coalesce(Urgent&, Urgent&&) { return true; }
  void handle(Urgent) {}
};

void make() { Owner owner; }
