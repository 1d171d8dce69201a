// models/families/families.hpp — the known architectures: each a description of one decoder.
#pragma once

#include "models/io/hf_config.hpp"
#include "models/layers/decoder.hpp"

namespace tandem {

DecoderSpec describe_qwen3(const HfConfig& config);
DecoderSpec describe_gpt2(const HfConfig& config);

}  // namespace tandem
