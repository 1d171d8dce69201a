// config.json of all families: what is accepted is consistent, and written again it is accepted.
#include "models/causal_lm.hpp"
#include "models/io/hf_fields.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const HfConfig config = parse_hf_config(input, "config.json");
  expect(config.head_dim >= 1 && config.head_dim <= kMostHeadSize, "a head has a size");
  expect(config.num_attention_heads % config.num_key_value_heads == 0, "heads divide");
  expect(!config.pad_token_id || *config.pad_token_id < config.vocab_size, "ids are tokens");
  const HfConfig again = parse_hf_config(hf_config_json(config, "bfloat16"), "written");
  expect(again.dtype == "bfloat16" && again.hidden_size == config.hidden_size,
         "a config that was written is the one that was read");
}

}  // namespace tandem::fuzz
