// error: a message moves without throwing
#include <string>

#include "runtime/actor.hpp"

using namespace tandem;

struct Known {
  Known(Known&& other) : text(other.text) {}
  std::string text;
};
struct Owner : Actor<Owner, Known> {
  void handle(Known) {}
};
void send(const Address<Known>& to, Known message) { (void)to.try_send(std::move(message)); }
