#include "models/layers/aten/layers.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "models/layers/aten/row_ops.hpp"
#include "models/layers/dropout.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"

namespace tandem::aten {
namespace {

bool g_always = false;

constexpr std::int64_t kIgnored = -100;
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 30;  // of fp32 logits, half of bf16 ones
constexpr std::int64_t kChunkRowsMin = 64;

/// Half-split rotation of the leading elements of each head, in fp32 inside. x: [B, heads, T,
/// head_dim]; cosine, sine: [T, half], or [B, 1, T, half] of packed rows.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const std::int64_t half = cosine.size(-1);
  const at::Tensor wide = x.narrow(-1, 0, 2 * half).to(at::kFloat);
  const at::Tensor first = wide.narrow(-1, 0, half);
  const at::Tensor second = wide.narrow(-1, half, half);
  const at::Tensor turned =
      at::cat({first * cosine - second * sine, second * cosine + first * sine}, -1)
          .to(x.scalar_type());
  return 2 * half == x.size(-1)
             ? turned
             : at::cat({turned, x.narrow(-1, 2 * half, x.size(-1) - 2 * half)}, -1);
}

constexpr std::int64_t kQueryRows = 1024;  // whose scores are taken at a time

// Elements of the document mask's rows: the library copies a mask whose rows begin elsewhere.
constexpr std::int64_t kMaskAlignment = 16;

std::int64_t mask_width(std::int64_t length) noexcept {
  return (length + kMaskAlignment - 1) / kMaskAlignment * kMaskAlignment;
}

/// The mask that is added to the scores of packed rows, [B, 1, T, T]: 0 where a query sees the key,
/// or minus infinity. All layers of a micro-batch share it: it stays until other positions come.
at::Tensor document_mask(const at::Tensor& positions, at::ScalarType type) {
  thread_local struct {
    at::Tensor positions, mask;
    std::uint32_t version;
  } last;
  if (!last.mask.defined() || !last.positions.is_same(positions) ||
      last.version != positions._version() || last.mask.scalar_type() != type) {
    last = {};
    const at::NoGradGuard no_grad;
    const std::int64_t length = positions.size(1);
    const at::Tensor places = at::arange(length, positions.options());
    const at::Tensor hidden = places.lt(begins_in_rows(positions).unsqueeze(2))
                                  .logical_or(places.gt(places.unsqueeze(1)));
    last.mask = at::zeros({positions.size(0), 1, length, mask_width(length)},
                          positions.options().dtype(type))
                    .narrow(3, 0, length)
                    .masked_fill_(hidden.unsqueeze(1), -INFINITY);
    last.positions = positions;
    last.version = positions._version();
  }
  return last.mask;
}

// Rows of more tokens have no T x T mask: their documents attend one after another.
constexpr std::int64_t kMaskedTokens = 4096;

/// document_begins() of positions that may lie on a device, which are read once for all layers.
const std::vector<std::int64_t>& begins_on_host(const at::Tensor& positions) {
  thread_local struct {
    at::Tensor positions;
    std::int64_t version;
    std::vector<std::int64_t> begins;
  } last;
  if (!last.positions.is_same(positions) || last.version != positions._version()) {
    last = {positions, positions._version(), document_begins(positions.to(at::kCPU))};
  }
  return last.begins;
}

constexpr std::int64_t kMultiprocessors = 148;                  // of the largest GPU known here
constexpr std::int64_t kMostPartBytes = std::int64_t{2} << 30;  // of partial sums

/// Partial sums of dq in fp32 that flash attention's backward would have, in bytes of a token.
std::int64_t part_bytes(std::int64_t rows, const AttentionShape& shape) noexcept {
  const std::int64_t heads = rows * shape.heads;
  return (kMultiprocessors + heads - 1) / heads * shape.heads * shape.head_dim * 4;
}
bool has_many_parts(std::int64_t rows, std::int64_t length, const AttentionShape& shape) noexcept {
  return rows * length * part_bytes(rows, shape) > kMostPartBytes;
}

/// Attention of packed rows, each document by itself. q: [B, heads, T, D].
at::Tensor attention_by_documents(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionShape& shape, const at::Tensor& positions) {
  const std::vector<std::int64_t>& begins = begins_on_host(positions);
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    lengths.push_back(begins[i + 1] - begins[i]);
  }
  // Split in one operation, whose backward joins the documents' gradients in one, too: each one's
  // own slice would have a gradient as large as all rows.
  const auto split = [&](const at::Tensor& x) {
    return x.transpose(0, 1).reshape({1, x.size(1), -1, x.size(3)}).split_with_sizes(lengths, 2);
  };
  const std::vector<at::Tensor> queries = split(q);
  const std::vector<at::Tensor> keys = split(k);
  const std::vector<at::Tensor> values = split(v);
  std::vector<at::Tensor> documents;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    documents.push_back(at::scaled_dot_product_attention(
        queries[i], keys[i], values[i], std::nullopt, 0.0, /*is_causal=*/true, shape.score_scale(),
        shape.heads != shape.kv_heads));
  }
  return at::cat(documents, 2).view({q.size(1), q.size(0), q.size(2), q.size(3)}).transpose(0, 1);
}

