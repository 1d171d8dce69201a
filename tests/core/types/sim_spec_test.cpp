// --sim_spec: units, defaults, and one clear line for what is wrong.
#include "engine/types/sim_spec.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

TEST(SimSpec, TakesUnits) {
  const SimSpec spec = parse_sim_spec("compute=2T,h2d=50GB,d2h=40GB/s,memory=16GiB,latency=10us");
  EXPECT_DOUBLE_EQ(spec.compute_flops_per_s, 2e12);
  EXPECT_DOUBLE_EQ(spec.to_device_bytes_per_s, 50e9);
  EXPECT_DOUBLE_EQ(spec.to_host_bytes_per_s, 40e9);
  EXPECT_DOUBLE_EQ(spec.memory_bytes, 17179869184.0);
  EXPECT_DOUBLE_EQ(spec.latency_s, 10e-6);
  EXPECT_DOUBLE_EQ(parse_sim_spec("compute=1.5TFLOP/s").compute_flops_per_s, 1.5e12);
  EXPECT_DOUBLE_EQ(parse_sim_spec("compute=900e12FLOPS").compute_flops_per_s, 9e14);
  EXPECT_DOUBLE_EQ(parse_sim_spec("h2d=25000000000").to_device_bytes_per_s, 25e9);
  EXPECT_DOUBLE_EQ(parse_sim_spec("hbm=3TB/s").memory_bytes_per_s, 3e12);
  EXPECT_DOUBLE_EQ(parse_sim_spec("memory=512M").memory_bytes, 512e6);
  EXPECT_DOUBLE_EQ(parse_sim_spec("latency=0").latency_s, 0);
  EXPECT_DOUBLE_EQ(parse_sim_spec("latency=2ms").latency_s, 2e-3);
  EXPECT_DOUBLE_EQ(parse_sim_spec("latency=0.25s").latency_s, 0.25);
}

TEST(SimSpec, KeepsDefaultsAndReadsWhatItWrites) {
  const SimSpec defaults = parse_sim_spec("");
  EXPECT_DOUBLE_EQ(defaults.compute_flops_per_s, SimSpec().compute_flops_per_s);
  const SimSpec changed = parse_sim_spec("d2h=3GB,latency=7ns");
  EXPECT_DOUBLE_EQ(changed.to_device_bytes_per_s, SimSpec().to_device_bytes_per_s);
  const SimSpec again = parse_sim_spec(to_string(changed));
  EXPECT_EQ(again.to_host_bytes_per_s, 3e9);
  EXPECT_EQ(again.latency_s, changed.latency_s);
  EXPECT_EQ(again.memory_bytes, changed.memory_bytes);
}

TEST(SimSpec, SaysWhatIsWrongInOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"compute", "\"compute\" is not a value"},
      {"compute=", "\"compute=\" is not a value"},
      {"compute=0", "\"compute=0\" is not a value"},
      {"compute=-2T", "compute=2T"},
      {"compute=nan", "\"compute=nan\""},
      {"compute=inf", "\"compute=inf\""},
      {"compute=2GB", "\"compute=2GB\""},
      {"h2d=fast", "h2d=50GB"},
      {"h2d=5GBps", "\"h2d=5GBps\""},
      {"memory=16GB/s", "memory=50GB"},
      {"latency=3h", "latency=10us"},
      {"latency=-1us", "latency=10us"},
      {"speed=3", "\"speed=3\" names nothing"},
      {"compute=2T,,h2d=1GB", "\"\" names nothing"},
      {"compute=2T h2d=1GB", "compute=2T h2d=1GB"},
      {"COMPUTE=2T", "names nothing"},
      {"compute=1e-300", "from 1e+06 to 1e+21"},
      {"compute=1e15P", "\"compute=1e15P\" is 1e+30"},
      {"h2d=10", "from 1000 to 1e+18"},
      {"memory=1e30", "from 1 to 1e+18"},
      {"latency=1e9s", "\"latency=1e9s\" is 1e+09; it must be from 0 to 60"},
  };
  for (const auto& [text, part] : cases) {
    EXPECT_THAT([&] { (void)parse_sim_spec(text); },
                ThrowsError(ExitCode::kUserInput, ::testing::HasSubstr(part)))
        << text;
  }
}

}  // namespace
}  // namespace tandem
