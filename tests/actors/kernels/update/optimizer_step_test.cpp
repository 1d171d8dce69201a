#include "actors/kernels/update/optimizer_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/actors/kernels/float16_reference.hpp"
#include "tests/actors/kernels/simd_targets.hpp"
#include "tests/support/process/paths.hpp"
#include "tests/support/python.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

/// One element as optimizer_step.hpp writes it down: in fp32, or in double for what fp32 should
/// come near to.
template <class Real>
struct Element {
  Real p, s0, s1;

  template <class Rule>
  void update(const Rule& rule, Real gradient, bool first) {
    step(rule, gradient * static_cast<Real>(rule.gradient_scale), first);
  }
  void update(const AlongStep& s, Real direction, bool) {
    p = p - (direction * Real(s.rate) + Real(s.decay) * p);
  }

 private:
  void step(const AdamStep& s, Real g, bool) {
    const auto decay = static_cast<Real>(s.decay);
    g = s.adamw ? g : g + decay * p;
    s0 = Real(s.beta1) * s0 + Real(s.one_minus_beta1) * g;
    s1 = Real(s.beta2) * s1 + (Real(s.one_minus_beta2) * g) * g;
    Real update =
        Real(s.step_size) * (s0 / (std::sqrt(s1) * Real(s.inverse_root_bias) + Real(s.eps)));
    p = p - (s.adamw ? update + decay * p : update);
  }
  void step(const SgdStep& s, Real g, bool first) {
    const auto momentum = static_cast<Real>(s.momentum);
    g = g + Real(s.decay) * p;
    if (s.momentum != 0) {
      s0 = first ? g : momentum * s0 + Real(s.one_minus_dampening) * g;
      g = s.nesterov ? g + momentum * s0 : s0;
    }
    p = p - Real(s.lr) * g;
  }
  void step(const LionStep& s, Real g, bool) {
    const Real c = Real(s.beta1) * s0 + Real(s.one_minus_beta1) * g;
    s0 = Real(s.beta2) * s0 + Real(s.one_minus_beta2) * g;
    const Real direction = c > 0 ? Real(s.lr) : c < 0 ? -Real(s.lr) : c;
    p = p - (direction + Real(s.decay) * p);
  }
  void step(const AdagradStep& s, Real g, bool) {
    g = g + Real(s.decay) * p;
    s0 = s0 + g * g;
    p = p - Real(s.lr) * (g / (std::sqrt(s0) + Real(s.eps)));
  }
};

struct State {
  std::vector<float> p, s0, s1, g;
  std::vector<std::uint16_t> g_bf16, g_f16, w16;
  std::vector<float> w32;

