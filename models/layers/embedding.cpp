#include "models/layers/embedding.hpp"

#include <utility>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>

#include "models/kernels/embedding.hpp"
#include "models/layers/fused_op.hpp"
#include "models/layers/weights.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

class Embedding final : public FusedOp {
 public:
  Embedding(at::Tensor tokens, Weight& table, Weight* positions, std::int64_t padding,
            std::int64_t begin, float scale, at::Tensor places)
      : tokens_(std::move(tokens)),
        table_(table),
        positions_(positions),
        padding_(padding),
        begin_(begin),
        scale_(scale),
        places_(std::move(places)) {}

  /// The table is an input only so that the output requires a gradient.
  Tensors forward(const Tensors&, bool) override {
    const at::Tensor& table = table_.value;
    at::Tensor out = at::empty({tokens_.size(0), tokens_.size(1), table.size(1)},
                               table.options().requires_grad(false));
    embedding_forward(rows(table), table.const_data_ptr(),
                      positions_ == nullptr ? nullptr : positions_->value[begin_].const_data_ptr(),
                      {tokens_.size(1), ids_of(places_)}, out.data_ptr());
    return {out};
  }

  Tensors backward(const Tensors& gradients) override {
    const at::Tensor dy = gradients[0].contiguous();
    const void* data = dy.const_data_ptr();
    if (table_.wants_grad) {
      embedding_backward(rows(table_.grad), data, padding_, table_.grad_written,
                         table_.grad.data_ptr());
      table_.grad_written = true;
    }
    if (positions_ != nullptr && positions_->wants_grad) {
      EmbeddingRows positions = rows(positions_->grad);
      if (places_.defined()) {  // they look up rows as tokens do, unscaled
        positions.tokens = ids_of(places_);
        positions.scale = 1;
        embedding_backward(positions, data, -1, positions_->grad_written,
                           positions_->grad.data_ptr());
      } else {
        position_backward(positions, data, tokens_.size(1), positions_->grad_written,
                          positions_->grad.data_ptr());
      }
      positions_->grad_written = true;
    }
    return {at::Tensor()};
  }

 private:
  [[nodiscard]] EmbeddingRows rows(const at::Tensor& table) const {
    return {dtype_of(table), tokens_.numel(), table.size(1), table.size(0),
            ids_of(tokens_), scale_,          token_tiles()};
  }
  static const std::int64_t* ids_of(const at::Tensor& ids) {
    return ids.defined() ? static_cast<const std::int64_t*>(ids.const_data_ptr()) : nullptr;
  }

  at::Tensor tokens_;
  Weight& table_;
  Weight* positions_;
  std::int64_t padding_, begin_;
  float scale_;
  at::Tensor places_;
};

/// Positions that are looked up, from 0 on. Throws user_error for one below 0.
std::int64_t longest_of(const at::Tensor& places, std::int64_t length) {
  if (!places.defined()) {
    return length;
  }
  const auto [least, most] = at::aminmax(places);
  if (least.item<std::int64_t>() < 0) {
    throw user_error("model",
                     "a token has position {}; positions count the tokens of each document from 0",
                     least.item<std::int64_t>());
  }
  return most.item<std::int64_t>() + 1;
}

}  // namespace

void check_embedded(const at::Tensor& tokens, std::int64_t entries, std::int64_t positions,
                    std::int64_t begin, const at::Tensor& places) {
  const at::Tensor contiguous = tokens.contiguous();
  const auto* ids = static_cast<const std::int64_t*>(contiguous.const_data_ptr());
  for (std::int64_t i = 0; i < contiguous.numel(); ++i) {
    if (ids[i] < 0 || ids[i] >= entries) {
      throw user_error("model",
                       "token id {} is outside the vocabulary of {}; the tokenizer does "
                       "not belong to this model",
                       ids[i], entries);
    }
  }
  const std::int64_t longest = positions > 0 ? longest_of(places, begin + tokens.size(1)) : 0;
  if (longest > positions) {
    throw user_error("model",
                     "a sequence of {} tokens, the model has {} positions; lower "
                     "--max_length",
                     longest, positions);
  }
}

at::Tensor embedding(const at::Tensor& tokens, Weight& table, Weight* positions,
                     std::optional<std::int64_t> padding, std::int64_t begin, float scale,
                     const at::Tensor& places) {
  TANDEM_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
               "token ids are int64 [B, T]");
  const at::Tensor ids = tokens.contiguous();
  check_embedded(ids, table.value.size(0), positions == nullptr ? 0 : positions->value.size(0),
                 begin, places);
  return run_fused(c10::make_intrusive<Embedding>(
                       ids, table, positions, padding.value_or(-1), begin, scale,
                       places.defined() ? places.contiguous() : at::Tensor()),
                   {table.value})
      .front();
}

}  // namespace tandem
