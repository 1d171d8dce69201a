// models/families/families.hpp — the known architectures: each a description of one decoder.
#pragma once

#include "models/io/hf_config.hpp"
#include "models/transformer/decoder.hpp"

namespace tandem {

DecoderSpec describe_qwen3(const HfConfig& config);
DecoderSpec describe_gpt2(const HfConfig& config);
DecoderSpec describe_llama(const HfConfig& config);
DecoderSpec describe_phi3(const HfConfig& config);
DecoderSpec describe_seed_oss(const HfConfig& config);
DecoderSpec describe_qwen3_moe(const HfConfig& config);
DecoderSpec describe_gpt_oss(const HfConfig& config);

/// What the families named like Llama share: names of a layer without norms of q and k, without its
/// MLP.
BlockNames llama_attention_names(std::int64_t layer, const HfConfig& config);
/// The same with a gated MLP.
BlockNames llama_names(std::int64_t layer, const HfConfig& config);
/// The decoder around such layers.
DecoderSpec llama_decoder(const HfConfig& config);

}  // namespace tandem