  explicit State(std::size_t n)
      : p(n), s0(n), s1(n), g(n), g_bf16(n), g_f16(n), w16(n, 0xabcd), w32(n, -7.0F) {
    std::mt19937 random(23);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-42, 10);
    for (std::size_t i = 0; i < n; ++i) {
      p[i] = normal(random);
      s0[i] = std::abs(normal(random)) * 1e-3F;
      s1[i] = std::abs(normal(random)) * 1e-6F;
      const float wide = std::pow(10.0F, static_cast<float>(exponent(random)));
      g[i] = i % 7 == 0 ? 0.0F : normal(random) * (i % 3 == 0 ? wide : 1e-3F);
      g_bf16[i] = test::bf16_of(g[i]);
      g_f16[i] = test::f16_of(g[i]);
    }
  }

  const void* gradients(DType type) const {
    return type == DType::kF32    ? static_cast<const void*>(g.data())
           : type == DType::kBF16 ? g_bf16.data()
                                  : g_f16.data();
  }
  float gradient(DType type, std::size_t i) const {
    return type == DType::kF32    ? g[i]
           : type == DType::kBF16 ? test::f32_of_bf16(g_bf16[i])
                                  : test::f32_of_f16(g_f16[i]);
  }

  /// `weight`: the model weight's bytes per element; 0: none.
  UpdateBuffers buffers(DType gradient, std::size_t weight, DType half, std::size_t shift = 0) {
    UpdateBuffers b{
        .master = p.data() + shift,
        .state = {s0.data() + shift, s1.data() + shift},
        .gradient = static_cast<const std::byte*>(gradients(gradient)) + shift * bytes_of(gradient),
        .gradient_type = gradient};
    if (weight == 4) {
      b.weight = w32.data() + shift;
    } else if (weight == 2) {
      b.weight = w16.data() + shift;
      b.weight_type = half;
    }
    return b;
  }

  void run_reference(const UpdateStep& step, DType type, std::size_t weight, DType half,
                     std::size_t begin, std::size_t end) {
    const auto* sgd = std::get_if<SgdStep>(&step.rule);
    const bool first = sgd != nullptr && sgd->first;
    for (std::size_t i = begin; i < end; ++i) {
      Element<float> element{p[i], s0[i], s1[i]};
      std::visit([&](const auto& rule) { element.update(rule, gradient(type, i), first); },
                 step.rule);
      p[i] = element.p;
      s0[i] = element.s0;
      s1[i] = element.s1;
      if (weight == 4) {
        w32[i] = p[i];
      } else if (weight == 2) {
        w16[i] = half == DType::kBF16 ? test::bf16_of(p[i]) : test::f16_of(p[i]);
      }
    }
  }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
bool same_bits(const State& a, const State& b) {
  return same_bits(a.p, b.p) && same_bits(a.s0, b.s0) && same_bits(a.s1, b.s1) &&
         same_bits(a.w16, b.w16) && same_bits(a.w32, b.w32);
}

struct Case {
  const char* name;
  UpdateConfig config;
  const char* torch = "";            // the class of torch.optim that does the same
  const char* torch_arguments = "";  // JSON
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const Case kCases[] = {
    {"adamw", {.lr = 3e-4, .weight_decay = 0.1}},
    {"adam_l2", {.lr = 3e-4, .weight_decay = 0.1, .adamw = false}},
    {"sgd", {.kind = OptimizerKind::kSgd, .lr = 0.05}, "SGD", R"({"lr": 0.05})"},
    {"sgd_decay",
     {.kind = OptimizerKind::kSgd, .lr = 0.05, .weight_decay = 0.1},
     "SGD",
     R"({"lr": 0.05, "weight_decay": 0.1})"},
    {"sgd_momentum",
     {.kind = OptimizerKind::kSgd, .lr = 0.05, .weight_decay = 0.01, .momentum = 0.9},
     "SGD",
     R"({"lr": 0.05, "weight_decay": 0.01, "momentum": 0.9})"},
    {"sgd_dampening",
     {.kind = OptimizerKind::kSgd, .lr = 0.05, .momentum = 0.8, .dampening = 0.3},
     "SGD",
     R"({"lr": 0.05, "momentum": 0.8, "dampening": 0.3})"},
    {"sgd_nesterov",
     {.kind = OptimizerKind::kSgd,
      .lr = 0.05,
      .weight_decay = 0.01,
      .momentum = 0.9,
      .nesterov = true},
     "SGD",
     R"({"lr": 0.05, "weight_decay": 0.01, "momentum": 0.9, "nesterov": true})"},
    {"lion", {.kind = OptimizerKind::kLion, .lr = 1e-3, .beta2 = 0.99, .weight_decay = 0.1}},
    {"adagrad",
     {.kind = OptimizerKind::kAdagrad, .lr = 1e-2, .eps = 1e-10},
     "Adagrad",
     R"({"lr": 0.01, "eps": 1e-10})"},
    {"adagrad_decay",
     {.kind = OptimizerKind::kAdagrad, .lr = 1e-2, .eps = 1e-6, .weight_decay = 0.1},
     "Adagrad",
     R"({"lr": 0.01, "eps": 1e-6, "weight_decay": 0.1})"},
};

class OptimizerStep : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerStep, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(OptimizerStep, EveryTargetTypeLengthAndBeginGivesTheScalarBits) {
  const State start(300);
  for (const DType gradient : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const std::size_t weight : {0UL, 4UL, 2UL}) {
      if (gradient != DType::kF32 && weight != 2) {
        continue;  // gradients of 16 bits come with weights of their type
      }
      for (std::size_t length = 0; length <= 140; ++length) {
        const std::size_t begin = length % 29;
        const DType half = gradient == DType::kBF16 || (gradient == DType::kF32 && length % 2 == 0)
                               ? DType::kBF16
                               : DType::kF16;
        const UpdateStep step = UpdateStep::make(GetParam().config, 1 + length % 3, 0.37);
        State expected = start;
        expected.run_reference(step, gradient, weight, half, begin, begin + length);
        test::for_each_simd_target([&] {
          State got = start;
          apply_update(step, got.buffers(gradient, weight, half), begin, begin + length);
          ASSERT_TRUE(same_bits(expected, got))
              << "length " << length << " weight " << weight << " gradient " << name_of(gradient);
        });
      }
    }
  }
}

