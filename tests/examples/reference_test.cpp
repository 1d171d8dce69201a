// Each family against Transformers: reference folders made by tools/make_reference.py, then `tandem parity` on them.
#include "tests/examples/trainer_fixture.hpp"

namespace tandem {
namespace {

struct Reference {
  const char* name;
  const char* flags;  // of make_reference.py
};

class References : public TrainerTest, public testing::WithParamInterface<Reference> {};

// Few steps: the traces of 20 are the same code.
TEST_P(References, ParityPasses) {
  if (shell(fmt::format("'{}' -c 'import transformers'", kPython)).code != 0) {
    GTEST_SKIP() << "no Python with transformers in .venv";
  }
  const Finished made =
      shell(fmt::format("'{}' '{}/tools/make_reference.py' --out '{}' --steps 3 {}", kPython,
                        TANDEM_SOURCE_DIR, path("reference"), GetParam().flags));
  ASSERT_EQ(made.code, 0) << made.out << made.err;
  const Finished done =
      shell(fmt::format("'{}/tandem' parity '{}'", TANDEM_BIN_DIR, path("reference")));
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_EQ(done.out.find("FAIL"), std::string::npos) << done.out;
  EXPECT_EQ(done.out.find("limit=none"), std::string::npos) << done.out;
  for (const char* check :
       {"logits max_abs=", "config spellings", "loss max_abs=", "grads (worst", "trace clip loss",
        "trace noclip grad_norm", "final weights clip (worst"}) {
    EXPECT_NE(done.out.find(check), std::string::npos) << check << " did not run:\n" << done.out;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, References,
    testing::Values(
        Reference{"llama", "--family llama"},
        Reference{"llama_linear_tied",
                  "--family llama --tied --shards 3 --set attention_bias=true --set mlp_bias=true "
                  "--set 'rope_scaling={\"type\": \"linear\", \"factor\": 4.0}'"},
        Reference{"phi3", "--family phi3"}, Reference{"seed_oss", "--family seed_oss --shards 2"},
        Reference{"qwen3_window_yarn",
                  "--family qwen3 --set 'rope_scaling={\"rope_type\": \"yarn\", \"factor\": 4.0, "
                  "\"original_max_position_embeddings\": 16}'"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tandem
