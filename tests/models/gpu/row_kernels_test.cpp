// The kernels between matmuls, on the host and, if there is one, on a real GPU: both are held to
// the same formulas in double, and a GPU to the same bits in every run.
#include "models/gpu/row_kernels.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/layers/gemm.hpp"
#include "runtime/device/gpu_probe.hpp"
#include "tests/models/layers/math_support.hpp"
#include "tests/support/gpu/on_gpu.hpp"

namespace tandem {
namespace {

using test::OnGpu;
using test::random;
using test::relative_error;

using Tensors = std::vector<at::Tensor>;
/// Calls kernels on the tensors' memory there, null where a tensor is undefined.
using Call = std::function<void(const RowKernels&, const std::vector<void*>&, void* stream)>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// Returns `tensors` as the call leaves them, and keeps the originals. `gpu`: null for the host.
Tensors outcome(OnGpu* gpu, const Tensors& tensors, const Call& call) {
  Tensors all;
  for (const at::Tensor& tensor : tensors) {
    all.push_back(tensor.defined() ? tensor.clone() : tensor);
  }
  std::vector<void*> places;
  std::vector<DeviceBuffer> there;
  for (const at::Tensor& tensor : all) {
    if (gpu == nullptr || !tensor.defined()) {
      places.push_back(tensor.defined() ? tensor.data_ptr() : nullptr);
    } else {
      there.push_back(gpu->buffer(tensor.const_data_ptr(), tensor.nbytes()));
      places.push_back(there.back().data());
    }
  }
  if (gpu == nullptr) {
    call(RowKernels::of_host(), places, nullptr);
    return all;
  }
  gpu->stream.launch("rows", {}, [&](void* native) { call(RowKernels::of_gpu(), places, native); });
  for (std::size_t next = 0; const at::Tensor& tensor : all) {
    if (tensor.defined()) {
      gpu->fetch(tensor.data_ptr(), there[next++]);
    }
  }
  gpu->wait();
  return all;
}

/// `expected`: of each tensor in double, undefined where it does not matter. `terms`: of the
/// longest sum, which the host adds one after the other.
void expect_outcome(OnGpu* gpu, const Tensors& tensors, const Tensors& expected, std::int64_t terms,
                    const Call& call) {
  const Tensors got = outcome(gpu, tensors, call);
  const Tensors again = gpu != nullptr ? outcome(gpu, tensors, call) : got;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].defined()) {
      continue;
    }
    EXPECT_TRUE(at::equal(got[i], again[i])) << "tensor " << i << " in two runs";
    const at::ScalarType type = got[i].scalar_type();
    EXPECT_LE(relative_error(got[i], expected[i]), (type == at::kFloat  ? 4e-6
                                                    : type == at::kHalf ? 1e-3
                                                                        : 8e-3) +
                                                       1e-9 * static_cast<double>(terms))
        << "tensor " << i;
  }
}

at::Tensor in_double(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kDouble).requires_grad_(true) : tensor;
}

/// Returns an output tensor full of NaN, so that an element that a kernel leaves out is seen.
at::Tensor unwritten(at::IntArrayRef shape, at::ScalarType type) {
  return at::full(shape, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions().dtype(type));
}

// ---- heads ----
struct HeadCase {
  std::int64_t rows, length, heads, kv_heads, head_dim, rotary;
  bool norms;
};
constexpr HeadCase kHeadCases[] = {{37, 37, 4, 2, 64, 64, true},  {2048, 512, 8, 2, 128, 128, true},
                                   {33, 11, 3, 3, 80, 32, false}, {65, 65, 2, 1, 256, 256, true},
                                   {20, 20, 5, 1, 20, 10, true},  {1, 1, 1, 1, 8, 8, false},
                                   {300, 100, 6, 3, 96, 0, true}};

