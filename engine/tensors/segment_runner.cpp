#include "engine/tensors/segment_runner.hpp"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/types/recomputation.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

/// While it lives ATen computes on this thread alone, if that is wanted.
class SingleThreadGuard {
 public:
  explicit SingleThreadGuard(bool wanted) : before_(wanted ? at::get_num_threads() : 1) {
    if (before_ > 1) {
      at::set_num_threads(1);
    }
  }
  ~SingleThreadGuard() {
    if (before_ > 1) {
      at::set_num_threads(before_);
    }
  }
  SingleThreadGuard(const SingleThreadGuard&) = delete;
  SingleThreadGuard& operator=(const SingleThreadGuard&) = delete;

 private:
  int before_;
};

/// Notes `boundary` if it is the first with an element that is not finite.
void look_at(const at::Tensor& boundary, std::size_t segment, Phase phase,
             SegmentRunner::Activations& activations) {
  if (activations.looks && !activations.bad && boundary.defined() &&
      !at::isfinite(boundary.detach()).all().item<bool>()) {
    activations.bad = {.segment = segment, .phase = phase};
  }
}

std::string text_of(const char* name, const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format(", {} {} [{}]", name, c10::toString(tensor.scalar_type()),
                                        fmt::join(tensor.sizes(), ", "))
                          : "";
}

/// Turns LibTorch's exception about a segment into an Error with the segment's name, in a line.
template <class Function>
auto named(const SegmentSpec& segment, const char* pass, const Batch& batch, Function function) {
  try {
    return function();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool of_input = dynamic_cast<const c10::IndexError*>(&error) != nullptr ||
                          dynamic_cast<const c10::ValueError*>(&error) != nullptr ||
                          dynamic_cast<const c10::TypeError*>(&error) != nullptr;
    throw failure(of_input ? ExitCode::kUserInput : ExitCode::kFailure, "model",
                  "segment {}, {}: {} (a batch of{}{}); correct the batch or the segment",
                  segment.name, pass, text.substr(0, text.find('\n')),
                  text_of("inputs", batch.inputs).substr(1), text_of("labels", batch.labels));
  }
}

}  // namespace

SegmentRunner::SegmentRunner(const Model& model, std::span<const std::unique_ptr<Unit>> units,
                             bool activation_checkpointing, RankExchange* exchange,
                             RowSharing sharing)
    : model_(model),
      activation_checkpointing_(activation_checkpointing),
      exchange_(exchange),
      sharing_(sharing) {
  for (const SegmentSpec& segment : model.segments) {
    auto& weights = weights_.emplace_back();
    for (const WeightRef& ref : segment.weights) {
      weights.push_back(&units[ref.unit]->weight(ref.parameter));
    }
    auto& used = segment_units_.emplace_back();
    for (const std::size_t unit : units_of(segment)) {
      used.push_back(units[unit].get());
    }
  }
}

SegmentRunner::Activations SegmentRunner::start(bool looks) const {
  const std::size_t count = model_.segments.size();
  return {.inputs = std::vector<at::Tensor>(count),
          .outputs = std::vector<at::Tensor>(count),
          .looks = looks};
}

void SegmentRunner::check_values(const Batch& batch) const {
  for (const SegmentSpec& segment : model_.segments) {
    segment.run->check_values(batch);
  }
}

TokenTiles SegmentRunner::blocks_of(const Batch& batch) const {
  return sharing_.blocks == 0 || batch.part.count == 0
             ? TokenTiles()
             : TokenTiles{.length = batch.part.count, .count = sharing_.blocks / sharing_.ranks};
}

at::Tensor SegmentRunner::run(std::size_t s, const Batch& batch, const at::Tensor& input,
                              HeadOutput head_output) const {
  const SingleThreadGuard alone(model_.segments[s].one_thread);
  const TokenTilesGuard blocks(blocks_of(batch));
  SegmentContext context = {
      .batch = batch, .weights = weights_[s], .head_output = head_output, .exchange = exchange_};
  if (batch.memory != nullptr) {
    batch.memory->segments.resize(model_.segments.size());
    context.begin = batch.memory->position;
    context.memory = &batch.memory->segments[s];
  }
  const SegmentSpec& segment = model_.segments[s];
  return named(segment, "forward", batch, [&] { return segment.run->forward(context, input); });
}

void SegmentRunner::forward(std::size_t s, const Batch& batch, Activations& activations) const {
  at::Tensor& input = activations.inputs[s];
  if (s > 0) {
    input = activations.outputs[s - 1].detach();
    if (activation_checkpointing_) {
      activations.outputs[s - 1].reset();  // the next segment's input is the same activation
    }
  }
  // The last segment keeps its graph in any case: its backward follows at once.
  const bool keep_graph = !activation_checkpointing_ || s + 1 == model_.segments.size();
  const at::AutoGradMode mode(keep_graph);
  if (s > 0) {
    input.requires_grad_(true);
  }
  activations.outputs[s] = run(s, batch, input, HeadOutput::kLoss);
  look_at(activations.outputs[s], s, Phase::kForward, activations);
}

const at::Tensor& SegmentRunner::loss(const Activations& activations) {
  return activations.outputs.back();
}

void SegmentRunner::backward(std::size_t s, const Batch& batch, Activations& activations,
                             double loss_gradient) const {
  const bool last = s + 1 == model_.segments.size();
  at::Tensor input = std::move(activations.inputs[s]);
  at::Tensor output = std::move(activations.outputs[s]);
  if (activation_checkpointing_ && !last) {
    const at::AutoGradMode mode(true);
    const RecomputationGuard again(true);
    output = run(s, batch, input, HeadOutput::kLoss);
  }
  const at::Tensor gradient =
      last ? at::full({}, loss_gradient, output.options().requires_grad(false))
           : std::move(activations.gradient);
  if (output.requires_grad()) {  // not a first segment that is frozen
    const SingleThreadGuard alone(model_.segments[s].one_thread);
    const TokenTilesGuard blocks(blocks_of(batch));
    named(model_.segments[s], "backward", batch,
          [&] { torch::autograd::backward({output}, {gradient}); });
  }
  for (Unit* unit : segment_units_[s]) {
    unit->collect_autograd_gradients();
  }
  if (s > 0) {
    activations.gradient = input.grad();
    TANDEM_CHECK(activations.gradient.defined(),
                 "a segment's output must depend on its input, or nothing before it can learn");
    look_at(activations.gradient, s, Phase::kBackward, activations);
  }
}

at::Tensor SegmentRunner::infer(std::size_t s, const Batch& batch, const at::Tensor& input,
                                HeadOutput head_output) const {
  const at::NoGradGuard no_grad;
  return run(s, batch, input, head_output);
}

}  // namespace tandem