/// One parameter as autograd sees it.
const at::Tensor& plain(const JoinedWeights& one) { return one.parts().front()->value; }

/// A key/value head for each query head.
at::Tensor for_each_head(const at::Tensor& x, std::int64_t heads) {
  return heads == x.size(1) ? x : x.repeat_interleave(heads / x.size(1), 1);
}

/// Causal attention by the library's memory-efficient kernel, whose backward has no partial sums.
/// It is called by name: the library's choice among its kernels is a setting of the whole process.
/// It wants as many heads of keys as of queries, and head_dim a multiple of 8.
at::Tensor attention_by_one_part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionShape& shape) {
  const bool keeps = at::GradMode::is_enabled() && q.requires_grad();
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      q, for_each_head(k, shape.heads), for_each_head(v, shape.heads), std::nullopt, keeps, 0.0,
      /*is_causal=*/true, shape.score_scale()));
}

/// weights: [B, heads, count, keys], of the queries and keys from these on, of texts of `length`.
at::Tensor dropped_weights(const at::Tensor& weights, const DropMask& drop, std::int64_t length,
                           std::int64_t from, std::int64_t first) {
  if (drop.empty()) {
    return weights;
  }
  const auto numbers = weights.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor heads = at::arange(weights.size(0) * weights.size(1), numbers) * length;
  const at::Tensor queries = at::arange(from, from + weights.size(2), numbers);
  return dropped(weights, drop, heads.unsqueeze(1) + queries, first);
}

/// Attention row block by row block, for what scaled_dot_product_attention cannot say: windows,
/// sinks, dropout by our masks, and queries that begin later than the keys. q: [B, heads, rows, D],
/// of the last positions; k, v: [B, kv_heads, T, D]; begins: [B, T] as begins_in_rows() has them,
/// of packed rows.
at::Tensor attention_in_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionShape& shape, const at::Tensor& sinks,
                               const DropMask& drop, const at::Tensor& begins) {
  const std::int64_t window = shape.window;
  const std::int64_t rows = q.size(2);
  const std::int64_t begin = k.size(2) - rows;
  const std::int64_t group = q.size(1) / k.size(1);
  const auto positions = q.options().dtype(at::kLong);
  std::vector<at::Tensor> blocks;
  for (std::int64_t from = 0; from < rows; from += kQueryRows) {
    const std::int64_t count = std::min(kQueryRows, rows - from);
    const std::int64_t first =
        window > 0 ? std::max<std::int64_t>(0, begin + from - window + 1) : 0;
    const std::int64_t keys = begin + from + count - first;
    // [B, kv_heads, group * count, D]: a group's queries are rows of one matmul.
    const at::Tensor queries =
        q.narrow(2, from, count).reshape({q.size(0), k.size(1), group * count, q.size(3)});
    at::Tensor scores = at::matmul(queries, k.narrow(2, first, keys).transpose(2, 3))
                            .reshape({q.size(0), q.size(1), count, keys})
                            .to(at::kFloat) *
                        shape.score_scale();
    const at::Tensor ahead = at::arange(first, first + keys, positions) -
                             at::arange(begin + from, begin + from + count, positions).unsqueeze(1);
    at::Tensor hidden = ahead.gt(0);
    if (window > 0) {
      hidden = hidden.logical_or(ahead.le(-window));
    }
    if (begins.defined()) {
      hidden = hidden.logical_or(at::arange(first, first + keys, positions)
                                     .lt(begins.narrow(1, from, count).view({-1, 1, count, 1})));
    }
    scores = scores.masked_fill(hidden, -INFINITY);
    if (sinks.defined()) {
      scores = at::cat(
          {scores, sinks.to(at::kFloat).view({1, -1, 1, 1}).expand({q.size(0), -1, count, 1})}, -1);
    }
    const at::Tensor weights = dropped_weights(
        at::softmax(scores, -1).narrow(-1, 0, keys).to(v.scalar_type()), drop, rows, from, first);
    blocks.push_back(at::matmul(weights.reshape({q.size(0), k.size(1), group * count, keys}),
                                v.narrow(2, first, keys))
                         .reshape({q.size(0), q.size(1), count, q.size(3)}));
  }
  return blocks.size() == 1 ? blocks.front() : at::cat(blocks, 2);
}

