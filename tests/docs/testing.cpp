// Snippets of docs/runtime.md: testing with the kit. tools/docs_in_step.py keeps the page equal to
// this.
#include <gtest/gtest.h>
#include <tandem/runtime/actor.hpp>
#include <tandem/runtime/testing/gtest.hpp>

namespace {

using tandem::Task;

// [kit]
struct Reading {
  int value;
};
struct Newest {
  using Reply = int;
};
struct Gauge : tandem::Actor<Gauge, Reading, Newest> {
  void handle(Reading m) { value = m.value; }
  int handle(Newest) { return value; }
  int value = 0;
};

Task<> report(tandem::Address<Reading> gauge) {
  co_await gauge.send(Reading{1});
  co_await gauge.send(Reading{2});
}
Task<int> inspect(tandem::Address<Newest> gauge) { co_return co_await gauge.ask(Newest{}); }

struct GaugeTest : tandem::TestKitFixture {};

TEST_F(GaugeTest, LooksBetweenTwoReadings) {
  auto& gauge = kit.make<Gauge>();
  kit.spawn("sensor", &report, tandem::Address<Reading>(gauge.address()));
  auto seen = kit.start("viewer", &inspect, tandem::Address<Newest>(gauge.address()));

  kit.expect<Reading>().from("sensor").to(gauge).with(
      [](const Reading& m) { return m.value == 1; });
  kit.prepone<Newest>().to(gauge);  // the viewer is quicker than the second reading
  kit.expect<Newest>().from("viewer").to(gauge);
  EXPECT_EQ(seen.get(), 1);
  kit.drop<Reading>().to(gauge);  // and that one is lost
  kit.disallow<Reading>();
}
// [/kit]

}  // namespace
