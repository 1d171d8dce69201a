#include "engine/run/peak_matmul.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include <ATen/ops/mm.h>

#include "engine/tensors/gpu_bandwidths.hpp"
#include "engine/types/stopwatch.hpp"

namespace tandem {
namespace {

void library_matmul(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = c;
  at::mm_out(out, a, b);
}

/// The rates of several matmuls of that type.
Task<MatmulRate> matmul_rate(TensorRank* rank, at::ScalarType scalar_type, MatmulOf matmul) {
  ComputeQueue& queue = rank->rank().compute();
  const bool on_gpu = !rank->device().is_cpu();
  const std::int64_t side = on_gpu ? 8192 : 1024;
  constexpr int kRounds = 8;
  constexpr double kEnoughS = 0.5;  // some processors have no matmuls of 16 bits: seconds each
  std::vector<double> took_s;
  const Stopwatch all;
  for (int round = 0; round < kRounds && (round == 0 || all.elapsed_s() < kEnoughS); ++round) {
    const auto a = std::make_shared<at::Tensor>();
    const auto c = std::make_shared<at::Tensor>();
    co_await queue.run("a matmul to measure with", [a, c, side, scalar_type, at = rank->device()] {
      *a = mixed_operand(side, scalar_type, at);
      *c = at::zeros_like(*a);
    });
    if (const auto ready = queue.in_use({})) {
      co_await ready->wait();
    }
    const auto seconds = std::make_shared<double>();
    const Stopwatch on_loop;
    co_await queue.run("a matmul to measure with", [a, c, seconds, &matmul] {
      const Stopwatch watch;
      matmul(*c, *a, a->t());
      *seconds = watch.elapsed_s();
    });
    if (const auto done = queue.in_use({})) {
      co_await done->wait();
      *seconds = on_loop.elapsed_s();
    }
    took_s.push_back(*seconds);
  }
  std::ranges::sort(took_s);
  const auto length = static_cast<double>(side);
  const double tera = 2.0 * length * length * length / 1e12;
  co_return {.best_tflops = tera / took_s.front(),
             .median_tflops = tera / took_s[took_s.size() / 2]};
}

MatmulRate faster(const MatmulRate& a, const MatmulRate& b) {
  return a.best_tflops < b.best_tflops ? b : a;
}

}  // namespace

Task<MatmulRate> peak_matmul_rate(TensorRank* rank, MatmulOf own) {
  const at::ScalarType type = scalar_type_of(rank->rank().layout().shape.type);
  MatmulRate peak = co_await matmul_rate(rank, type, &library_matmul);
  if (rank->device().is_cpu()) {
    if (own) {
      peak = faster(peak, co_await matmul_rate(rank, type, own));
    }
    if (type != at::kFloat) {  // which 16 bits may go by
      const MatmulOf& fastest = own ? own : MatmulOf(library_matmul);
      peak = faster(peak, co_await matmul_rate(rank, at::kFloat, fastest));
    }
  }
  co_return peak;
}

}  // namespace tandem
