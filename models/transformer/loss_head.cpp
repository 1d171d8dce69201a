#include "models/transformer/loss_head.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "actors/kernels/exact_sum.hpp"
#include "engine/tensors/tensor_memory.hpp"
#include "models/kernels/cross_entropy.hpp"
#include "models/kernels/embedding.hpp"
#include "models/layers/fused_op.hpp"
#include "models/layers/gemm.hpp"
#include "models/layers/token_tiles.hpp"
#include "models/transformer/aten_memory.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kIgnored = -100;
constexpr std::int64_t kChunkBytes = 32 << 20;  // of fp32 logits
constexpr std::int64_t kChunkRowsMin = 64;
constexpr std::int64_t kChunkRowsMax = 1024;

/// The rows that have a label, and the labels. The size of a chunk depends on the vocabulary alone.
struct LabelledRows {
  std::vector<std::int64_t> rows, labels;

  /// `all`: of whole rows, where this rank has a part of each.
  std::int64_t all = 0;
  std::vector<std::int64_t> ends;  // of the blocks in which sums over tokens are made

  LabelledRows(const at::Tensor& labels_BT, std::int64_t vocabulary, const SharedRows& shared) {
    const at::Tensor contiguous = labels_BT.contiguous();
    const auto* label = static_cast<const std::int64_t*>(contiguous.const_data_ptr());
    const std::int64_t length = contiguous.size(1);
    all = count_labels(contiguous, vocabulary);
    const RowPart part = shared.part(length);
    const TokenTiles blocks = token_tiles();
    const std::int64_t block = blocks.length == 0 ? part.count : blocks.length / blocks.count;
    for (std::int64_t b = 0; b < blocks.count; ++b) {
      const std::int64_t begin = part.begin + b * block;
      const std::int64_t end = std::min(begin + block, length - 1);
      for (std::int64_t row = 0; row * length < contiguous.numel(); ++row) {
        for (std::int64_t token = begin; token < end; ++token) {
          const std::int64_t asked = label[row * length + token + 1];
          if (asked != kIgnored) {
            rows.push_back(row * part.count + token - part.begin);
            labels.push_back(asked);
          }
        }
      }
      ends.push_back(count());
    }
  }

  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(rows.size()); }
};

std::int64_t chunk_rows(std::int64_t vocabulary) {
  const std::int64_t fitting = kChunkBytes / (4 * vocabulary) / 16 * 16;
  return std::clamp(fitting, kChunkRowsMin, kChunkRowsMax);
}

class LossHead final : public FusedOp {
 public:
  LossHead(at::Tensor labels, Norm norm, JoinedWeights weight, const SharedRows& shared)
      : labels_(std::move(labels)),
        norm_(std::move(norm)),
        weight_(std::move(weight)),
        shared_(shared) {}

  Tensors forward(const Tensors& inputs, bool keep) override {
    const at::Tensor x = inputs[0].view({-1, inputs[0].size(-1)});
    const at::Tensor w = weight_.value();
    const LabelledRows labelled(labels_, w.size(0), shared_);
    all_ = labelled.all;
    index_ = at::empty({labelled.count()}, labels_.options());
    std::ranges::copy(labelled.rows, index_.data_ptr<std::int64_t>());
    h_ = norm_.forward(x, index_);
    if (keep) {
      x_ = inputs[0].detach();
      ends_ = labelled.ends;
    }
    std::vector<double> losses(labelled.rows.size());
    const std::int64_t rows = std::min(chunk_rows(w.size(0)), labelled.count());
    const Buffers buffers(rows, w);
    std::int64_t begin = 0;
    for (const std::int64_t end : labelled.ends) {
      at::Tensor dw;  // undefined: not asked for
      if (keep && weight_.wants_gradient()) {
        dw = at::empty(w.sizes(), w.options().dtype(at::kFloat));
        if (begin == end) {
          dw.zero_();
        }
        dw_.push_back(dw);
      }
      for (const std::int64_t first = begin; begin < end; begin += std::min(rows, end - begin)) {
        run_chunk(labelled, begin, std::min(rows, end - begin), w, buffers, keep, losses.data(), dw,
                  begin == first);
      }
    }
    if (!keep) {
      h_.reset();
    }
    const double mean = all_ == 0 ? 0.0 : sum_of(losses) / static_cast<double>(all_);
    return {at::full({}, mean, x.options().dtype(at::kFloat))};
  }

