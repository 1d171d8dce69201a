// error: on_start() returns void
#include "runtime/actor.hpp"

using namespace tandem;

struct Known {};
struct Patient : Actor<Patient, Known> {
  Task<> on_start() { co_await yield(); }
  void handle(Known) {}
};
void start(Scope& scope, Patient& patient) { patient.start(scope); }
