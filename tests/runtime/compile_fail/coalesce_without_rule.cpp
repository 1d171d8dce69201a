// error: kCoalesce needs `static bool coalesce(M& waiting, M&& newer)` for a message
#include "runtime/actor.hpp"

using namespace tandem;

struct Known {};
struct Owner : Actor<Owner, Known> {
  static constexpr WhenFull kWhenFull = WhenFull::kCoalesce;
  void handle(Known) {}
};

void make() { Owner owner; }