/// x: [rows, heads, head_dim].
at::Tensor turned(const at::Tensor& x, const at::Tensor& norm, const HeadCase& c,
                  const at::Tensor& cosine, const at::Tensor& sine) {
  at::Tensor y = x;
  if (norm.defined()) {
    y = y * (y.square().mean(-1, true) + 1e-6).rsqrt() * norm;
  }
  const std::int64_t half = c.rotary / 2;
  const auto at_rows = [&](const at::Tensor& table) {
    return table.repeat({c.rows / c.length, 1}).unsqueeze(1).to(at::kDouble);
  };
  const at::Tensor a = y.narrow(-1, 0, half);
  const at::Tensor b = y.narrow(-1, half, half);
  return at::cat({a * at_rows(cosine) - b * at_rows(sine), b * at_rows(cosine) + a * at_rows(sine),
                  y.narrow(-1, c.rotary, c.head_dim - c.rotary)},
                 -1);
}

void check_heads(OnGpu* gpu, const HeadCase& c, at::ScalarType type) {
  const std::int64_t all = c.heads + 2 * c.kv_heads;
  const auto heads = [&](std::int64_t count, std::uint64_t seed) {
    return random({c.rows, count, c.head_dim}, seed).to(type);
  };
  const auto weight = [&](std::uint64_t seed) {
    return c.norms ? (random({c.head_dim}, seed, 0.2) + 1).to(type) : at::Tensor();
  };
  const auto empty = [&](std::int64_t count) {
    return unwritten({c.rows, count, c.head_dim}, type);
  };
  const at::Tensor cosine = random({c.length, c.rotary / 2}, 3).to(at::kFloat);
  const at::Tensor sine = random({c.length, c.rotary / 2}, 4).to(at::kFloat);
  const at::Tensor qkv = heads(all, 5);
  const Tensors norms = {weight(1), weight(2)};
  const Tensors given = {heads(c.heads, 6), heads(c.kv_heads, 7), heads(c.kv_heads, 8)};
  const at::Tensor q_norm_there = c.norms ? unwritten({c.head_dim}, type) : at::Tensor();

  const at::Tensor x = in_double(qkv);
  const Tensors weights = {in_double(norms[0]), in_double(norms[1])};
  const Tensors expected = {turned(x.narrow(1, 0, c.heads), weights[0], c, cosine, sine),
                            turned(x.narrow(1, c.heads, c.kv_heads), weights[1], c, cosine, sine),
                            x.narrow(1, c.heads + c.kv_heads, c.kv_heads) * 1};
  torch::autograd::backward(
      expected, {given[0].to(at::kDouble), given[1].to(at::kDouble), given[2].to(at::kDouble)});

  const auto shape_at = [&](const std::vector<void*>& at) {
    return HeadRows{.type = dtype_of(qkv),
                    .rows = c.rows,
                    .length = c.length,
                    .heads = c.heads,
                    .kv_heads = c.kv_heads,
                    .head_dim = c.head_dim,
                    .rotary = c.rotary,
                    .norm_eps = 1e-6F,
                    .q_norm = at[0],
                    .k_norm = at[1],
                    .cosine = static_cast<const float*>(at[2]),
                    .sine = static_cast<const float*>(at[3])};
  };
  const at::Tensor none;
  expect_outcome(
      gpu,
      {norms[0], norms[1], cosine, sine, qkv, empty(c.heads), empty(c.kv_heads), empty(c.kv_heads)},
      {none, none, none, none, none, expected[0], expected[1], expected[2]}, 0,
      [&](const RowKernels& kernels, const std::vector<void*>& at, void* stream) {
        kernels.heads_forward(shape_at(at), at[4], at[5], at[6], at[7], stream);
      });
  // The gradient of q's norm is written, that of k's added to.
  const auto added = c.norms ? weights[1].grad() + norms[1].to(at::kDouble) : none;
  expect_outcome(
      gpu,
      {norms[0], norms[1], cosine, sine, qkv, given[0], given[1], given[2], empty(all),
       c.norms ? unwritten({RowKernels::kPartials, 2 * c.head_dim}, at::kFloat) : none,
       q_norm_there, norms[1]},
      {none, none, none, none, none, none, none, none, x.grad(), none,
       c.norms ? weights[0].grad() : none, added},
      c.rows * c.heads, [&](const RowKernels& kernels, const std::vector<void*>& at, void* stream) {
        const HeadRows shape = shape_at(at);
        kernels.heads_backward(shape, at[4], {at[5], at[6], at[7]}, at[8],
                               static_cast<float*>(at[9]), {.to = at[10], .type = shape.type},
                               {.to = at[11], .type = shape.type, .add = true}, stream);
      });
}

