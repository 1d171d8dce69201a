#include "models/layers/aten/experts.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "models/layers/fused_op.hpp"

namespace tandem::aten {
namespace {

constexpr std::int64_t kBlockRowsMin = 16;
constexpr std::int64_t kBlockRowsMax = 128;
constexpr std::int64_t kChunkBytes = std::int64_t{256} << 20;  // of matrices taken for blocks

std::int64_t block_rows(std::int64_t rows, std::int64_t experts) noexcept {
  return std::clamp(rows / experts / kBlockRowsMin * kBlockRowsMin, kBlockRowsMin, kBlockRowsMax);
}

/// Where rows lie: blocks of `rows` of one expert, padded with rows that belong to no token.
struct Blocks {
  std::int64_t rows = 0, count = 0;
  at::Tensor expert;    // int64 [count]
  at::Tensor position;  // int64 [tokens * chosen]: of each token's rows
  at::Tensor token;     // int64 [count * rows]; padding: the number of tokens
};

/// The blocks of the `chosen` experts for each token, int64 [tokens, chosen].
Blocks blocks_of(const at::Tensor& chosen, std::int64_t experts) {
  const std::int64_t tokens = chosen.size(0);
  const std::int64_t rows = chosen.numel();
  Blocks b;
  b.rows = block_rows(rows, experts);
  b.count = padded_expert_rows(rows, experts) / b.rows;
  // 0 or 1
  const at::Tensor takes = at::zeros({tokens, experts}, chosen.options()).scatter_(1, chosen, 1);
  const at::Tensor blocks = (takes.sum(0) + (b.rows - 1)).floor_divide(b.rows);
  const at::Tensor ends = blocks.cumsum(0);
  const at::Tensor rank = takes.cumsum(0).gather(1, chosen) - 1;
  b.position =
      ((ends - blocks).mul(b.rows).index_select(0, chosen.reshape({-1})) + rank.reshape({-1}));
  const at::Tensor numbers = at::arange(b.count, chosen.options());
  b.expert = at::searchsorted(ends, numbers, false, /*right=*/true).clamp_max(experts - 1);
  const at::Tensor of_row =
      at::arange(tokens, chosen.options()).repeat_interleave(chosen.size(1), 0, rows);
  b.token = at::full({b.count * b.rows}, tokens, chosen.options()).scatter_(0, b.position, of_row);
  return b;
}

/// One of the two linear layers of all experts: [experts, in, out].
struct Matrices {
  // [experts][joined along the output], or one tensor of all
  std::vector<std::vector<Weight*>> parts;
  Weight* bias = nullptr;
  bool stacked = false;

  [[nodiscard]] at::Tensor value() const {
    if (stacked) {
      return parts[0][0]->value.detach();
    }
    std::vector<at::Tensor> all;
    for (const auto& expert : parts) {
      std::vector<at::Tensor> rows;
      for (const Weight* part : expert) {
        rows.push_back(part->value.detach());
      }
      all.push_back(at::cat(rows));
    }
    return at::stack(all).transpose(1, 2);
  }

  /// From the gradient of value(), fp32.
  void write_gradient(const at::Tensor& sums) const {
    if (stacked) {
      return tandem::write_gradient(*parts[0][0], sums);
    }
    for (std::size_t e = 0; e < parts.size(); ++e) {
      std::int64_t column = 0;
      for (Weight* part : parts[e]) {
        const std::int64_t columns = part->value.size(0);
        tandem::write_gradient(
            *part, sums.select(0, static_cast<std::int64_t>(e)).narrow(1, column, columns).t());
        column += columns;
      }
    }
  }
};

class BlockExperts final : public FusedOp {
 public:
  BlockExperts(Matrices up, Matrices down, ExpertShape shape, Result result)
      : up_(std::move(up)), down_(std::move(down)), shape_(shape), result_(result) {}

  /// h, weights [tokens, chosen], chosen [tokens, chosen]
  Tensors forward(const Tensors& inputs, bool keep) override {
    h_ = inputs[0].detach();
    weights_ = inputs[1].detach();
    blocks_ = blocks_of(inputs[2], shape_.count);
    u_ = matmul(up_, rows_of(h_), false);
    if (result_ == Result::kUnread) {
      return {without_memory(h_, h_.size(1))};
    }
    const at::Tensor y = matmul(down_, activation(shape_.activation, u_), false);
    const at::Tensor out = at::mul(of_tokens(y), weights_.unsqueeze(2)).sum(1);
    if (!keep) {
      u_.reset();
      h_.reset();
    }
    return {out};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor weights = at::zeros({blocks_.count * blocks_.rows}, weights_.options())
                                   .scatter_(0, blocks_.position, weights_.reshape({-1}))
                                   .unsqueeze(1);
    const at::Tensor dy = rows_of(gradients[0]);  // of weight * y
    const at::Tensor da = matmul(down_, dy, true);
    const at::Tensor a = activation(shape_.activation, u_);
    at::Tensor slopes = (a * da).sum(1);
    if (down_.bias != nullptr) {
      slopes += (bias_rows(down_) * dy).sum(1);
    }
    write_gradients(down_, a * weights, dy, dy * weights);
    const at::Tensor du = activation_gradient(shape_.activation, u_, da * weights);
    u_.reset();
    write_gradients(up_, rows_of(h_), du, du);
    const at::Tensor dh = of_tokens(matmul(up_, du, true)).sum(1);
    return {dh, slopes.index_select(0, blocks_.position).view_as(weights_), at::Tensor()};
  }

