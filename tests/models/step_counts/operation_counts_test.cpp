// The operations of a step's visits by the path of a device, as exact numbers: what LibTorch
// computes, by a recorder on the CPU, and the launches of our row kernels. Rows, length, vocabulary
// and the kind of layer are those of real runs; widths are small, since no count depends on them.
// docs/device.md has the table.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/engine.hpp"
#include "models/causal_lm.hpp"
#include "models/layers/aten/layers.hpp"
#include "models/pretrained.hpp"
#include "tests/models/step_counts/shapes.hpp"

namespace tandem {
namespace {

/// Operations that run a kernel, unless they call another one of them.
constexpr std::string_view kLaunched[] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::add",
    "aten::add_",
    "aten::addmm_",
    "aten::cat",
    "aten::clamp_min",
    "aten::copy_",
    "aten::div",
    "aten::embedding_dense_backward",
    "aten::fill_",
    "aten::index_select",
    "aten::mm",
    "aten::mul",
    "aten::mul_",
    "aten::ne",
    "aten::reciprocal",
    "aten::sum",
    "aten::zero_",
    "activation backward",
    "activation forward",
    "heads backward",
    "heads forward",
    "loss",
    "rms backward",
    "rms forward"};
constexpr std::string_view kWaits = "aten::_local_scalar_dense";  // a value that the host reads
/// Views, allocations and names of the graph's nodes.
constexpr std::string_view kFree[] = {"aten::as_strided",
                                      "aten::detach",
                                      "aten::empty",
                                      "aten::empty_like",
                                      "aten::empty_strided",
                                      "aten::narrow",
                                      "aten::resolve_conj",
                                      "aten::select",
                                      "aten::slice",
                                      "aten::split_with_sizes",
                                      "aten::t",
                                      "aten::to",
                                      "aten::transpose",
                                      "aten::view",
                                      "aten::_unsafe_view",
                                      "detach",
                                      "aten::reshape",
                                      "aten::contiguous",
                                      "aten::_reshape_alias",
                                      "aten::expand"};

bool runs_kernel(std::string_view name) {
  return name == kWaits || std::ranges::find(kLaunched, name) != std::end(kLaunched);
}
bool is_free(std::string_view name) {
  return std::ranges::find(kFree, name) != std::end(kFree) || name.find("Backward0") != name.npos ||
         name.find("autograd::") != name.npos;
}

/// Counts operations that run a kernel, and those that are in no list, of all threads, while it
/// lives.
class KernelOperations {
 public:
  KernelOperations() {
    current() = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&begin_one, &end_one).scopes({at::RecordScope::FUNCTION}));
  }
  ~KernelOperations() { (void)stop(); }
  KernelOperations(const KernelOperations&) = delete;
  KernelOperations& operator=(const KernelOperations&) = delete;

  /// Ends the recording, and returns [name] how often each one ran.
  std::map<std::string, int> stop() {
    if (current() == this) {
      at::removeCallback(handle_);
      current() = nullptr;
    }
    const std::scoped_lock lock(mutex_);
    return counts_;
  }

 private:
  struct Begun final : at::ObserverContext {
    Begun* outer = nullptr;
    bool runs = false;         // a kernel
    bool is_innermost = true;  // among all
    bool is_last = true;       // among those that run a kernel
  };
  static KernelOperations*& current() {
    static KernelOperations* one = nullptr;
    return one;
  }
  static Begun*& innermost() {
    thread_local Begun* one = nullptr;
    return one;
  }
  static std::unique_ptr<at::ObserverContext> begin_one(const at::RecordFunction& function) {
    auto begun = std::make_unique<Begun>();
    begun->runs = runs_kernel(function.name());
    begun->outer = std::exchange(innermost(), begun.get());
    if (begun->outer != nullptr) {
      begun->outer->is_innermost = false;
    }
    for (Begun* outer = begun->outer; begun->runs && outer != nullptr; outer = outer->outer) {
      outer->is_last = false;
    }
    return begun;
  }
  static void end_one(const at::RecordFunction& function, at::ObserverContext* context) {
    auto& begun = static_cast<Begun&>(*context);
    innermost() = begun.outer;
    const bool counts =
        begun.runs ? begun.is_last : begun.is_innermost && !is_free(function.name());
    if (KernelOperations* const self = current(); self != nullptr && counts) {
      const std::scoped_lock lock(self->mutex_);
      ++self->counts_[function.name()];
    }
  }

  std::mutex mutex_;
  std::map<std::string, int> counts_;
  at::CallbackHandle handle_{};
};

/// Numbers of operations.
struct Counts {
  int launches = 0;
  int waits = 0;

  friend Counts operator-(const Counts& a, const Counts& b) {
    return {a.launches - b.launches, a.waits - b.waits};
  }
  friend Counts operator+(const Counts& a, const Counts& b) {
    return {a.launches + b.launches, a.waits + b.waits};
  }
  friend Counts operator*(std::int64_t times, const Counts& a) {
    return {static_cast<int>(times) * a.launches, static_cast<int>(times) * a.waits};
  }
  friend bool operator==(const Counts&, const Counts&) = default;
};
void PrintTo(const Counts& counts, std::ostream* out) {
  *out << counts.launches << " launches, " << counts.waits << " waits";
}