TEST_P(OptimizerStep, MisalignedArraysGiveTheSameBits) {
  const State start(600);
  const UpdateStep step = UpdateStep::make(GetParam().config, 2, 0.5);
  for (std::size_t shift = 0; shift < 33; ++shift) {
    State expected = start;
    expected.run_reference(step, DType::kF16, 2, DType::kF16, shift, shift + 512);
    test::for_each_simd_target([&] {
      State got = start;
      apply_update(step, got.buffers(DType::kF16, 2, DType::kF16, shift), 0, 512);
      ASSERT_TRUE(same_bits(expected, got)) << "shift " << shift;
    });
  }
}

TEST_P(OptimizerStep, ChunksAndThreadsGiveTheSameBits) {
  const std::size_t kElements = 5003;
  const State start(kElements);
  const UpdateStep step = UpdateStep::make(GetParam().config, 2, 0.5);
  State expected = start;
  expected.run_reference(step, DType::kF16, 2, DType::kF16, 0, kElements);
  for (const std::size_t chunk : {1UL, 13UL, 512UL, 20000UL}) {
    for (const std::size_t threads : {1UL, 2UL, 5UL}) {
      State got = start;
      const UpdateBuffers buffers = got.buffers(DType::kF16, 2, DType::kF16);
      std::vector<std::thread> pool;
      for (std::size_t t = 0; t < threads; ++t) {
        pool.emplace_back([=] {
          for (std::size_t at = t * chunk; at < kElements; at += threads * chunk) {
            apply_update(step, buffers, at, std::min(kElements, at + chunk));
          }
        });
      }
      for (auto& thread : pool) {
        thread.join();
      }
      EXPECT_TRUE(same_bits(expected, got)) << "chunk " << chunk << " threads " << threads;
    }
  }
}

TEST_P(OptimizerStep, NotFiniteGradientsStayVisible) {
  State state(64);
  state.g[3] = std::numeric_limits<float>::quiet_NaN();
  apply_update(UpdateStep::make(GetParam().config, 2, 1.0),
               state.buffers(DType::kF32, 2, DType::kF16), 0, 64);
  EXPECT_TRUE(std::isnan(state.p[3]) && std::isnan(test::f32_of_f16(state.w16[3])));
  EXPECT_TRUE(std::isfinite(state.p[2]) && std::isfinite(state.p[4]));
}

constexpr std::size_t kParameters = 4099;
constexpr int kSteps = 5;

/// Parameters and gradients as training sees them; every 11th parameter never has a gradient.
struct Trace {
  std::vector<float> start, gradients;
  Trace() : start(kParameters), gradients(kParameters * kSteps) {
    std::mt19937 random(29);
    std::normal_distribution<float> normal;
    for (float& p : start) {
      p = normal(random);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = i % kParameters % 11 == 0 ? 0.0F : normal(random);
    }
  }
};

