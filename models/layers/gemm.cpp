#include "models/layers/gemm.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include "models/kernels/gemm.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// The operand that lies transposed in memory: x w^T, dy w, dy^T x.
enum class Kind : std::uint8_t { kNT, kNN, kTN };
constexpr std::array kKinds = {Kind::kNT, Kind::kNN, Kind::kTN};
constexpr std::array<std::string_view, 3> kKindNames = {"nt", "nn", "tn"};
constexpr std::array<std::string_view, 3> kProviderNames = {"own", "aten", "onednn"};

struct Choice {
  std::array<std::array<GemmProvider, 3>, 2> provider;  // [bf16][kind]
};
std::optional<Choice> chosen;

GemmOperand operand(const at::Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1), dtype_of(t)};
}

GemmProblem problem_of(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                       MatmulStart start, const at::Tensor& from) {
  GemmTarget target{c.data_ptr(), c.stride(0), dtype_of(c)};
  if (start == MatmulStart::kAccumulate) {
    target.start = GemmStart::kResidual;
    target.initial = target.data;
    target.initial_ld = target.ld;
  } else if (start == MatmulStart::kFrom) {
    target.start = from.dim() == 1 ? GemmStart::kBias : GemmStart::kResidual;
    target.initial = from.const_data_ptr();
    target.initial_ld = from.stride(0);
  }
  return {a.size(0), b.size(1), a.size(1), operand(a), operand(b), target};
}

auto own_kernel(const at::Tensor& a) {
  return dtype_of(a) == DType::kBF16 && gemm_bf16_available() ? gemm_bf16 : gemm_f32;
}

void matmul_own(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, MatmulStart start,
                const at::Tensor& from) {
  own_kernel(a)(problem_of(c, a, b, start, from));
}

void matmul_aten(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, MatmulStart start,
                 const at::Tensor& from) {
  at::Tensor out = c;
  if (start == MatmulStart::kZero) {
    at::mm_out(out, a, b);
  } else {
    at::addmm_out(out, start == MatmulStart::kFrom ? from : c, a, b);
  }
}

void matmul_onednn(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, MatmulStart start,
                   const at::Tensor& from) {
  using Linear = at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            std::string_view, c10::List<std::optional<at::Scalar>>,
                            std::optional<std::string_view>);
  static const auto linear = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                 .typed<Linear>();
  const at::Tensor matmul = linear.call(a, b.t(), std::nullopt, "none",
                                        c10::List<std::optional<at::Scalar>>(), std::nullopt);
  if (start == MatmulStart::kZero) {
    c.copy_(matmul);
  } else if (start == MatmulStart::kAccumulate) {
    c.add_(matmul);
  } else {
    at::Tensor out = c;
    at::add_out(out, matmul, from);
  }
}

void matmul_by(GemmProvider provider, const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
               MatmulStart start, const at::Tensor& from) {
  switch (provider) {
    case GemmProvider::kOwn:
      return matmul_own(c, a, b, start, from);
    case GemmProvider::kAten:
      return matmul_aten(c, a, b, start, from);
    case GemmProvider::kOneDnn:
      return matmul_onednn(c, a, b, start, from);
  }
}

Kind kind_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.stride(1) != 1) {
    return Kind::kTN;
  }
  return b.stride(1) == 1 ? Kind::kNN : Kind::kNT;
}

/// Never by a measurement: two runs that chose differently would differ in their last digits. Our
/// kernels keep level with MKL and oneDNN, or are ahead, and need no extra pass for residuals.
Choice default_choice() {
  Choice own{};
  own.provider[0].fill(GemmProvider::kOwn);
  own.provider[1].fill(GemmProvider::kOwn);
  return own;
}

/// Its inner product of bf16 is made for AVX-512 and newer.
bool onednn_knows_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

const Choice& choice() {
  if (!chosen) {
    chosen = default_choice();
  }
  return *chosen;
}

GemmProvider provider_of(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  TANDEM_CHECK(a.size(1) == b.size(0) && c.size(0) == a.size(0) && c.size(1) == b.size(1),
               "extents of a matmul fit");
  if (c.scalar_type() != a.scalar_type() || a.scalar_type() == at::kHalf) {
    return GemmProvider::kOwn;
  }
  const auto kind = static_cast<std::size_t>(kind_of(a, b));
  return choice().provider[a.scalar_type() == at::kBFloat16 ? 1 : 0][kind];
}

}  // namespace

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    default:
      TANDEM_CHECK(tensor.scalar_type() == at::kHalf, "kernels know fp32, bf16 and fp16");
      return DType::kF16;
  }
}

std::int64_t packed_bytes(DType type, std::int64_t elements) {
  return (type == DType::kBF16 && gemm_bf16_available() ? 2 : 4) * elements;
}

void select_gemm(std::string_view name) {
  if (name == "auto") {
    chosen.reset();
    return;
  }
  const auto found = std::ranges::find(kProviderNames, name);
  if (found == kProviderNames.end()) {
    throw user_error("gemm", "unknown provider \"{}\"; one of auto, own, aten, onednn", name);
  }
  const auto provider = static_cast<GemmProvider>(found - kProviderNames.begin());
  Choice fixed = default_choice();
  fixed.provider[0].fill(provider);
  if (provider != GemmProvider::kOneDnn || onednn_knows_bf16()) {
    fixed.provider[1].fill(provider);
  }
  chosen = fixed;
}

std::string describe_gemm() {
  std::string text;
  for (std::size_t bf16 = 0; bf16 < 2; ++bf16) {
    text += bf16 == 0 ? "fp32" : ", bf16";
    for (const Kind kind : kKinds) {
      const auto k = static_cast<std::size_t>(kind);
      const auto provider = static_cast<std::size_t>(choice().provider[bf16][k]);
      text += fmt::format(" {}={}", kKindNames[k], kProviderNames[provider]);
    }
  }
  return text;
}

void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, MatmulStart start,
            const at::Tensor& from) {
  matmul_by(provider_of(c, a, b), c, a, b, start, from);
}

void grouped_matmul(std::span<const Matmul> matmuls) {
  std::vector<GemmProblem> own;
  for (const Matmul& p : matmuls) {
    if (p.c.numel() == 0) {
      continue;
    }
    const GemmProvider provider = provider_of(p.c, p.a, p.b);
    if (provider == GemmProvider::kOwn || p.a.size(1) == 0) {
      own.push_back(problem_of(p.c, p.a, p.b, p.start, p.from));
    } else {
      matmul_by(provider, p.c, p.a, p.b, p.start, p.from);
    }
  }
  if (!own.empty()) {
    gemm_grouped(own, own_kernel(matmuls.front().a));
  }
}

}  // namespace tandem
