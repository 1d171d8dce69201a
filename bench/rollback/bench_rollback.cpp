// bench/rollback/bench_rollback.cpp — taking back an update that was done too early: what is left
// of the state before it, and what that costs.
//
//   bench_rollback [--elements=N] [Google Benchmark's flags]
//
// A unit is updated with gradients that are as usual, 10 to 1e5 times as large, or not finite; then
// the update is undone.
//   apart/    ours: the update wrote other buffers, so undoing is not to use them. cost: of
//   updating apart, and of doing it
//             again with a clip coefficient, each over one step in place. mismatches: elements
//             whose redo differs from an update with that coefficient that was never preceded by
//             another.
//   inverse/  the formula solved for the state before, in place and in fp32, as DeepSpeed's CPU
//   rollback does it:
//             p += lr * m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps), over 1 - lr * wd;  m = (m -
//             (1 - b1) g) / b1; v = (v - (1 - b2) g^2) / b2;  a p that is not finite becomes 0
// Counters, over elements: X_ulp the greatest distance in units in the last place among finite
// pairs, X_exact the share of the same bits, X_lost the share that is not finite any more,
// v_negative the share whose next step is NaN.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include "actors/kernels/simd_target.hpp"
#include "actors/kernels/update/optimizer_step.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "bench/adam/layout_unit.hpp"
#include "bench/program.hpp"

namespace tandem::bench {
namespace {

constexpr double kClipCoefficient = 0.125;

std::size_t g_elements = 4'000'000;

struct Trouble {
  const char* name;
  float factor;    // of all gradients
  float one_in_9;  // what every 9th gradient is instead; 0: as the others
};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Trouble kTroubles[] = {{"x1", 1, 0},       {"x10", 10, 0},      {"x100", 100, 0},
                                 {"x1000", 1e3F, 0}, {"x10000", 1e4F, 0}, {"x100000", 1e5F, 0},
                                 {"inf", 1, kInf},   {"nan", 1, kNan}};

/// Master and moments in fp32.
struct Values {
  std::vector<float> arrays[3];

  explicit Values(const UpdateBuffers& b, std::size_t elements) {
    for (std::vector<float>& array : arrays) {
      array.resize(elements);
    }
    read_master(b, arrays[0].data(), 0, elements);
    read_state(b, 0, arrays[1].data(), 0, elements);
    read_state(b, 1, arrays[2].data(), 0, elements);
  }
};

std::int64_t ordered(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::int64_t magnitude = bits & 0x7fffffffU;
  return bits >> 31 != 0 ? -magnitude : magnitude;
}

void report(benchmark::State& state, const Values& before, const Values& after) {
  constexpr const char* kNames[] = {"p", "m", "v"};
  for (std::size_t a = 0; a < 3; ++a) {
    std::int64_t ulp = 0;
    std::size_t exact = 0;
    std::size_t lost = 0;
    const std::size_t n = before.arrays[a].size();
    for (std::size_t i = 0; i < n; ++i) {
      const float x = before.arrays[a][i];
      const float y = after.arrays[a][i];
      exact += std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) ? 1 : 0;
      if (std::isfinite(y)) {
        ulp = std::max(ulp, std::abs(ordered(x) - ordered(y)));
      } else {
        ++lost;
      }
    }
    const std::string name = kNames[a];
    state.counters[name + "_ulp"] = static_cast<double>(ulp);
    state.counters[name + "_exact"] = static_cast<double>(exact) / static_cast<double>(n);
    state.counters[name + "_lost"] = static_cast<double>(lost) / static_cast<double>(n);
  }
  const auto negative = std::ranges::count_if(after.arrays[2], [](float v) { return v < 0; });
  state.counters["v_negative"] =
      static_cast<double>(negative) / static_cast<double>(after.arrays[2].size());
}

/// As after a thousand steps of usual gradients (the moments of LayoutUnit suit them), then the
/// trouble.
void make_trouble(LayoutUnit& unit, const Trouble& trouble) {
  unit.set_gradients(trouble.factor);
  if (trouble.one_in_9 != 0) {
    for (std::size_t i = 0; i < unit.elements(); i += 9) {
      unit.set_gradient(i, trouble.one_in_9);
    }
  }
}

constexpr std::int64_t kStep = 1000;

template <class Fn>
double seconds(Fn fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
}

void apart(benchmark::State& state, Mix mix, const Trouble& trouble, double decay) {
  LayoutUnit unit(mix, g_elements, decay);
  LayoutUnit never(mix, g_elements, decay);
  LayoutUnit in_place(mix, g_elements, decay);
  make_trouble(unit, trouble);
  make_trouble(never, trouble);
  make_trouble(in_place, {"x1", 1, 0});
  const std::size_t n = unit.elements();
  const Values before(unit.buffers(), n);
  const UpdateStep early = UpdateStep::make(unit.config(), kStep, 1.0);
  const UpdateStep clipped = UpdateStep::make(unit.config(), kStep, kClipCoefficient);
  const UpdateBuffers to = unit.buffers(true);
  apply_update(early, to, 0, n);
  std::vector<double> once, again;
  for (auto _ : state) {
    const double plain = seconds([&] { apply_update(early, in_place.buffers(), 0, n); });
    once.push_back(seconds([&] { apply_update(early, to, 0, n); }) / plain);
    const double redo = seconds([&] { apply_update(clipped, to, 0, n); });
    again.push_back(redo / plain);
    state.SetIterationTime(redo);
  }
  report(state, before, Values(unit.buffers(), n));
  apply_update(clipped, never.buffers(), 0, n);
  const Values redone(to, n);
  const Values direct(never.buffers(), n);
  std::size_t mismatches = 0;
  for (std::size_t a = 0; a < 3; ++a) {
    for (std::size_t i = 0; i < n; ++i) {
      mismatches += std::bit_cast<std::uint32_t>(redone.arrays[a][i]) !=
                            std::bit_cast<std::uint32_t>(direct.arrays[a][i])
                        ? 1
                        : 0;
    }
  }
  state.counters["mismatches"] = static_cast<double>(mismatches);
  state.counters["elements"] = static_cast<double>(3 * n);
  state.counters["cost_apart"] = median(once);
  state.counters["cost_redo"] = median(again);
}

struct Inverse {
  float lr, beta1, beta2, eps, decay, bias1, root_bias2;

