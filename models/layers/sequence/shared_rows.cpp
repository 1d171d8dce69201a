#include "models/layers/sequence/shared_rows.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/exchange/exchange_tensor.hpp"
#include "models/layers/fused_op.hpp"
#include "runtime/util/check.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kNoLabel = -100;

/// Heads of q, k and v that a rank has, in columns of qkv.
struct Columns {
  std::int64_t begin, count;
};

/// The columns of q, k and v of rank `place` of `ranks`.
std::array<Columns, 3> columns_of(const AttentionShape& shape, std::int64_t ranks,
                                  std::int64_t place) {
  const std::int64_t q = shape.heads / ranks * shape.head_dim;
  const std::int64_t heads = std::max<std::int64_t>(1, shape.kv_heads / ranks);
  const std::int64_t first = place * shape.kv_heads / ranks;
  const std::int64_t keys = shape.heads * shape.head_dim;
  const std::int64_t values = keys + shape.kv_heads * shape.head_dim;
  return {Columns{place * q, q},
          {keys + first * shape.head_dim, heads * shape.head_dim},
          {values + first * shape.head_dim, heads * shape.head_dim}};
}

/// Tokens of all columns to whole rows of this rank's columns, and back.
struct Layout {
  RankExchange* exchange;
  std::int64_t rows, own;  // B, tokens of the part
  std::int64_t ranks;
  std::vector<std::array<Columns, 3>> columns;  // [rank]; a context has the first of each alone
  std::size_t parts;                            // 3 of qkv, 1 of a context
  std::int64_t width;                           // of all columns

  [[nodiscard]] std::int64_t width_of_rank() const {
    std::int64_t sum = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      sum += columns[0][part].count;
    }
    return sum;
  }

  /// [B * own, width] -> [B * ranks * own, width of a rank].
  [[nodiscard]] at::Tensor to_rows(const at::Tensor& tokens) const {
    const std::int64_t narrow = width_of_rank();
    at::Tensor from = at::empty({ranks, rows * own, narrow}, tokens.options());
    for (std::int64_t r = 0; r < ranks; ++r) {
      std::int64_t at = 0;
      for (std::size_t part = 0; part < parts; ++part) {
        const Columns& c = columns[static_cast<std::size_t>(r)][part];
        from[r].narrow(1, at, c.count).copy_(tokens.narrow(1, c.begin, c.count));
        at += c.count;
      }
    }
    return exchange_tensor(*exchange, std::move(from))
        .view({ranks, rows, own, narrow})
        .transpose(0, 1)
        .reshape({rows * ranks * own, narrow});
  }

  /// [B * ranks * own, width of a rank] -> [B * own, width]; what came of several ranks is added.
  [[nodiscard]] at::Tensor to_tokens(const at::Tensor& whole) const {
    const std::int64_t narrow = width_of_rank();
    const at::Tensor into =
        exchange_tensor(*exchange, whole.reshape({rows, ranks, own, narrow}).transpose(0, 1))
            .view({ranks, rows * own, narrow});
    at::Tensor tokens = at::empty({rows * own, width}, whole.options());
    for (std::size_t part = 0; part < parts; ++part) {
      add_part(into, part, tokens);
    }
    return tokens;
  }

 private:
  void add_part(const at::Tensor& into, std::size_t part, at::Tensor& tokens) const {
    std::int64_t at = 0;
    for (std::size_t before = 0; before < part; ++before) {
      at += columns[0][before].count;
    }
    for (std::int64_t r = 0; r < ranks;) {
      const Columns& c = columns[static_cast<std::size_t>(r)][part];
      const at::Tensor to = tokens.narrow(1, c.begin, c.count);
      const at::Tensor first = into[r].narrow(1, at, c.count);
      std::int64_t end = r + 1;
      at::Tensor sum;  // in fp32: rounded once
      for (; end < ranks && columns[static_cast<std::size_t>(end)][part].begin == c.begin; ++end) {
        sum = (sum.defined() ? sum : first.to(at::kFloat)) +
              into[end].narrow(1, at, c.count).to(at::kFloat);
      }
      to.copy_(sum.defined() ? sum : first);
      r = end;
    }
  }
};

class Exchanged final : public FusedOp {
 public:
  Exchanged(Layout layout, bool to_rows) : layout_(std::move(layout)), to_rows_(to_rows) {}

  Tensors forward(const Tensors& inputs, bool /*keep*/) override {
    return {to_rows_ ? layout_.to_rows(inputs[0].detach()) : layout_.to_tokens(inputs[0].detach())};
  }
  Tensors backward(const Tensors& gradients) override {
    return {to_rows_ ? layout_.to_tokens(gradients[0]) : layout_.to_rows(gradients[0])};
  }

 private:
  Layout layout_;
  bool to_rows_;
};

