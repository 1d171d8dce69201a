#include "models/layers/gemm.hpp"

#include <vector>

#include "models/kernels/gemm.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

GemmOperand operand(const at::Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1), dtype_of(t)};
}

GemmProblem problem_of(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                       MatmulStart start, const at::Tensor& from) {
  TANDEM_CHECK(a.size(1) == b.size(0) && c.size(0) == a.size(0) && c.size(1) == b.size(1),
               "extents of a matmul fit");
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
  kernel_for(a)(problem_of(c, a, b, start, from));
}

void grouped_matmul(std::span<const Matmul> matmuls) {
  std::vector<GemmProblem> problems;
  for (const Matmul& p : matmuls) {
    if (p.c.numel() > 0) {
      problems.push_back(problem_of(p.c, p.a, p.b, p.start, p.from));
    }
  }
  if (!problems.empty()) {
    gemm_grouped(problems, kernel_for(matmuls.front().a));
  }
}

}  // namespace tandem
