// tests/runtime/embed/report_fixture.hpp — a loop in virtual time, and the lines that the runtime
// reports meanwhile.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/event_loop.hpp"
#include "runtime/report.hpp"

namespace tandem {

inline std::vector<std::string> g_said;  // a hook is a plain function

struct ReportFixture : testing::Test {
  void SetUp() override {
    g_said.clear();
    set_report_hook([](std::string_view line) noexcept { g_said.emplace_back(line); });
  }
  void TearDown() override { set_report_hook(nullptr); }
  ManualClock clock;
  EventLoop loop{{.name = "test", .clock = &clock}};
};

}  // namespace tandem