template <class T>
std::vector<T> gathered(RankExchange& exchange, std::span<const T> mine) {
  const auto ranks = static_cast<std::size_t>(exchange.ranks());
  std::vector<T> from;
  for (std::size_t r = 0; r < ranks; ++r) {
    from.insert(from.end(), mine.begin(), mine.end());
  }
  std::vector<T> into(from.size());
  exchange.all_to_all(std::as_bytes(std::span(from)).data(),
                      std::as_writable_bytes(std::span(into)).data(), mine.size_bytes());
  return into;
}

}  // namespace

SharedRows::SharedRows(const SegmentContext& context) {
  if (context.batch.part.count == 0 || context.head_output == HeadOutput::kLogits) {
    return;
  }
  exchange_ = context.exchange;
  part_ = context.batch.part;
  ranks_ = exchange_ != nullptr ? exchange_->ranks() : 1;
  place_ = part_.begin / part_.count;
}

at::Tensor SharedRows::part_of(const at::Tensor& rows) const {
  return cut() && rows.defined() ? rows.narrow(1, part_.begin, part_.count) : rows;
}

at::Tensor SharedRows::wanted(const at::Tensor& labels) const {
  TANDEM_CHECK(any(), "of whole rows the head shifts labels itself");
  const bool last = place_ + 1 == ranks_;
  at::Tensor wanted = at::full({labels.size(0), part_.count}, kNoLabel, labels.options());
  const std::int64_t count = part_.count - (last ? 1 : 0);
  wanted.narrow(1, 0, count).copy_(labels.narrow(1, part_.begin + 1, count));
  return wanted;
}

AttentionShape SharedRows::share_of(const AttentionShape& shape) const {
  AttentionShape share = shape;
  if (cut()) {
    share.heads = shape.heads / ranks_;
    share.kv_heads = std::max<std::int64_t>(1, shape.kv_heads / ranks_);
    share.first_head = place_ * share.heads;
    share.padding = part_.count * ranks_ - part_.length;
  }
  return share;
}

at::Tensor SharedRows::to_heads(const at::Tensor& qkv, std::int64_t own_length,
                                const AttentionShape& shape) const {
  if (!any()) {
    return qkv;
  }
  Layout layout{.exchange = exchange_,
                .rows = qkv.size(0) / own_length,
                .own = own_length,
                .ranks = ranks_,
                .columns = {},
                .parts = 3,
                .width = qkv.size(1)};
  for (std::int64_t r = 0; r < ranks_; ++r) {
    layout.columns.push_back(columns_of(shape, ranks_, r));
  }
  return run_fused(c10::make_intrusive<Exchanged>(std::move(layout), true), {qkv}).front();
}

at::Tensor SharedRows::to_tokens(const at::Tensor& context, std::int64_t own_length,
                                 const AttentionShape& shape) const {
  if (!any()) {
    return context;
  }
  Layout layout{.exchange = exchange_,
                .rows = context.size(0) / (own_length * ranks_),
                .own = own_length,
                .ranks = ranks_,
                .columns = {},
                .parts = 1,
                .width = shape.heads * shape.head_dim};
  for (std::int64_t r = 0; r < ranks_; ++r) {
    layout.columns.push_back(columns_of(shape, ranks_, r));
  }
  return run_fused(c10::make_intrusive<Exchanged>(std::move(layout), false), {context}).front();
}

DropMask SharedRows::of_tokens(DropMask mask) const {
  if (cut()) {
    mask.rows = {
        .begin = mask.rows.begin, .run = part_.count, .stride = part_.length, .first = part_.begin};
  }
  return mask;
}

DropMask SharedRows::of_heads(DropMask mask, const AttentionShape& shape) const {
  if (cut()) {
    const std::int64_t heads = shape.heads / ranks_;
    mask.rows = {.begin = mask.rows.begin,
                 .run = part_.count * ranks_,
                 .count = heads,
                 .step = shape.heads,
                 .stride = part_.length,
                 .first = place_ * heads * part_.length};
  }
  return mask;
}

std::vector<double> SharedRows::of_all(std::span<const double> mine) const {
  return gathered(*exchange_, mine);
}

std::vector<std::uint64_t> SharedRows::of_all(std::span<const std::uint64_t> mine) const {
  return gathered(*exchange_, mine);
}

at::Tensor SharedRows::sum_of_all(const at::Tensor& sums) const {
  if (!any()) {
    return sums;
  }
  const at::Tensor mine = sums.to(at::kCPU).contiguous();
  const auto count = static_cast<std::size_t>(mine.numel());
  const std::vector<double> all =
      of_all({static_cast<const double*>(mine.const_data_ptr()), count});
  at::Tensor sum = at::zeros(mine.sizes(), mine.options());
  auto* const to = static_cast<double*>(sum.data_ptr());
  for (std::size_t i = 0; i < all.size(); ++i) {
    to[i % count] += all[i];
  }
  return sum.to(sums.device());
}

}  // namespace tandem