/// Runs the kernel over the trace; calls `check(step, p, s0, s1)` after each step, steps from 0.
template <class Check>
void run_trace(const UpdateConfig& config, Check check) {
  const Trace trace;
  std::vector<float> p = trace.start;
  std::vector<float> s0(kParameters);
  std::vector<float> s1(kParameters);
  for (int t = 0; t < kSteps; ++t) {
    apply_update(UpdateStep::make(config, t + 1, 1.0),
                 {.master = p.data(),
                  .state = {s0.data(), s1.data()},
                  .gradient = trace.gradients.data() + t * kParameters},
                 0, kParameters);
    check(t, p, s0, s1);
  }
}

TEST_P(OptimizerStep, FollowsTheFormulaInDouble) {
  const Trace trace;
  std::vector<Element<double>> elements(kParameters);
  for (std::size_t i = 0; i < kParameters; ++i) {
    elements[i] = {trace.start[i], 0, 0};
  }
  run_trace(GetParam().config, [&](int t, const auto& p, const auto& s0, const auto& s1) {
    const UpdateStep step = UpdateStep::make(GetParam().config, t + 1, 1.0);
    for (std::size_t i = 0; i < kParameters; ++i) {
      const double gradient = trace.gradients[t * kParameters + i];
      std::visit([&](const auto& rule) { elements[i].update(rule, gradient, t == 0); }, step.rule);
      const Element<double>& e = elements[i];
      ASSERT_NEAR(p[i], e.p, 1e-6 * std::max(1.0, std::abs(e.p))) << "step " << t << " at " << i;
      ASSERT_NEAR(s0[i], e.s0, 1e-6 * std::max(1.0, std::abs(e.s0))) << "step " << t << " at " << i;
      ASSERT_NEAR(s1[i], e.s1, 1e-6 * std::max(1.0, std::abs(e.s1))) << "step " << t << " at " << i;
      // In the next step both start from the same fp32 state; a sign that differs would stay
      // different.
      elements[i] = {p[i], s0[i], s1[i]};
    }
  });
}

TEST(OptimizerStepConstants, FollowTheConfig) {
  const UpdateConfig config{.lr = 0.1,
                            .beta1 = 0.9,
                            .beta2 = 0.5,
                            .eps = 1e-3,
                            .weight_decay = 0.25,
                            .momentum = 0.75,
                            .dampening = 0.125,
                            .nesterov = true};
  const auto with = [&config](OptimizerKind kind) {
    UpdateConfig c = config;
    c.kind = kind;
    return c;
  };
  const auto sgd = std::get<SgdStep>(UpdateStep::make(with(OptimizerKind::kSgd), 1, 0.5).rule);
  EXPECT_EQ(sgd.gradient_scale, 0.5F);
  EXPECT_EQ(sgd.lr, 0.1F);
  EXPECT_EQ(sgd.momentum, 0.75F);
  EXPECT_EQ(sgd.one_minus_dampening, 0.875F);
  EXPECT_EQ(sgd.decay, 0.25F);
  EXPECT_TRUE(sgd.first && sgd.nesterov);
  EXPECT_FALSE(std::get<SgdStep>(UpdateStep::make(with(OptimizerKind::kSgd), 2, 0.5).rule).first);
  const auto lion = std::get<LionStep>(UpdateStep::make(with(OptimizerKind::kLion), 3, 1).rule);
  EXPECT_EQ(lion.beta1, 0.9F);
  EXPECT_EQ(lion.one_minus_beta2, 0.5F);
  EXPECT_EQ(lion.decay, static_cast<float>(0.1 * 0.25));
  const auto adagrad =
      std::get<AdagradStep>(UpdateStep::make(with(OptimizerKind::kAdagrad), 3, 1).rule);
  EXPECT_EQ(adagrad.eps, 1e-3F);
  EXPECT_EQ(adagrad.decay, 0.25F);
  for (const OptimizerKind kind :
       {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLion, OptimizerKind::kAdagrad}) {
    EXPECT_EQ(UpdateStep::make(with(kind), 1, 1).kind(), kind);
    EXPECT_EQ(state_arrays(with(kind)), kind == OptimizerKind::kAdam ? 2U : 1U);
  }
  EXPECT_EQ(state_arrays({.kind = OptimizerKind::kSgd}), 0U);
}