// ---- norms ----
struct NormCase {
  std::int64_t rows, width;
};
constexpr NormCase kNormCases[] = {
    {1, 8}, {700, 64}, {33, 77}, {1500, 1024}, {5, RowKernels::kMostNormWidth}};

/// `past`: something goes past the norm, whose weights are around one and have a gradient already.
/// The weights begin at no multiple of 16 bytes, as they may in a unit's block.
void check_norms(OnGpu* gpu, const NormCase& c, at::ScalarType type, bool past) {
  constexpr std::int64_t kBefore = 3;
  const auto rows = [&](std::uint64_t seed) { return random({c.rows, c.width}, seed).to(type); };
  const at::Tensor x = rows(1);
  const at::Tensor dy = rows(2);
  const at::Tensor residual = past ? rows(3) : at::Tensor();
  const at::Tensor weight = (random({c.width}, 4, 0.2) + 1).to(type);
  const at::Tensor there = past ? weight : unwritten({c.width}, type);
  const at::Tensor input = in_double(x);
  const at::Tensor w = in_double(weight);
  const at::Tensor y =
      input * (input.square().mean(-1, true) + 1e-6).rsqrt() * (w + (past ? 1 : 0));
  torch::autograd::backward({y}, {dy.to(at::kDouble)});
  const at::Tensor none;
  expect_outcome(
      gpu,
      {x, at::cat({at::zeros({kBefore}, weight.options()), weight}), unwritten(x.sizes(), type), dy,
       residual, unwritten(x.sizes(), type),
       unwritten({RowKernels::kPartials, c.width}, at::kFloat), there},
      {none, none, y, none, none, past ? input.grad() + residual.to(at::kDouble) : input.grad(),
       none, past ? w.grad() + weight.to(at::kDouble) : w.grad()},
      std::max(c.rows, c.width),
      [&](const RowKernels& kernels, const std::vector<void*>& at, void* stream) {
        const RmsRows shape{.type = dtype_of(x),
                            .rows = c.rows,
                            .width = c.width,
                            .eps = 1e-6F,
                            .offset = past ? 1.0F : 0.0F,
                            .weight = static_cast<std::byte*>(at[1]) +
                                      kBefore * static_cast<std::int64_t>(bytes_of(dtype_of(x)))};
        kernels.rms_forward(shape, at[0], at[2], stream);
        kernels.rms_backward(shape, at[0], at[3], at[4], at[5], static_cast<float*>(at[6]),
                             {.to = at[7], .type = shape.type, .add = past}, stream);
      });
}

// ---- activations ----
at::Tensor activated(Activation kind, const at::Tensor& x, std::int64_t width) {
  if (kind == Activation::kGeluTanh) {
    return at::gelu(x, "tanh");
  }
  if (kind == Activation::kClampedSwiGlu) {
    const at::Tensor pairs = x.view({-1, width, 2});
    const at::Tensor gate = pairs.select(2, 0).clamp_max(kGateLimit);
    const at::Tensor up = pairs.select(2, 1).clamp(-kGateLimit, kGateLimit);
    return (up + 1) * gate * at::sigmoid(gate * static_cast<double>(kGateSlope));
  }
  const at::Tensor gate = x.narrow(1, 0, width);
  const at::Tensor opened = kind == Activation::kSwiGlu ? at::silu(gate) : at::gelu(gate, "tanh");
  return opened * x.narrow(1, width, width);
}

