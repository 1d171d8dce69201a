#include "trainer/run_evaluation.hpp"

#include <utility>

#include <fmt/format.h>

#include "actors/storage/json.hpp"
#include "runtime/util/json_writer.hpp"

namespace tandem {

namespace {

/// Tells the labels' loss of a model whose routers have a loss of their own; empty: they have none.
std::string without_routers(const EvalSums& sums) {
  return sums.loss == sums.label_loss
             ? ""
             : fmt::format(" ({:.4f} and {:.2f} without the routers' loss)", sums.label_mean(),
                           sums.label_perplexity());
}

}  // namespace

RunEvaluation::RunEvaluation(EvaluationOptions options, Engine& engine, MetricsWriter& metrics)
    : options_(std::move(options)), engine_(engine), metrics_(metrics) {}

void RunEvaluation::at_start() {
  if (options_.dataset != nullptr && options_.at_start && engine_.global_steps() == 0) {
    evaluate(0);
  }
}

bool RunEvaluation::after(std::int64_t step) {
  if (options_.dataset == nullptr || options_.every == 0 || step % options_.every != 0) {
    return true;
  }
  evaluate(step);
  if (options_.patience == 0 || since_best_ < options_.patience) {
    return true;
  }
  metrics_.note(
      fmt::format("stopped early: no better evaluation in {}, the best one is that of "
                  "step {} with {:.4f}",
                  since_best_, best_step_, best_loss_));
  return false;
}

void RunEvaluation::finish() {
  const std::int64_t step = engine_.global_steps();
  if (options_.dataset != nullptr && options_.at_end && last_step_ != step) {
    evaluate(step);
  }
}

void RunEvaluation::evaluate(std::int64_t step) {
  const EvalSums sums = engine_.evaluate_sums(*options_.dataset, options_.args);
  last_step_ = step;
  const bool is_better = sums.mean() < best_loss_;
  const bool is_enough = sums.mean() < best_loss_ - options_.min_delta;
  since_best_ = is_enough ? 0 : since_best_ + 1;
  if (is_better) {
    best_loss_ = sums.mean();
    best_step_ = step;
  }
  metrics_.write_evaluation(step, sums);
  metrics_.note(fmt::format(
      "eval     step {}: loss {:.4f}, perplexity {:.2f}{}, {} tokens of {} "
      "records in {:.2f} s{}",
      step, sums.mean(), sums.perplexity(), without_routers(sums), sums.labels, sums.records,
      sums.seconds, is_better ? "" : fmt::format(" (best: step {})", best_step_)));
  if (is_better && options_.save_best) {
    options_.save_best();
  }
  if (options_.after_each) {
    options_.after_each();
  }
}

std::string RunEvaluation::best_line() const {
  const std::string& folder = options_.best_folder;
  return best_step_ < 0
             ? std::string()
             : fmt::format("  best        evaluation of step {}: loss {:.4f}{}{}", best_step_,
                           best_loss_, folder.empty() ? "" : ", kept in ", folder);
}

std::string RunEvaluation::state() const {
  JsonWriter json;
  json.begin_object();
  if (last_step_ >= 0) {
    json.key("evaluation").begin_object().field("last_step", last_step_);
    if (best_step_ >= 0) {
      json.field("best_step", best_step_).field("best_loss", best_loss_);
    }
    json.field("since_best", since_best_).end_object();
  }
  return json.end_object().take();
}

void RunEvaluation::restore(const std::string& client_state) {
  const JsonDocument document =
      JsonDocument::parse(client_state, {"resume", "client_state.json", "save it again"});
  const std::optional<JsonValue> member = document.root().find("evaluation");
  if (!member) {
    return;
  }
  last_step_ = member->at("last_step").integer(0);
  since_best_ = member->at("since_best").integer(0);
  if (const auto step = member->find("best_step")) {
    best_step_ = step->integer(0);
    best_loss_ = member->at("best_loss").number();
  }
}

}  // namespace tandem