Counts counts_of(const std::map<std::string, int>& operations) {
  Counts counts;
  for (const auto& [name, count] : operations) {
    EXPECT_TRUE(runs_kernel(name))
        << name << " is new in a step: name it in kLaunched if it runs a kernel, else in kFree";
    (name == kWaits ? counts.waits : counts.launches) += count;
  }
  return counts;
}

/// The shape of a step.
struct Shape {
  const char* name;
  test::ModelSizes sizes;
  std::int64_t rows, length;
  bool recomputes = false;
  std::int64_t document_length = 0;  // 0: a row is one document
};

Batch batch_of(const Shape& shape) {
  const std::vector<std::int64_t> extents = {shape.rows, shape.length};
  const at::Tensor tokens =
      at::arange(shape.rows * shape.length, at::kLong).remainder(50).view(extents);
  Batch batch{.inputs = tokens, .labels = tokens};
  if (shape.document_length > 0) {
    batch.positions = at::arange(shape.length, at::kLong)
                          .remainder(shape.document_length)
                          .expand(extents)
                          .contiguous();
  }
  return batch;
}

enum class Step { kFirst, kSecond };  // the first one makes the tables of the rotation, too

/// Counts a step of the shape, with this number of layers and words, and narrow layers.
Counts count_step(const Shape& shape, std::int64_t layers, std::int64_t vocabulary, Step step) {
  test::ModelSizes sizes = shape.sizes;
  sizes.hidden = sizes.intermediate = sizes.head_dim = 8;
  sizes.heads = sizes.heads > sizes.kv_heads ? 2 : 1;
  sizes.kv_heads = 1;
  sizes.layers = layers;
  sizes.vocabulary = vocabulary;
  const HfConfig config = parse_hf_config(sizes.config(), sizes.name);
  Model model = make_causal_lm(config);
  model.source = random_weights(config, 1);
  EngineOptions options;
  options.activation_checkpointing = shape.recomputes;
  options.plans_run = false;
  Engine engine({.model = std::move(model),
                 .config = ConfigSource::of_text(fmt::format(
                     R"({{"train_micro_batch_size_per_gpu": {}, "bf16": {{"enabled": true}},
                         "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3}}}},
                         "zero_optimization": {{"stage": 3}}}})",
                     shape.rows)),
                 .options = options});
  const std::vector<Batch> batches = {batch_of(shape)};
  if (step == Step::kSecond) {
    (void)engine.train_step(batches);
  }
  KernelOperations recorded;
  (void)engine.train_step(batches);
  return counts_of(recorded.stop());
}

/// Counts what each further chunk of logits adds to a step.
Counts count_chunk(const Shape& shape) {
  const std::int64_t words = shape.sizes.vocabulary;
  Shape row = shape;
  row.rows = 1;
  row.document_length = 0;
  row.length = aten::loss_chunk_rows(words) + 1;  // the last token of a row predicts nothing
  const Counts one = count_step(row, 1, words, Step::kFirst);
  row.length += 1;
  return count_step(row, 1, words, Step::kFirst) - one;
}

class OperationCounts : public ::testing::Test {
 protected:
  void SetUp() override { aten::take_always(true); }
  void TearDown() override { aten::take_always(false); }
};

struct CountedStep {
  Shape shape;
  Counts layer, step;
};

TEST_F(OperationCounts, OfAStepAreKnown) {
  constexpr std::int64_t kFewWords = 64;  // one chunk of logits
  const CountedStep rows[] = {
      {{"Qwen3-0.6B, 8 x 1024", test::kQwen3Small, 8, 1024}, {26, 0}, {790, 2}},
      {{"Qwen3-0.6B, 8 x 128", test::kQwen3Small, 8, 128}, {26, 0}, {762, 2}},
      {{"Qwen3-0.6B, 1 x 8192 of 16 documents", test::kQwen3Small, 1, 8192, false, 512},
       {94, 0},
       {2692, 2}},
      {{"Qwen3-8B, 4 x 4096, recomputed", test::kQwen3Large, 4, 4096, true}, {35, 0}, {1358, 2}},
  };
  const Counts chunk = count_chunk(rows[0].shape);
  for (const CountedStep& row : rows) {
    const test::ModelSizes& sizes = row.shape.sizes;
    const Counts one = count_step(row.shape, 1, kFewWords, Step::kSecond);
    const Counts layer = count_step(row.shape, 2, kFewWords, Step::kSecond) - one;
    const std::int64_t asked = row.shape.rows * (row.shape.length - 1);
    const std::int64_t most = aten::loss_chunk_rows(sizes.vocabulary);
    const Counts step = one + (sizes.layers - 1) * layer + ((asked - 1) / most) * chunk;
    EXPECT_EQ(layer, row.layer) << row.shape.name;
    EXPECT_EQ(step, row.step) << row.shape.name;
    const std::string line = fmt::format("| {} | {} | {} | {} |", row.shape.name, layer.launches,
                                         step.launches, step.waits);
    EXPECT_TRUE(test::page_has_row(line)) << "docs/device.md needs the row " << line;
  }
}

}  // namespace
}  // namespace tandem
