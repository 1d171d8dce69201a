// bench/models/ops_bench.cpp — matmuls, attention and whole forward-backward passes of a
// 20M-parameter Qwen3, without the engine. Counters: FLOPS of matmuls; tokens/s of passes. Threads
// as ATen is told (OMP_NUM_THREADS).
#include <array>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "bench/program.hpp"
#include "bench/torch_context.hpp"
#include "models/causal_lm.hpp"
#include "models/kernels/attention/attention.hpp"
#include "models/kernels/experts.hpp"
#include "models/kernels/parallel.hpp"
#include "models/layers/experts.hpp"
#include "models/layers/gemm.hpp"
#include "models/layers/weights.hpp"
#include "tests/models/layers/harness.hpp"
#include "trainer/program/reexec.hpp"

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

/// `own`: by our kernels, else by LibTorch's, which are MKL's in fp32 and oneDNN's in bf16.
void matmuls(benchmark::State& state, const Shape& shape, const std::string& kind, bool own,
             bool bf16) {
  const at::Tensor x = at::randn({shape.rows, shape.in}).to(options(bf16));
  const at::Tensor w = at::randn({shape.out, shape.in}).to(options(bf16));
  const at::Tensor dy = at::randn({shape.rows, shape.out}).to(options(bf16));
  const at::Tensor a = kind == "forward" ? x : kind == "dx" ? dy : dy.t();
  const at::Tensor b = kind == "forward" ? w.t() : kind == "dx" ? w : x;
  at::Tensor c = at::empty({a.size(0), b.size(1)}, options(bf16));
  for (auto _ : state) {
    own ? matmul(c, a, b) : static_cast<void>(at::mm_out(c, a, b));
  }
  const double flops = 2.0 * static_cast<double>(shape.rows * shape.out * shape.in);
  state.counters["FLOPS"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

/// FLOPS counts what lies below the diagonal: two matmuls, in backward five.
void attention(benchmark::State& state, bool backward, bool bf16, double dropout, std::int64_t rows,
               std::int64_t length) {
  const std::int64_t tokens = rows * length;
  const at::Tensor qkv = at::randn({tokens, 1024}).to(options(bf16));
  const at::Tensor context = at::empty({tokens, 512}, options(bf16));
  const at::Tensor dcontext = at::randn({tokens, 512}).to(options(bf16));
  const at::Tensor dqkv = at::empty_like(qkv);
  const at::Tensor log_sums = at::empty({tokens * 8});
  AttentionProblem p{.type = dtype_of(qkv),
                     .batch = rows,
                     .length = length,
                     .heads = 8,
                     .kv_heads = 4,
                     .head_dim = 64,
                     .scale = 0.125F,
                     .qkv = qkv.data_ptr(),
                     .drop = drop_mask(dropout, 1, 0, 0, DropPlace::kAttention)};
  attention_forward(p, context.data_ptr(), log_sums.data_ptr<float>());
  for (auto _ : state) {
    if (backward) {
      attention_backward(p, context.data_ptr(), log_sums.data_ptr<float>(), dcontext.data_ptr(),
                         {.dqkv = dqkv.data_ptr()});
    } else {
      attention_forward(p, context.data_ptr(), log_sums.data_ptr<float>());
    }
  }
  const double flops = static_cast<double>(tokens * length) * 512 * (backward ? 5 : 2);
  state.counters["FLOPS"] =
      benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

/// 2048 tokens, two of eight experts each: the matmuls into the experts, as one group or expert
/// after expert.
void expert_matmuls(benchmark::State& state, bool grouped, bool bf16) {
  constexpr std::int64_t kExperts = 8, kRows = 4096, kIn = 512, kOut = 1408;
  const at::Tensor x = at::randn({kRows, kIn}).to(options(bf16));
  const at::Tensor w = at::randn({kExperts, kOut, kIn}).to(options(bf16));
  const at::Tensor y = at::empty({kRows, kOut}, options(bf16));
  std::vector<Matmul> matmuls;
  for (std::int64_t e = 0, begin = 0; e < kExperts; ++e) {
    const std::int64_t rows = e + 1 == kExperts ? kRows - begin : kRows * (e + 1) / 36;  // uneven
    matmuls.push_back({y.narrow(0, begin, rows), x.narrow(0, begin, rows), w.select(0, e).t()});
    begin += rows;
  }
  for (auto _ : state) {
    if (grouped) {
      grouped_matmul(matmuls);
    } else {
      for (const Matmul& p : matmuls) {
        matmul(p.c, p.a, p.b);
      }
    }
  }
  state.counters["FLOPS"] =
      benchmark::Counter(2.0 * kRows * kIn * kOut, benchmark::Counter::kIsIterationInvariantRate);
}

/// The half of a block with eight experts, two for each of 2048 tokens: forward and backward, or of
/// that only the routes and the ways of rows there and back.
void expert_half(benchmark::State& state, bool ways_only, bool bf16) {
  constexpr std::int64_t kTokens = 2048, kHidden = 512;
  const ExpertShape shape{.count = 8, .per_token = 2, .width = 704};
  std::deque<Weight> weights;
  std::vector<Weight*> pointers;
  const auto add = [&](std::vector<std::int64_t> sizes, double scale) {
    Weight& w = weights.emplace_back();
    w.value = (at::randn(sizes) * scale).to(options(bf16));
    w.grad = at::empty_like(w.value);
    pointers.push_back(&w);
  };
  add({kHidden}, 1);
  add({shape.count, kHidden}, 0.1);
  const std::int64_t each = 3 * shape.width * kHidden;
  const at::Tensor values = (at::randn({shape.count * each}) * 0.05).to(options(bf16));
  const at::Tensor gradients = at::empty_like(values);
  for (std::int64_t i = 0; i < 3 * shape.count; ++i) {
    const bool down = i % 3 == 2;
    const std::vector<std::int64_t> sizes = {down ? kHidden : shape.width,
                                             down ? shape.width : kHidden};
    Weight& w = weights.emplace_back();
    w.value = values.narrow(0, i * each / 3, each / 3).view(sizes);
    w.grad = gradients.narrow(0, i * each / 3, each / 3).view(sizes);
    pointers.push_back(&w);
  }
  const std::span<Weight* const> all = pointers;
  const at::Tensor x = at::randn({kTokens, kHidden}).to(options(bf16));
  const DType type = dtype_of(x);
  const at::Tensor logits = at::randn({kTokens, shape.count}).to(options(bf16));
  const at::Tensor rows = at::empty({kTokens * shape.per_token, kHidden}, options(bf16));
  const at::Tensor out = at::empty_like(x);
  for (auto _ : state) {
    if (!ways_only) {
      const at::Tensor leaf = x.detach().requires_grad_(true);
      const at::Tensor y =
          expert_mixture(leaf, {NormKind::kRms, 1e-6, JoinedWeights(all.first(1)), {}},
                         {JoinedWeights(all.subspan(1, 1)), {}, false}, all.subspan(2), shape);
      torch::autograd::backward({y}, {x});
      continue;
    }
    const Routes routes = route_tokens(shape.rule(), type, kTokens, logits.data_ptr());
    // There and back, forward and backward; the tokens' rows are made anew for the gradients of the
    // weights.
    for (int pass = 0; pass < 2; ++pass) {
      rows_of_tokens(routes, type, kHidden, x.data_ptr(), rows.data_ptr());
      tokens_of_rows(routes, type, kHidden, rows.data_ptr(), pass == 0, x.data_ptr(),
                     out.data_ptr());
    }
    rows_of_tokens(routes, type, kHidden, x.data_ptr(), rows.data_ptr());
  }
}

void forward_backward(benchmark::State& state, bool bf16) {
  HfConfig config;
  config.model_type = "qwen3";
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
}

void register_all() {
  for (const bool bf16 : {false, true}) {
    const std::string type = bf16 ? "bf16" : "fp32";
    const auto add = [](const std::string& name, auto&& run) {
      benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMillisecond);
    };
    add("forward_backward/" + type, [=](auto& s) { forward_backward(s, bf16); });
    for (const double dropout : {0.0, 0.1}) {
      const std::string name = "attention/" + type + (dropout > 0 ? "/dropout" : "");
      add(name + "/forward", [=](auto& s) { attention(s, false, bf16, dropout, 8, 256); });
      add(name + "/backward", [=](auto& s) { attention(s, true, bf16, dropout, 8, 256); });
    }
    for (const std::int64_t length : {1024, 4096, 8192}) {
      const std::string name = "attention/" + type + "/long/" + std::to_string(length);
      add(name + "/forward", [=](auto& s) { attention(s, false, bf16, 0, 1, length); });
      add(name + "/backward", [=](auto& s) { attention(s, true, bf16, 0, 1, length); });
    }
    for (const bool one : {true, false}) {
      add("experts/" + type + "/matmuls/" + (one ? "grouped" : "one_by_one"),
          [=](auto& s) { expert_matmuls(s, one, bf16); });
      add("experts/" + type + (one ? "/ways" : "/half"),
          [=](auto& s) { expert_half(s, one, bf16); });
    }
    for (const Shape& shape : kShapes) {
      for (const std::string kind : {"forward", "dx", "dw"}) {
        for (const bool own : {true, false}) {
          add("matmul/" + type + "/" + shape.name + "/" + kind + (own ? "/own" : "/aten"),
              [=](auto& s) { matmuls(s, shape, kind, own, bf16); });
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  tandem::bench::Suite suite(argc, argv,
                             "matmuls, attention and passes of a model without the engine");
  suite.begin();
  tandem::bench::add_torch_context();
  tandem::register_all();
  return suite.run();
}
