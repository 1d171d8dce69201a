#include "models/layers/gemm.hpp"

#include <vector>

#include "models/kernels/gemm.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

GemmOperand operand(const at::Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1), dtype_of(t)};
}

GemmProblem problem_of(const Matmul& p) {
  TANDEM_CHECK(
      p.a.size(1) == p.b.size(0) && p.c.size(0) == p.a.size(0) && p.c.size(1) == p.b.size(1),
      "extents of a matmul fit");
  GemmTarget target{p.c.data_ptr(), p.c.stride(0), dtype_of(p.c)};
  if (p.start == MatmulStart::kAccumulate) {
    target.start = GemmStart::kResidual;
    target.initial = target.data;
    target.initial_ld = target.ld;
  } else if (p.start == MatmulStart::kFrom) {
    target.start = p.from.dim() == 1 ? GemmStart::kBias : GemmStart::kResidual;
    target.initial = p.from.const_data_ptr();
    target.initial_ld = p.from.stride(0);
  }
  return {p.a.size(0), p.b.size(1), p.a.size(1), operand(p.a), operand(p.b), target};
}

auto kernel_for(const at::Tensor& a) {
  return dtype_of(a) == DType::kBF16 && gemm_bf16_available() ? gemm_bf16 : gemm_f32;
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

void matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, MatmulStart start,
            const at::Tensor& from) {
  kernel_for(a)(problem_of({c, a, b, start, from}));
}

void grouped_matmul(std::span<const Matmul> matmuls) {
  std::vector<GemmProblem> problems;
  for (const Matmul& p : matmuls) {
    if (p.c.numel() > 0) {
      problems.push_back(problem_of(p));
    }
  }
  if (!problems.empty()) {
    gemm_grouped(problems, kernel_for(matmuls.front().a));
  }
}

}  // namespace tandem
