// bench/models/ops_bench.cpp — products, attention and whole forward-backward passes of a 20M-parameter Qwen3, without the
// engine. Counters: FLOPS of products; tokens/s of passes. Threads as ATen is told (OMP_NUM_THREADS).
#include <array>
#include <functional>
#include <string>

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "engine/process.hpp"
#include "models/causal_lm.hpp"
#include "models/gemm.hpp"
#include "models/kernels/attention.hpp"
#include "models/kernels/parallel.hpp"
#include "models/layers/weights.hpp"
#include "tests/models/math_harness.hpp"

namespace tandem {
namespace {

at::TensorOptions options(bool bf16) {
  return at::TensorOptions().dtype(bf16 ? at::kBFloat16 : at::kFloat);
}

struct Shape {
  const char* name;
  std::int64_t rows, out, in;
};
constexpr std::array kShapes = {Shape{"qkv", 2048, 1024, 512}, Shape{"o", 2048, 512, 512},
                                Shape{"gate_up", 2048, 2816, 512}, Shape{"down", 2048, 512, 1408},
                                Shape{"head", 1024, 4096, 512}};

void products(benchmark::State& state, const Shape& shape, const std::string& kind,
              const std::string& provider, bool bf16) {
  select_gemm(provider);
  const at::Tensor x = at::randn({shape.rows, shape.in}).to(options(bf16));
  const at::Tensor w = at::randn({shape.out, shape.in}).to(options(bf16));
  const at::Tensor dy = at::randn({shape.rows, shape.out}).to(options(bf16));
  const at::Tensor a = kind == "forward" ? x : kind == "dx" ? dy : dy.t();
  const at::Tensor b = kind == "forward" ? w.t() : kind == "dx" ? w : x;
  const at::Tensor c = at::empty({a.size(0), b.size(1)}, options(bf16));
  for (auto _ : state) {
    multiply(c, a, b);
  }
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.out * shape.in);
  state.counters["FLOPS"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  select_gemm("auto");
}

void attention(benchmark::State& state, bool backward, bool bf16) {
  const at::Tensor qkv = at::randn({2048, 1024}).to(options(bf16));
  const at::Tensor context = at::empty({2048, 512}, options(bf16));
  const at::Tensor dcontext = at::randn({2048, 512}).to(options(bf16));
  const at::Tensor dqkv = at::empty_like(qkv);
  const at::Tensor log_sums = at::empty({2048 * 8});
  AttentionProblem p{.type = dtype_of(qkv),
                     .batch = 8,
                     .length = 256,
                     .heads = 8,
                     .kv_heads = 4,
                     .head_dim = 64,
                     .scale = 0.125F,
                     .qkv = qkv.data_ptr()};
  attention_forward(p, context.data_ptr(), log_sums.data_ptr<float>());
  for (auto _ : state) {
    if (backward) {
      attention_backward(p, context.data_ptr(), log_sums.data_ptr<float>(), dcontext.data_ptr(),
                         {.dqkv = dqkv.data_ptr()});
    } else {
      attention_forward(p, context.data_ptr(), log_sums.data_ptr<float>());
    }
  }
}

void forward_backward(benchmark::State& state, bool bf16) {
  HfConfig config;
  config.model_type = "qwen3";
  config.activation = "silu";
  config.vocab_size = 4096;
  config.hidden_size = 512;
  config.num_hidden_layers = 6;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.intermediate_size = 1408;
  config.norm_eps = 1e-6;
  config.rope = {.kind = RotaryKind::kDefault, .theta = 1e4, .dim = 64};
  config.tie_word_embeddings = true;
  test::MathHarness model(
      make_causal_lm(config), bf16 ? at::kBFloat16 : at::kFloat,
      [](const ParameterSpec& p, std::int64_t begin, std::int64_t end, float* out) {
        const at::Tensor values =
            p.shape.size() == 1 ? at::ones({end - begin}) : at::randn({end - begin}) * 0.02;
        std::copy_n(values.data_ptr<float>(), end - begin, out);
      });
  const at::Tensor tokens = at::randint(0, config.vocab_size, {8, 256}, at::kLong);
  const Batch batch{tokens, tokens};
  for (auto _ : state) {
    benchmark::DoNotOptimize(model.step(batch));
  }
  state.counters["tokens/s"] =
      benchmark::Counter(8 * 256, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(describe_gemm());
}

void register_all() {
  for (const bool bf16 : {false, true}) {
    const std::string type = bf16 ? "bf16" : "fp32";
    const auto add = [](const std::string& name, auto&& run) {
      benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMillisecond);
    };
    add("forward_backward/" + type, [=](auto& s) { forward_backward(s, bf16); });
    add("attention/" + type + "/forward", [=](auto& s) { attention(s, false, bf16); });
    add("attention/" + type + "/backward", [=](auto& s) { attention(s, true, bf16); });
    for (const Shape& shape : kShapes) {
      for (const std::string kind : {"forward", "dx", "dw"}) {
        for (const std::string provider : {"own", "aten"}) {
          add("product/" + type + "/" + shape.name + "/" + kind + "/" + provider,
              [=](auto& s) { products(s, shape, kind, provider, bf16); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::tune_process(argv);
  benchmark::Initialize(&argc, argv);
  tandem::register_all();
  benchmark::RunSpecifiedBenchmarks();
}
