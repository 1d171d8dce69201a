// Models with experts as Transformers computes them: a small random one is made where its Python is
// installed, and its logits, loss and gradients are compared, by our kernels and by ATen's
// operations.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "actors/storage/safetensors.hpp"
#include "models/causal_lm.hpp"
#include "models/checkpoint_layout.hpp"
#include "models/layers/aten/layers.hpp"
#include "tests/models/layers/harness.hpp"
#include "tests/support/python.hpp"
#include "tests/support/tensor_file.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using test::read;

/// In double precision; what the same costs in fp32 is its noise, of which the limits allow five
/// times as much (gradients that cancel out, as those of keys' biases, are noise for the most
/// part). argv: folder, then what differs from the usual settings, as JSON. Weights as the other
/// references have them: norms near 1, biases 0.1, everything else 0.08; routers larger, so that
/// rounding changes no choice.
constexpr const char* kScript = R"(
import json, pathlib, sys, torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
config = AutoConfig.for_model(**json.loads(sys.argv[2]), attn_implementation="eager", pad_token_id=None)
model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").float()
with torch.no_grad():
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape)
        router = name.endswith(("mlp.gate.weight", "mlp.router.weight"))
        p.copy_(1 + 0.2 * noise if "norm" in name else noise * (0.5 if router else 0.1 if "bias" in name or "sinks" in name else 0.08))
ids = torch.randint(0, config.vocab_size, (3, 21))
labels = ids.clone()
labels[1, :9] = -100
model(input_ids=ids, labels=labels).loss.backward()
narrow = {name: p.grad.clone() for name, p in model.named_parameters()}
model.save_pretrained(folder / "checkpoint")
model.double()
model.zero_grad()
out = model(input_ids=ids, labels=labels)
out.loss.backward()
answers = {"input_ids": ids, "labels": labels, "logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)}
for name, p in model.named_parameters():
    answers["noise." + name] = (narrow[name] - p.grad).abs().max().reshape(1)
    if name.endswith("mlp.experts.gate_up_proj") and config.model_type == "qwen3_moe":
        for e, both in enumerate(p.grad):
            for part, value in zip(("gate", "up"), both.chunk(2)):
                answers["grad." + name.replace("gate_up_proj", f"{e}.{part}_proj.weight")] = value.clone()
    elif name.endswith("mlp.experts.down_proj") and config.model_type == "qwen3_moe":
        for e, value in enumerate(p.grad):
            answers["grad." + name.replace("down_proj", f"{e}.down_proj.weight")] = value.clone()
    else:
        answers["grad." + name] = p.grad.clone()
save_file({name: value.contiguous().to(value.dtype if value.dtype == torch.int64 else torch.float32) for name, value in answers.items()},
          folder / "answers.safetensors")
)";

constexpr const char* kQwen3Moe = R"({
  "model_type": "qwen3_moe", "vocab_size": 113, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128,
  "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24)";

constexpr const char* kGptOss = R"({
  "model_type": "gpt_oss", "vocab_size": 113, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 4,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2,
  "sliding_window": 8, "eos_token_id": 3, "tie_word_embeddings": false})";

struct Case {
  const char* name;
  std::string config;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

const Case kCases[] = {
    {"Qwen3Moe",
     std::string(kQwen3Moe) + R"(, "norm_topk_prob": true, "tie_word_embeddings": false})"},
    {"Qwen3MoeShares",
     std::string(kQwen3Moe) + R"(, "norm_topk_prob": false, "tie_word_embeddings": true})"},
    {"Qwen3MoeSomeDense",
     std::string(kQwen3Moe) +
         R"(, "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [0]})"},
    {"GptOss", kGptOss},
    // With the loss of the routers, over all layers that have one.
    {"Qwen3MoeBalanced", std::string(kQwen3Moe) +
                             R"(, "norm_topk_prob": true, "output_router_logits": true,
                                "router_aux_loss_coef": 0.7, "mlp_only_layers": [1]})"},
    {"GptOssBalanced", std::string(kGptOss).substr(0, std::strlen(kGptOss) - 1) +
                           R"(, "output_router_logits": true, "router_aux_loss_coef": 0.9})"},
};

class ExpertsReference : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!test::python_has("transformers")) {
      GTEST_SKIP() << "no Python with transformers in .venv";
    }
    folder_ = fs::path(testing::TempDir()) / fmt::format("experts {}", ::getpid());
    fs::create_directories(folder_);
    std::ofstream(folder_ / "make.py") << kScript;
    const int status = std::system(fmt::format("'{0}' '{1}/make.py' '{1}' '{2}' >'{1}/log' 2>&1",
                                               test::kPython, folder_.string(), GetParam().config)
                                       .c_str());
    ASSERT_EQ(status, 0) << std::ifstream(folder_ / "log").rdbuf();
  }
  void TearDown() override {
    aten::take_always(false);
    fs::remove_all(folder_);
  }

  test::MathHarness harness() const {
    const HfConfig config = read_hf_config(folder_ / "checkpoint");
    const auto reader =
        std::make_shared<CheckpointReader>(CheckpointReader::open(folder_ / "checkpoint", config));
    return {make_causal_lm(config), at::kFloat,
            [reader](const ParameterSpec& p, std::int64_t begin, std::int64_t end, float* out) {
              reader->read_f32(p.name, begin, end, out);
            }};
  }

  void compare() const {
    EXPECT_EQ(read_hf_config(folder_ / "checkpoint").router_loss() > 0,
              GetParam().config.find("output_router_logits") != std::string::npos);
    test::MathHarness model = harness();
    const auto file = SafetensorsFile::open(folder_ / "answers.safetensors");
    const Batch batch{read(file, "input_ids"), read(file, "labels")};
    EXPECT_LE((model.logits(batch.inputs) - read(file, "logits")).abs().max().item<double>(), 1e-5);
    EXPECT_NEAR(model.step(batch), read(file, "loss").item<float>(), 3e-6);
    const auto parameters = model.parameters();
    std::size_t compared = 0;
    for (const auto& [name, weight] : parameters) {
      const at::Tensor expected = read(file, "grad." + name);
      ASSERT_TRUE(weight->grad_written) << name;
      const double scale = expected.abs().max().item<double>();
      const TensorInfo* noise = file.find("noise." + name);  // joined experts': not by this name
      const double limit = std::max(
          8e-6 * scale, noise == nullptr ? 0.0 : 5 * read(file, noise->name).item<double>());
      EXPECT_LE((weight->grad - expected).abs().max().item<double>(), limit) << name;
      ++compared;
    }
    const auto in_file = std::ranges::count_if(
        file.tensors(), [](const TensorInfo& tensor) { return tensor.name.starts_with("grad."); });
    EXPECT_EQ(compared, static_cast<std::size_t>(in_file)) << "gradients without a parameter";
  }

  fs::path folder_;
};

TEST_P(ExpertsReference, BothWaysAgree) {
  compare();
  aten::take_always(true);
  compare();
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertsReference, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