/// From the rows behind the norm to the mean loss. A chunk's logits become their gradient, and from
/// it at once the chunk's share of dh and dW; so the backward only scales. How many rows have a
/// label is known on the device alone.
class ChunkedLoss final : public FusedOp {
 public:
  /// `labels`: what each row is asked for; `of_all`: of all rows that the loss is the mean of.
  ChunkedLoss(at::Tensor labels, at::Tensor of_all, Weight& weight, const SharedRows& shared)
      : labels_(std::move(labels)), of_all_(std::move(of_all)), weight_(weight), shared_(shared) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor& h = inputs[0];  // [rows, H]
    const at::Tensor w = weight_.value.detach();
    const std::int64_t most = loss_chunk_rows(w.size(0));
    const at::Tensor count = of_all_.ne(kIgnored).sum().to(at::kFloat).clamp_min(1);
    const bool late = h.scalar_type() == at::kHalf;  // fp16: the loss scale has to come first
    const at::Tensor scale = late ? at::full_like(count, 1.0 / 16) : count.reciprocal();
    late_ = late ? 16 / count : at::Tensor();
    at::Tensor sum = at::zeros_like(count);
    if (keep) {
      dh_ = at::empty_like(h);
      if (weight_.wants_grad) {
        dw_ = at::zeros(w.sizes(), w.options().dtype(at::kFloat));
      }
    }
    for (std::int64_t begin = 0; begin < h.size(0); begin += most) {
      const std::int64_t rows = std::min(most, h.size(0) - begin);
      sum = sum + chunk(h.narrow(0, begin, rows), begin, w, scale, keep);
    }
    sum = shared_.sum_of_all(sum.to(at::kDouble)).to(at::kFloat);
    return {(sum / count).reshape({})};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor& given = gradients[0];
    const at::Tensor scale = late_.defined() ? given * late_ : given;
    if (weight_.wants_grad) {
      write_gradient(weight_, std::exchange(dw_, at::Tensor()).mul_(scale));
    }
    return {(dh_ * scale).to(dh_.scalar_type())};
  }

 private:
  /// The sum of the rows' losses.
  at::Tensor chunk(const at::Tensor& h, std::int64_t begin, const at::Tensor& w,
                   const at::Tensor& scale, bool keep) const {
    const at::Tensor logits = at::mm(h, w.t());
    const at::Tensor losses = losses_of_rows(logits, labels_.narrow(0, begin, h.size(0)), kIgnored,
                                             keep ? scale : at::Tensor());
    if (keep) {  // what were the logits is their gradient now
      at::Tensor dh = dh_.narrow(0, begin, h.size(0));
      at::mm_out(dh, logits, w);
      if (dw_.defined()) {
        dw_.add_(at::mm(logits.t(), h));
      }
    }
    return losses.sum();
  }

  at::Tensor labels_, of_all_;
  Weight& weight_;
  SharedRows shared_;
  at::Tensor late_, dh_, dw_;
};

}  // namespace

at::Tensor begins_in_rows(const at::Tensor& positions) {
  return at::arange(positions.size(1), positions.options()) - positions;
}

at::Tensor ends_in_rows(const at::Tensor& positions) {
  const std::int64_t length = positions.size(1);
  const at::Tensor places = at::arange(length, positions.options());
  // Where a document begins, and T behind the row; the nearest of those behind a token.
  const at::Tensor begins = at::where(positions.eq(0), places, length).narrow(1, 1, length - 1);
  const at::Tensor end = at::full({positions.size(0), 1}, length, positions.options());
  return std::get<0>(at::cummin(at::cat({begins, end}, 1).flip({1}), 1)).flip({1});
}