  Tensors backward(const Tensors& gradients) override {
    const float scale = gradients[0].item<float>() * (mean_scale(all_) / chunk_scale());
    at::Tensor dx = at::zeros_like(x_);
    if (index_.numel() == 0) {
      weight_.write_zero_gradient();
    } else {
      if (!dw_.empty()) {
        const bool in_blocks = token_tiles().length > 0;  // whose sums are scaled, not the ranks'
        if (in_blocks) {
          for (const at::Tensor& sum : dw_) {
            scale_in_place(DType::kF32, sum.numel(), scale, sum.data_ptr());
          }
        }
        for (std::size_t apart = 1; apart < dw_.size(); apart *= 2) {
          for (std::size_t i = 0; i < dw_.size(); i += 2 * apart) {
            dw_[i].add_(std::exchange(dw_[i + apart], {}));
          }
        }
        weight_.write_gradient(static_cast<const float*>(dw_[0].const_data_ptr()),
                               in_blocks ? 1.0F : scale);
        dw_.clear();
      }
      if (scale != 1.0F) {
        scale_in_place(dtype_of(h_), h_.numel(), scale, h_.data_ptr());
      }
    }
    const std::int64_t width = x_.size(-1);
    const auto blocks = static_cast<std::int64_t>(ends_.size());
    TiledGradients gradients_of(index_.numel(), index_.numel() > kTileTokens || blocks > 1, blocks);
    const Norm norm = gradients_of.of(norm_);
    std::int64_t begin = 0;
    for (const std::int64_t end : ends_) {
      for_tiles_between(begin, end, [&](std::int64_t first, std::int64_t count) {
        norm.backward(x_.view({-1, width}), h_.narrow(0, first, count), {}, dx.view({-1, width}),
                      index_.narrow(0, first, count));
      });
      begin = end;
      gradients_of.tile_ends();
    }
    gradients_of.write();
    return {dx};
  }

 private:
  /// Logits of a chunk, and their gradient in the weights' type: one memory where the types agree.
  /// In bf16 the logits stay fp32.
  struct Buffers {
    at::Tensor logits, gradient;

    Buffers(std::int64_t rows, const at::Tensor& w) {
      gradient = at::empty({rows, w.size(0)}, w.options());
      const bool wide = w.scalar_type() == at::kBFloat16;
      logits = wide ? at::empty({rows, w.size(0)}, w.options().dtype(at::kFloat)) : gradient;
    }
  };

  /// The exact sum of the losses of all ranks that share the rows: its bits do not depend on them.
  [[nodiscard]] double sum_of(const std::vector<double>& losses) const {
    ExactSum sum;
    for (const double loss : losses) {
      sum.add(std::max(loss, 0.0));
    }
    if (shared_.any()) {
      const std::vector<std::uint64_t> limbs = shared_.of_all(sum.limbs());
      sum = {};
      for (std::size_t at = 0; at < limbs.size(); at += ExactSum::kLimbs) {
        sum.merge(ExactSum::from_limbs(std::span(limbs).subspan(at).first<ExactSum::kLimbs>()));
      }
    }
    return sum.value();
  }

  static float mean_scale(std::int64_t count) {
    return count == 0 ? 1.0F : 1.0F / static_cast<float>(count);
  }
  /// Factor of the chunks' gradients. That of the mean would push fp16's below its least number;
  /// there the loss scale, known in backward only, has to come first. 1/16 leaves room for sums
  /// over tens of thousands of rows.
  [[nodiscard]] float chunk_scale() const {
    return h_.scalar_type() == at::kHalf ? 1.0F / 16 : mean_scale(all_);
  }

