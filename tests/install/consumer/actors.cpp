// tandem::actors from outside: sums of doubles that do not depend on their order.
#include <cstdio>

#include <tandem/actors/kernels/exact_sum.hpp>

int main() {
  tandem::ExactSum up;
  tandem::ExactSum down;
  for (int i = 1; i <= 1000; ++i) {
    up.add(1.0 / i);
    down.add(1.0 / (1001 - i));
  }
  std::printf("exact sums: %s\n", up.value() == down.value() ? "equal" : "different");
  return up.value() == down.value() ? 0 : 1;
}
