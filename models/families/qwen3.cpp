// models/families/qwen3.cpp — Qwen3 (dense): Llama's layer with norms of q and k.
#include <fmt/format.h>

#include "models/families/families.hpp"

namespace tandem {

DecoderSpec describe_qwen3(const HfConfig& c) {
  DecoderSpec spec = llama_decoder(c);
  spec.block_names = [c](std::int64_t layer) {
    BlockNames n = llama_names(layer, c);
    const std::string attention = fmt::format("model.layers.{}.self_attn.", layer);
    n.qk_norm = {attention + "q_norm.weight", attention + "k_norm.weight"};
    return n;
  };
  return spec;
}

}  // namespace tandem