  /// Rows [begin, begin + rows) of h_: their losses, dw = or += dlogits^T h, and h_ becomes dh.
  void run_chunk(const LabelledRows& labelled, std::int64_t begin, std::int64_t rows,
                 const at::Tensor& w, const Buffers& buffers, bool keep, double* losses,
                 const at::Tensor& dw, bool first) const {
    const at::Tensor h = h_.narrow(0, begin, rows);
    const at::Tensor logits = buffers.logits.narrow(0, 0, rows);
    const at::Tensor gradient = buffers.gradient.narrow(0, 0, rows);
    matmul(logits, h, w.t());
    cross_entropy(dtype_of(logits), logits.data_ptr(), dtype_of(gradient),
                  keep ? gradient.data_ptr() : nullptr, labelled.labels.data() + begin, rows,
                  w.size(0), chunk_scale(), losses + begin);
    if (keep) {
      if (dw.defined()) {
        matmul(dw, gradient.t(), h, first ? MatmulStart::kZero : MatmulStart::kAccumulate);
      }
      matmul(h, gradient, w);
    }
  }

  at::Tensor labels_;
  Norm norm_;
  JoinedWeights weight_;
  SharedRows shared_;
  std::int64_t all_ = 0;            // labels
  std::vector<std::int64_t> ends_;  // of the blocks' rows in index_
  at::Tensor x_, index_, h_;
  Tensors dw_;  // of each block; a number of them that is a power of two
};

}  // namespace

std::int64_t count_labels(const at::Tensor& labels, std::int64_t vocabulary) {
  const at::Tensor contiguous = labels.contiguous();
  const auto* label = static_cast<const std::int64_t*>(contiguous.const_data_ptr());
  const std::int64_t length = contiguous.size(1);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < contiguous.numel(); ++i) {
    if (i % length == 0 || label[i] == kIgnored) {  // no token is asked for a row's first
      continue;
    }
    if (label[i] < 0 || label[i] >= vocabulary) {
      throw user_error("model",
                       "label {} is outside the vocabulary of {}; labels are token ids "
                       "or {}",
                       label[i], vocabulary, kIgnored);
    }
    ++count;
  }
  return count;
}

at::Tensor loss_head(const at::Tensor& x, const at::Tensor& labels, Norm norm, JoinedWeights weight,
                     const SharedRows& shared) {
  TANDEM_CHECK(labels.defined() && labels.dim() == 2 && labels.scalar_type() == at::kLong,
               "labels are int64 [B, T]");
  return run_fused(
             c10::make_intrusive<LossHead>(labels, std::move(norm), std::move(weight), shared), {x})
      .front();
}

ActivationBytes loss_head_activations(std::int64_t hidden, std::int64_t vocabulary,
                                      const BatchShape& batch, bool learns) {
  if (batch.accelerator) {
    return aten::loss_memory(hidden, vocabulary, batch, learns);
  }
  const auto size = static_cast<std::int64_t>(bytes_of(batch.type));
  const std::int64_t labelled =  // no token asks for a row's first label
      std::max<std::int64_t>(0, batch.tokens() - (batch.sharers == 1 ? batch.rows : 0));
  const std::int64_t rows = std::min(chunk_rows(vocabulary), labelled);
  const bool wide = batch.type == DType::kBF16;
  const std::int64_t gradient = learns ? vocabulary * hidden * 4 : 0;  // of a block
  ActivationBytes bytes{
      .kept = std::max<std::int64_t>(1, batch.blocks) * gradient + labelled * (hidden * size + 8),
      .forward = rows * vocabulary * (size + (wide ? 4 : 0)) + labelled * 24,
      .backward = batch.tokens() * hidden * size,
      .loss = true};
  bytes.scratch = packed_bytes(batch.type, vocabulary * hidden);
  bytes.spare = kept_of_tensor(gradient) + kept_of_tensor(labelled * hidden * size) +
                kept_of_tensor(bytes.forward);
  return bytes;
}

at::Tensor logits_head(const at::Tensor& x, const Norm& norm, const JoinedWeights& weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor w = weight.value();
  const at::Tensor h = norm.forward(x.view({-1, x.size(-1)}));
  const bool wide = w.scalar_type() == at::kBFloat16;
  at::Tensor logits =
      at::empty({h.size(0), w.size(0)}, wide ? w.options().dtype(at::kFloat) : w.options());
  matmul(logits, h, w.t());
  return logits.to(at::kFloat).view({x.size(0), x.size(1), w.size(0)});
}

}  // namespace tandem
