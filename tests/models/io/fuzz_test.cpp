// Damaged files never crash: whatever bytes they hold, reading them works or ends with an Error.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/storage/safetensors.hpp"
#include "models/causal_lm.hpp"
#include "models/data/alpaca.hpp"
#include "models/io/hf_config.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/weights_writer.hpp"
#include "tests/models/io/tokenizer/tiny_tokenizer.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::fuzz;

TEST(IoFuzz, Safetensors) {
  const test::TempDir dir;
  const std::string whole =
      safetensors_header(std::vector<TensorPlan>{{"a.weight", TensorType::kF32, {4, 2}},
                                                 {"b", TensorType::kBF16, {3}},
                                                 {"c", TensorType::kF16, {}}}) +
      std::string(40, '\x3D');
  fuzz(whole, 1500, [&](const std::string& text) {
    test::put(dir / "f.safetensors", text);
    const SafetensorsFile file = SafetensorsFile::open(dir / "f.safetensors");
    for (const TensorInfo& tensor : file.tensors()) {
      ASSERT_LE(tensor.begin_byte + tensor.size_bytes, text.size());
      ASSERT_EQ(file.bytes(tensor).size(), tensor.size_bytes);
      if (is_float(tensor.type)) {
        std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
        file.read_f32(tensor, 0, tensor.numel(), values.data());
      }
    }
  });
}

TEST(IoFuzz, Tokenizer) {
  test::TinyTokenizer tiny;
  tiny.vocabulary += R"(,"ab":256,"abc":257)";
  tiny.added_tokens =
      R"({"id": 258, "content": "<s>", "lstrip": true, "rstrip": true, "special": true})";
  tiny.merges = R"("a b", ["ab", "c"])";
  tiny.pre_tokenizer =
      R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": " ?\\p{L}+|\\s+(?!\\S)|[^\\s]"},
      "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]})";
  tiny.members =
      R"(, "normalizer": {"type": "NFC"}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
      {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [258]}}})";
  ASSERT_NO_THROW((void)Tokenizer::parse(tiny.json(), "t"));
  fuzz(tiny.json(), 4000, [](const std::string& text) {
    const Tokenizer tokenizer = Tokenizer::parse(text, "t");
    const auto ids = tokenizer.encode("abc <s> e\u0301 don't 123 \u4e2d\n\n x", true);
    (void)tokenizer.decode(ids);
  });
}

TEST(IoFuzz, Config) {
  const std::string config =
      R"({"model_type": "qwen3", "hidden_act": "silu", "vocab_size": 11, "hidden_size": 8,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "eos_token_id": [1, 2],
    "intermediate_size": 10, "max_position_embeddings": 32, "torch_dtype": "float32", "rope_scaling": null})";
  fuzz(config, 4000, [](const std::string& text) {
    const HfConfig read = parse_hf_config(text, "config.json");
    ASSERT_EQ(parse_hf_config(hf_config_json(read, "bfloat16"), "again").dtype, "bfloat16");
  });
}

TEST(IoFuzz, Dataset) {
  const test::TempDir dir;
  const std::string lines =
      "{\"instruction\": \"i\", \"input\": \"\", \"output\": \"\\u00e4\"}\n{\"instruction\": "
      "\"j\", \"input\": "
      "\"x\", \"output\": \"p\"}\n";
  for (const char* name : {"d.jsonl", "d.json"}) {
    const std::string whole =
        std::string_view(name) == "d.json" ? "[" + lines.substr(0, lines.find('\n')) + "]" : lines;
    fuzz(whole, 500, [&](const std::string& text) {
      test::put(dir / name, text);
      for (const AlpacaRecord& record : read_alpaca(dir / name)) {
        (void)alpaca_text(record);
      }
    });
  }
}

}  // namespace
}  // namespace tandem