void check_activations(OnGpu* gpu, Activation kind, std::int64_t width, at::ScalarType type) {
  constexpr std::int64_t kRows = 19;
  const at::Tensor x = random({kRows, width * inputs_per_output(kind)}, 1, 4).to(type);
  const at::Tensor da = random({kRows, width}, 2).to(type);
  const at::Tensor input = in_double(x);
  const at::Tensor a = activated(kind, input, width);
  torch::autograd::backward({a}, {da.to(at::kDouble)});
  const at::Tensor none;
  expect_outcome(
      gpu, {x, unwritten(da.sizes(), type), da, unwritten(x.sizes(), type)},
      {none, a, none, input.grad()}, 0,
      [&](const RowKernels& kernels, const std::vector<void*>& at, void* stream) {
        kernels.activation_forward(kind, dtype_of(x), kRows, width, at[0], at[1], stream);
        kernels.activation_backward(kind, dtype_of(x), kRows, width, at[0], at[2], at[3], stream);
      });
}

// ---- losses ----
void check_losses(OnGpu* gpu, std::int64_t width, bool keep, at::ScalarType type) {
  constexpr std::int64_t kRows = 23;
  constexpr std::int64_t kIgnored = -100;
  const at::Tensor logits = random({kRows, width}, 1, 5).to(type);
  at::Tensor labels = at::arange(kRows).mul(7919).remainder(width);
  labels[4] = kIgnored;
  const at::Tensor input = in_double(logits);
  const at::Tensor losses =
      at::nll_loss(at::log_softmax(input, 1), labels, {}, at::Reduction::None, kIgnored);
  torch::autograd::backward({losses}, {at::full({kRows}, 0.5, at::kDouble)});
  const at::Tensor none;
  expect_outcome(
      gpu, {logits, labels, keep ? at::full({1}, 0.5F) : none, unwritten({kRows}, at::kFloat)},
      {keep ? input.grad() : logits.to(at::kDouble), none, none, losses}, width,
      [&](const RowKernels& kernels, const std::vector<void*>& at, void* stream) {
        kernels.loss({.type = dtype_of(logits),
                      .rows = kRows,
                      .width = width,
                      .logits = at[0],
                      .labels = static_cast<const std::int64_t*>(at[1]),
                      .ignored = kIgnored,
                      .scale = static_cast<const float*>(at[2]),
                      .losses = static_cast<float*>(at[3])},
                     stream);
      });
}

void check_all(OnGpu* gpu) {
  for (const at::ScalarType type : kTypes) {
    for (const HeadCase& c : kHeadCases) {
      SCOPED_TRACE(
          fmt::format("heads: {} of {}, {} rows", test::name_of(type), c.head_dim, c.rows));
      check_heads(gpu, c, type);
    }
    for (const NormCase& c : kNormCases) {
      for (const bool past : {false, true}) {
        SCOPED_TRACE(
            fmt::format("norms: {}, {} x {}, past {}", test::name_of(type), c.rows, c.width, past));
        check_norms(gpu, c, type, past);
      }
    }
    for (const Activation kind : {Activation::kSwiGlu, Activation::kGeluTanh,
                                  Activation::kGeGluTanh, Activation::kClampedSwiGlu}) {
      for (const std::int64_t width : {1, 7, 8, 64, 1408}) {
        SCOPED_TRACE(fmt::format("activations: {}, kind {}, width {}", test::name_of(type),
                                 static_cast<int>(kind), width));
        check_activations(gpu, kind, width, type);
      }
    }
    for (const std::int64_t width : {3, 256, 4097, 50264}) {
      for (const bool keep : {false, true}) {
        SCOPED_TRACE(
            fmt::format("losses: {}, width {}, keep {}", test::name_of(type), width, keep));
        check_losses(gpu, width, keep, type);
      }
    }
  }
}

TEST(RowKernels, TheHostsAreTheBook) { check_all(nullptr); }

TEST(RowKernels, RealOnesAreTheBookWithTheSameBitsInEveryRun) {
  if (gpus().empty()) {
    GTEST_SKIP() << "no GPU here";
  }
  OnGpu gpu;
  check_all(&gpu);
}

}  // namespace
}  // namespace tandem