TEST(OptimizerStepConstants, SgdWithoutMomentumNeedsNoState) {
  std::vector<float> p = {1, 2, 3};
  const std::vector<float> g = {1, 1, -1};
  apply_update(UpdateStep::make({.kind = OptimizerKind::kSgd, .lr = 0.5}, 1, 1.0),
               {.master = p.data(), .gradient = g.data()}, 0, 3);
  EXPECT_EQ(p, (std::vector<float>{0.5F, 1.5F, 3.5F}));
}

TEST(OptimizerStepConstants, LionLeavesAloneWhatHasNoGradient) {
  std::vector<float> p = {1, 2, 3};
  std::vector<float> m = {0, 0, 0};
  const std::vector<float> g = {0, -0.0F, 1};
  apply_update(UpdateStep::make({.kind = OptimizerKind::kLion, .lr = 0.5}, 1, 1.0),
               {.master = p.data(), .state = {m.data()}, .gradient = g.data()}, 0, 3);
  EXPECT_EQ(p, (std::vector<float>{1, 2, 2.5F}));
}

template <class T>
void write_file(const fs::path& path, const std::vector<T>& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
}

std::vector<float> read_file(const fs::path& path) {
  std::vector<float> values(fs::file_size(path) / sizeof(float));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

TEST(OptimizerStepOracle, AgreesWithTorchOptim) {
  if (!test::python_has("torch")) {
    GTEST_SKIP() << "no torch in the project's .venv (./tandem setup installs it)";
  }
  std::string pattern = (fs::temp_directory_path() / "tandem-optim-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  const fs::path folder = pattern;
  const Trace trace;
  write_file(folder / "start.bin", trace.start);
  write_file(folder / "gradients.bin", trace.gradients);
  std::string cases;
  for (const Case& c : kCases) {
    if (*c.torch != '\0') {
      cases += std::string(cases.empty() ? "[" : ", ") + R"({"name": ")" + c.name +
               R"(", "optimizer": ")" + c.torch + R"(", "arguments": )" + c.torch_arguments + "}";
    }
  }
  std::ofstream(folder / "cases.json") << cases << "]";
  const std::string script = test::source_path("tests/actors/torch_optim.py");
  ASSERT_EQ(std::system((test::kPython + " '" + script + "' '" + folder.string() + "'").c_str()),
            0);
  for (const Case& c : kCases) {
    if (*c.torch == '\0') {
      continue;
    }
    const std::vector<float> want = read_file(folder / (std::string(c.name) + ".bin"));
    ASSERT_EQ(want.size(), kParameters * 2 * kSteps);
    run_trace(c.config, [&](int t, const auto& p, const auto& s0, const auto&) {
      const float* want_p = want.data() + t * 2 * kParameters;
      const float* want_s = want_p + kParameters;
      for (std::size_t i = 0; i < kParameters; ++i) {
        const auto near = [](double a, double b) {
          return std::abs(a - b) <= 2e-6 * std::max(1.0, std::abs(b));
        };
        ASSERT_TRUE(near(p[i], want_p[i]))
            << c.name << " step " << t << " p " << p[i] << " " << want_p[i];
        ASSERT_TRUE(near(s0[i], want_s[i]))
            << c.name << " step " << t << " state " << s0[i] << " " << want_s[i];
      }
    });
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace tandem
