// tests/models/small_models.hpp — a language model with random weights and a few texts to learn,
// for tests that train one in several ways.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "models/causal_lm.hpp"
#include "models/data/memory_records.hpp"
#include "models/data/token_dataset.hpp"
#include "models/pretrained.hpp"

namespace tandem::test {

/// A config.json of a small model; `more`: its fields beside the sizes.
inline HfConfig small_config(std::string_view more, int layers, std::int64_t kv_heads) {
  return parse_hf_config(
      fmt::format(R"({{{}, "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48,
                       "num_hidden_layers": {}, "num_attention_heads": 4,
                       "num_key_value_heads": {}, "head_dim": 8, "hidden_act": "silu",
                       "max_position_embeddings": 64, "initializer_range": 0.2}})",
                  more, layers, kv_heads),
      "config.json");
}

/// Makes the model of a config.json; dropout and weights have fixed seeds.
inline Model small_model(const HfConfig& config) {
  Model model = make_causal_lm(config, {}, 5);
  model.source = random_weights(config, 1);
  return model;
}

/// Makes `count` texts of tokens below `vocabulary`, none of them 0, which is padding. length(i) is
/// the length of text i; learns(i, t, length) says whether its token t is learnt. `room`: tokens of
/// a row into which texts are packed; 0: each text is a row.
template <class Length, class Learns>
std::shared_ptr<const Dataset> small_texts(std::int32_t count, std::int32_t vocabulary,
                                           std::int64_t room, Length length, Learns learns) {
  const auto records = std::make_shared<MemoryRecords>();
  for (std::int32_t i = 0; i < count; ++i) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(length(i)));
    std::vector<std::uint8_t> learnt(ids.size());
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const std::size_t number = t * t + t * static_cast<std::size_t>(i) * 5;
      ids[t] = static_cast<std::int32_t>(number % static_cast<std::size_t>(vocabulary - 1)) + 1;
      learnt[t] = learns(i, t, ids.size()) ? 1 : 0;
    }
    records->add(ids, learnt);
  }
  return room > 0 ? std::make_shared<const TokenDataset>(
                        records, 0, PackingOptions{.kind = Packing::kBfd, .room = room, .seed = 3})
                  : std::make_shared<const TokenDataset>(records, 0);
}

inline bool learns_all(std::int32_t /*text*/, std::size_t /*token*/, std::size_t /*length*/) {
  return true;
}

}  // namespace tandem::test