  explicit Inverse(const UpdateConfig& c)
      : lr(static_cast<float>(c.lr)),
        beta1(static_cast<float>(c.beta1)),
        beta2(static_cast<float>(c.beta2)),
        eps(static_cast<float>(c.eps)),
        decay(static_cast<float>(c.weight_decay)),
        bias1(static_cast<float>(1 - std::pow(c.beta1, kStep))),
        root_bias2(static_cast<float>(std::sqrt(1 - std::pow(c.beta2, kStep)))) {}

  void undo(float& p, float& m, float& v, float g) const {
    const float denominator = std::sqrt(v) / root_bias2 + eps;
    p = (p + lr / bias1 * (m / denominator)) / (1 - lr * decay);
    p = std::isfinite(p) ? p : 0.0F;
    m = (m - (1 - beta1) * g) / beta1;
    v = (v - (1 - beta2) * g * g) / beta2;
  }
};

void inverse(benchmark::State& state, const Trouble& trouble, double decay) {
  LayoutUnit unit(Mix::kFp32, g_elements, decay);
  make_trouble(unit, trouble);
  const std::size_t n = unit.elements();
  const UpdateBuffers b = unit.buffers();
  const Values before(b, n);
  const Inverse formula(unit.config());
  const UpdateStep early = UpdateStep::make(unit.config(), kStep, 1.0);
  auto* p = static_cast<float*>(b.master);
  auto* m = static_cast<float*>(b.state[0]);
  auto* v = static_cast<float*>(b.state[1]);
  std::vector<double> costs;
  for (auto _ : state) {
    write_master(b, before.arrays[0].data(), 0, n);
    write_state(b, 0, before.arrays[1].data(), 0, n);
    write_state(b, 1, before.arrays[2].data(), 0, n);
    const double step = seconds([&] { apply_update(early, b, 0, n); });
    const double undo = seconds([&] {
      for (std::size_t i = 0; i < n; ++i) {
        formula.undo(p[i], m[i], v[i], unit.gradients_fp32()[i]);
      }
    });
    costs.push_back(undo / step);
    state.SetIterationTime(undo);
  }
  report(state, before, Values(b, n));
  state.counters["cost_rollback"] = median(costs);
}

void register_all() {
  for (const double decay : {0.0, 0.1}) {
    for (const Trouble& trouble : kTroubles) {
      const std::string end = std::string("/") + trouble.name + "/wd:" + (decay == 0 ? "0" : "0.1");
      const auto options = [](auto* b) {
        b->UseManualTime()->Iterations(9)->Unit(benchmark::kMillisecond);
      };
      options(benchmark::RegisterBenchmark(
          ("inverse/fp32" + end).c_str(),
          [=](benchmark::State& state) { inverse(state, trouble, decay); }));
      for (const Mix mix : kMixes) {
        options(benchmark::RegisterBenchmark(
            ("apart/" + std::string(name_of(mix)) + end).c_str(),
            [=](benchmark::State& state) { apart(state, mix, trouble, decay); }));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem::bench;
  Suite suite(argc, argv, "taking back an update that was done too early");
  g_elements = static_cast<std::size_t>(suite.number(
      "--elements", static_cast<std::int64_t>(g_elements), {.least = 10'000}, "of a unit"));
  suite.begin();
  Suite::add_context("simd", tandem::simd_target());
  register_all();
  return suite.run();
}
