// Rows that GPUs share, whose ranks give each other their activations: by NCCL, or by way of host
// memory where they share one GPU. All fakes, on which the model computes as on the CPU: the bits
// are those of ranks on the CPU.
#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "actors/collectives/staged_backend.hpp"
#include "engine/engine.hpp"
#include "tests/models/small_models.hpp"
#include "tests/support/fakes/fake_gpu.hpp"
#include "tests/support/fakes/nccl_thread_rank.hpp"
#include "tests/support/thread_ranks.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;
using test::FakeCuda;
using test::FakeGroups;
using test::FakeNccl;
using test::FakePeers;
using test::NcclThreadRank;

/// As a real one, whose kernels are launched when the lane comes to them: what a segment exchanges
/// is asked for in its middle.
class FakeComputeAtOnce final : public test::FakeComputeDevice {
 public:
  FakeComputeAtOnce() : FakeComputeDevice(1us) {}
  void queue(std::function<void()> work) override {
    work();
    FakeComputeDevice::queue([] {});
  }
};

std::shared_ptr<Gpu> open_at_once(int local_rank) {
  std::shared_ptr<Gpu> gpu = test::fake_gpus(1us)(local_rank);
  gpu->compute = std::make_shared<FakeComputeAtOnce>();
  return gpu;
}

struct Kind {
  const char* name;
  const char* config;  // its members beside the sizes
  int kv_heads;
};
void PrintTo(const Kind& one, std::ostream* out) { *out << one.name; }
constexpr Kind kKinds[] = {
    {"grouped_heads", R"("model_type": "qwen3", "rms_norm_eps": 1e-6)", 2},
    {"copied_heads", R"("model_type": "llama", "rms_norm_eps": 1e-6)", 1},
    {"router", R"("model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 24, "output_router_logits": true,
                  "router_aux_loss_coef": 0.1)",
     2}};

enum class On { kCpu, kOneGpu, kGpus };

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  std::size_t staging = 0;
};

Trained train(const Kind& kind, On on, int ranks, int sharers) {
  FakePeers peers;
  peers.world = static_cast<std::uint32_t>(ranks);
  FakeGroups groups;
  EngineOptions options;
  options.compute_threads = 1;
  options.plans_run = false;
  options.activation_checkpointing = true;
  if (on != On::kCpu) {
    options.device = DeviceKind::kCuda;
    options.open_gpu = &open_at_once;
  }
  const auto all = on_ranks(ranks, [&](std::shared_ptr<Communicator> thread) {
    if (on == On::kGpus) {
      thread = std::make_shared<NcclThreadRank>(
          std::move(thread),
          [&peers](EventLoop&, std::uint32_t rank) {
            return std::make_shared<FakePeers::OfRank>(peers, rank);
          },
          &groups);
    }
    Engine engine(
        {.model = test::small_model(test::small_config(kind.config, 2, kind.kv_heads)),
         .config = ConfigSource::of_text(fmt::format(
             R"({{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
                           "sequence_parallel_size": {}, "zero_optimization": {{"stage": 3}},
                           "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01}}}}}})",
             sharers)),
         .options = options,
         .dataset = test::small_texts(
             16, 67, 54, [](std::int32_t i) { return 2 + (i * 19 + 7) % 41; }, test::learns_all),
         .epochs = 0,
         .communicator = std::move(thread)});
    Trained trained;
    for (int step = 0; step < 3; ++step) {
      const StepResult result = *engine.train_step();
      trained.losses.push_back(result.loss);
      trained.norms.push_back(result.verdict.norm.value);
    }
    engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
      trained.weights.emplace_back(values.begin(), values.end());
    });
    trained.staging = engine.resident_bytes().staging;
    return trained;
  });
  return all.front();
}

class ExchangeOnGpus : public ::testing::TestWithParam<Kind> {};

TEST_P(ExchangeOnGpus, HasTheBitsOfRanksOnTheCpu) {
  for (const auto& [ranks, sharers] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4}}) {
    const Trained expected = train(GetParam(), On::kCpu, ranks, sharers);
    EXPECT_NE(expected.losses.front(), expected.losses.back()) << "it learns";
    for (const On on : {On::kOneGpu, On::kGpus}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} share rows, {}", ranks, sharers,
                               on == On::kGpus ? "by NCCL" : "on one GPU"));
      FakeCuda cuda(Clock::real());
      cuda.aten_is_there = true;
      FakeNccl nccl;
      const Trained got = train(GetParam(), on, ranks, sharers);
      constexpr std::size_t kStages =
          StagedBackend::kStages * StagedBackend::kUsualStageBytes;  // per back end
      EXPECT_EQ(got.staging / kStages, on == On::kOneGpu ? 2U : 0U) << "the run's, the exchange's";
      EXPECT_EQ(got.losses, expected.losses);
      EXPECT_EQ(got.norms, expected.norms);
      EXPECT_TRUE(got.weights == expected.weights);
      EXPECT_EQ(nccl.mismatches(), std::vector<std::string>());
      EXPECT_EQ(cuda.frees_in_use(), 0);
      std::size_t exchanges = 0;
      for (const std::string& launch : nccl.launches(0)) {
        exchanges += launch.starts_with("tandem rows-") ? 1 : 0;
      }
      // Three steps of two micro-batches through two blocks: two exchanges forward, as many when
      // that is made again, and two backward.
      EXPECT_EQ(exchanges >= std::size_t{3} * 2 * 2 * 6, on == On::kGpus) << exchanges;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExchangeOnGpus, ::testing::ValuesIn(kKinds),
                         [](const ::testing::TestParamInfo<Kind>& info) {
                           return std::string(info.param.name);
                         });

}  // namespace
}  // namespace tandem