 private:
  /// Rows of tokens in blocks; padding is zero.
  [[nodiscard]] at::Tensor rows_of(const at::Tensor& tokens) const {
    return at::cat({tokens, at::zeros({1, tokens.size(1)}, tokens.options())})
        .index_select(0, blocks_.token);
  }
  /// [tokens, chosen, width]
  [[nodiscard]] at::Tensor of_tokens(const at::Tensor& rows) const {
    return rows.index_select(0, blocks_.position)
        .view({weights_.size(0), weights_.size(1), rows.size(1)});
  }
  [[nodiscard]] at::Tensor bias_rows(const Matrices& m) const {
    return m.bias->value.detach()
        .index_select(0, blocks_.expert)
        .repeat_interleave(blocks_.rows, 0, blocks_.count * blocks_.rows);
  }
  /// Blocks whose matrices are taken at once.
  [[nodiscard]] std::int64_t chunk(const at::Tensor& matrices) const {
    return std::max<std::int64_t>(
        1, kChunkBytes / (matrices.size(1) * matrices.size(2) * matrices.element_size()));
  }

  [[nodiscard]] at::Tensor matmul(const Matrices& m, const at::Tensor& rows,
                                  bool transposed) const {
    const at::Tensor all = transposed ? m.value().transpose(1, 2) : m.value();
    const at::Tensor x = rows.view({blocks_.count, blocks_.rows, rows.size(1)});
    std::vector<at::Tensor> out;
    for (std::int64_t begin = 0; begin < blocks_.count; begin += chunk(all)) {
      const std::int64_t count = std::min(chunk(all), blocks_.count - begin);
      out.push_back(at::bmm(x.narrow(0, begin, count),
                            all.index_select(0, blocks_.expert.narrow(0, begin, count))));
    }
    const at::Tensor y = at::cat(out).view({blocks_.count * blocks_.rows, all.size(2)});
    return m.bias == nullptr || transposed ? y : y + bias_rows(m);
  }

  /// d(matrices) = x^T dy by expert, d(bias) = sums of `counted`. Blocks are added by a matmul
  /// with zeros and ones, whose order is fixed; an addition at indices would not have one on a GPU.
  void write_gradients(const Matrices& m, const at::Tensor& x, const at::Tensor& dy,
                       const at::Tensor& counted) const {
    const at::Tensor belongs =
        at::zeros({shape_.count, blocks_.count}, dy.options().dtype(at::kFloat))
            .scatter_(0, blocks_.expert.unsqueeze(0), 1);
    const at::Tensor x_blocks = x.view({blocks_.count, blocks_.rows, x.size(1)});
    const at::Tensor dy_blocks = dy.view({blocks_.count, blocks_.rows, dy.size(1)});
    at::Tensor sums = at::zeros({shape_.count, x.size(1) * dy.size(1)}, belongs.options());
    const std::int64_t step = std::max<std::int64_t>(1, kChunkBytes / (4 * x.size(1) * dy.size(1)));
    for (std::int64_t begin = 0; begin < blocks_.count; begin += step) {
      const std::int64_t count = std::min(step, blocks_.count - begin);
      const at::Tensor parts = at::bmm(x_blocks.narrow(0, begin, count).transpose(1, 2),
                                       dy_blocks.narrow(0, begin, count))
                                   .to(at::kFloat)
                                   .view({count, -1});
      sums.addmm_(belongs.narrow(1, begin, count), parts);
    }
    m.write_gradient(sums.view({shape_.count, x.size(1), dy.size(1)}));
    if (m.bias != nullptr) {
      const at::Tensor of_blocks =
          counted.to(at::kFloat).view({blocks_.count, blocks_.rows, -1}).sum(1);
      tandem::write_gradient(*m.bias, at::mm(belongs, of_blocks));
    }
  }

  Matrices up_, down_;
  ExpertShape shape_;
  Result result_;
  Blocks blocks_;
  at::Tensor h_, weights_, u_;
};

}  // namespace

std::int64_t padded_expert_rows(std::int64_t rows, std::int64_t experts) noexcept {
  const std::int64_t block = block_rows(rows, experts);
  return (rows / block + experts) * block;
}

at::Tensor experts(const at::Tensor& h, const at::Tensor& logits, std::span<Weight* const> weights,
                   const ExpertShape& shape, Result result) {
  // A stable sort takes the first of equal ones, as the router's kernel does; topk does not say.
  const at::Tensor chosen = std::get<1>(at::sort(logits.detach(), /*stable=*/true, -1, true))
                                .narrow(1, 0, shape.per_token)
                                .contiguous();
  const at::Tensor wide = logits.to(at::kFloat);
  const at::Tensor shares = (shape.normalised ? at::softmax(wide.gather(1, chosen), -1)
                                              : at::softmax(wide, -1).gather(1, chosen))
                                .to(h.scalar_type());
  Matrices up;
  Matrices down;
  if (shape.layout == ExpertLayout::kStacked) {
    up = {{{weights[0]}}, weights[1], true};
    down = {{{weights[2]}}, weights[3], true};
  } else {
    for (std::size_t i = 0; i < weights.size(); i += 3) {
      up.parts.push_back({weights[i], weights[i + 1]});
      down.parts.push_back({weights[i + 2]});
    }
  }
  return run_fused(c10::make_intrusive<BlockExperts>(std::move(up), std::move(down), shape, result),
                   {h, shares, chosen})
      .front();
}

}  // namespace tandem::aten