std::int64_t document_mask_bytes(const BatchShape& batch) noexcept {
  return batch.length > kMaskedTokens ? 0
                                      : batch.rows * batch.length * mask_width(batch.length) *
                                            static_cast<std::int64_t>(bytes_of(batch.type));
}

std::int64_t fused_backward_bytes(std::int64_t rows, std::int64_t length,
                                  const AttentionShape& shape) noexcept {
  const std::int64_t size = shape.heads * shape.head_dim * 2;
  const std::int64_t for_each = shape.kv_heads < shape.heads ? 2 * size : 0;
  // In one part copies of keys and values are kept, too, for each query head.
  return has_many_parts(rows, length, shape) ? 2 * for_each : for_each + part_bytes(rows, shape);
}

std::int64_t attention_block_rows() noexcept { return kQueryRows; }

std::int64_t loss_chunk_rows(std::int64_t vocabulary) noexcept {
  return std::max(kChunkRowsMin, kChunkBytes / (4 * vocabulary));
}

bool takes(std::span<Weight* const> weights) {
  return g_always || (!weights.empty() && !weights.front()->value.is_cpu());
}

void take_always(bool always) noexcept { g_always = always; }

at::Tensor adapted(const at::Tensor& y, const at::Tensor& x, const Adapters& adapters) {
  if (adapters.empty()) {
    return y;
  }
  const at::Tensor from = dropped(x, adapters.drop);
  std::vector<at::Tensor> columns;
  std::int64_t end = 0;  // of the columns so far
  const auto keep_until = [&](std::int64_t column) {
    if (column > end) {
      columns.push_back(y.narrow(1, end, column - end));
    }
  };
  for (std::size_t i = 0; i < adapters.parts.size(); ++i) {
    const Adapters::Part& part = adapters.parts[i];
    const at::Tensor& a = adapters.a.parts()[i]->value;
    const at::Tensor& b = part.b.parts().front()->value;
    keep_until(part.begin);
    columns.push_back(y.narrow(1, part.begin, b.size(0)) +
                      at::linear(at::linear(from, a) * adapters.scale, b));
    end = part.begin + b.size(0);
  }
  keep_until(y.size(1));
  return columns.size() == 1 ? columns.front() : at::cat(columns, 1);
}

namespace {

/// The heads of all positions, [B, heads, T, head_dim].
SplitHeads heads_of(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                    const AttentionWeights& weights, const at::Tensor& positions) {
  at::Tensor cosine;
  at::Tensor sine;
  if (shape.rotary != nullptr) {
    std::tie(cosine, sine) = positions.defined()
                                 ? shape.rotary->tensors_at(positions)
                                 : shape.rotary->tensors(length, qkv.device(), shape.padding);
    cosine = cosine.reshape({-1, cosine.size(-1)});
    sine = sine.reshape({-1, sine.size(-1)});
  }
  const auto of_rows = [&](const at::Tensor& x) {
    return x.view({-1, length, x.size(1), x.size(2)}).transpose(1, 2);
  };
  const SplitHeads all = split_heads(qkv, shape, weights, cosine, sine);
  return {of_rows(all.q), of_rows(all.k), of_rows(all.v)};
}

/// The same by plain operations, behind an earlier text or for wide heads.
SplitHeads heads_by_operations(const at::Tensor& qkv, std::int64_t length,
                               const AttentionShape& shape, const AttentionWeights& weights,
                               const EarlierText& earlier, const at::Tensor& positions) {
  const std::int64_t batch = qkv.size(0) / length;
  const std::int64_t q_width = shape.heads * shape.head_dim;
  const std::int64_t total = earlier.begin + length;
  at::Tensor keys_values = qkv.narrow(1, q_width, 2 * shape.kv_heads * shape.head_dim)
                               .reshape({batch, length, 2 * shape.kv_heads, shape.head_dim});
  if (earlier.memory != nullptr) {
    remember(earlier, qkv, length, shape);
    keys_values = earlier.memory->narrow(1, 0, total)
                      .reshape({batch, total, 2 * shape.kv_heads, shape.head_dim});
  }
  at::Tensor q = qkv.narrow(1, 0, q_width).reshape({batch, length, shape.heads, shape.head_dim});
  at::Tensor k = keys_values.narrow(2, 0, shape.kv_heads);
  const at::Tensor v = keys_values.narrow(2, shape.kv_heads, shape.kv_heads).transpose(1, 2);
  if (!weights.q_norm.empty()) {
    q = plain_norm(shape.norm, shape.norm_eps, q, plain(weights.q_norm), {});
    k = plain_norm(shape.norm, shape.norm_eps, k, plain(weights.k_norm), {});
  }
  q = q.transpose(1, 2);
  k = k.transpose(1, 2);
  if (shape.rotary != nullptr && positions.defined()) {
    const auto [cosine, sine] = shape.rotary->tensors_at(positions);
    q = rotated(q, cosine.unsqueeze(1), sine.unsqueeze(1));
    k = rotated(k, cosine.unsqueeze(1), sine.unsqueeze(1));
  } else if (shape.rotary != nullptr) {
    const auto [cosine, sine] = shape.rotary->tensors(total, qkv.device(), shape.padding);
    q = rotated(q, cosine.narrow(0, earlier.begin, length), sine.narrow(0, earlier.begin, length));
    k = rotated(k, cosine, sine);
  }
  return {q, k, v};
}

}  // namespace

at::Tensor attention(const at::Tensor& qkv, std::int64_t length, const AttentionShape& shape,
                     const AttentionWeights& weights, const EarlierText& earlier,
                     const DropMask& drop, const at::Tensor& positions) {
  const std::int64_t batch = qkv.size(0) / length;
  const std::int64_t q_width = shape.heads * shape.head_dim;
  const std::int64_t total = earlier.begin + length;
  const auto [q, k, v] = earlier.memory == nullptr && can_split_heads(shape)
                             ? heads_of(qkv, length, shape, weights, positions)
                             : heads_by_operations(qkv, length, shape, weights, earlier, positions);
  const bool limited = shape.window > 0 && shape.window < total;
  at::Tensor context;
  if (limited || !weights.sinks.empty() || earlier.begin > 0 || !drop.empty()) {
    const at::Tensor sinks = weights.sinks.empty()
                                 ? at::Tensor()
                                 : plain(weights.sinks).narrow(0, shape.first_head, shape.heads);
    context = attention_in_blocks(q, k, v, shape, sinks, drop,
                                  positions.defined() ? begins_in_rows(positions) : positions);
  } else if (positions.defined() && length > kMaskedTokens) {
    context = attention_by_documents(q, k, v, shape, positions);
  } else if (positions.defined()) {
    // With a mask the library's fused kernels want as many heads of keys as of queries.
    context = at::scaled_dot_product_attention(
        q, for_each_head(k, shape.heads), for_each_head(v, shape.heads),
        document_mask(positions, q.scalar_type()), 0.0, /*is_causal=*/false, shape.score_scale());
  } else if (!q.is_cpu() && shape.head_dim % 8 == 0 && has_many_parts(batch, length, shape)) {
    context = attention_by_one_part(q, k, v, shape);
  } else {
    context = at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, /*is_causal=*/true,
                                               shape.score_scale(), shape.heads != shape.kv_heads);
  }
  return context.transpose(1, 2).reshape({batch * length, q_width});
}

at::Tensor embedding(const at::Tensor& tokens, const Weight& table, const Weight* positions,
                     std::optional<std::int64_t> padding, std::int64_t begin, float scale,
                     const at::Tensor& places) {
  at::Tensor rows = at::embedding(table.value, tokens, padding.value_or(-1));
  if (scale != 1) {
    rows = rows * scale;
  }
  if (positions == nullptr) {
    return rows;
  }
  return rows + (places.defined() ? at::embedding(positions->value, places)
                                  : positions->value.narrow(0, begin, tokens.size(1)));
}

at::Tensor loss(const at::Tensor& h, const at::Tensor& labels, Weight& output,
                const SharedRows& shared) {
  const at::Tensor all = labels.narrow(1, 1, labels.size(1) - 1).reshape({-1});
  const bool whole = !shared.any();
  const at::Tensor asked = (whole ? h.narrow(1, 0, h.size(1) - 1) : h).reshape({-1, h.size(2)});
  const at::Tensor wanted = whole ? all : shared.wanted(labels).reshape({-1});
  return run_fused(c10::make_intrusive<ChunkedLoss>(wanted, all, output, shared), {asked}).front();
}

at::Tensor logits(const at::Tensor& h, const Weight& output) {
  const at::NoGradGuard no_grad;
  return at::linear(h, output.value).to(at::kFloat);
}

}  // namespace tandem::aten
