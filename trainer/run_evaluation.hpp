// trainer/run_evaluation.hpp — a trainer's evaluations: computes the loss over held-out records,
// writes it, keeps the best model, and decides whether training goes on.
//
//  every N steps and at the end; before the first step if that is asked for
//   metrics.jsonl: {"step", "eval_loss", "eval_tokens", "eval_s", "perplexity",
//   "eval_label_loss", "label_perplexity"}
//
// Every rank has the same figures, so all decide alike. The best figure is part of a checkpoint
// (state()), so a resumed run stops where the uninterrupted one does.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "engine/data/dataset.hpp"
#include "engine/engine.hpp"
#include "trainer/metrics/metrics_writer.hpp"

namespace tandem {

struct EvaluationOptions {
  std::shared_ptr<const Dataset> dataset;  // null: no evaluation
  EvaluateArgs args;
  std::int64_t every = 0;  // steps
  bool at_start = false;
  std::int64_t patience =
      0;                 // evaluations in a row without a better one that end the run; 0: never
  double min_delta = 0;  // by how much a loss must be lower to be better
  bool at_end = true;
  std::function<void()> save_best;   // empty: the best model is not kept. On all ranks
  std::string best_folder;           // where save_best writes; empty: best_line() has no folder
  std::function<void()> after_each;  // may be empty. On all ranks
};

class RunEvaluation {
 public:
  RunEvaluation(EvaluationOptions options, Engine& engine, MetricsWriter& metrics);

  /// Evaluates before the first step of a run, if that is asked for.
  void at_start();
  /// Evaluates if an evaluation is due; returns whether the run goes on after that step.
  bool after(std::int64_t step);
  /// Evaluates after the last step if `at_end` is set, unless that step was evaluated before.
  void finish();

  /// Returns a line for the summary: the best evaluation's step and loss, and the folder of its
  /// weights; empty if there was none.
  [[nodiscard]] std::string best_line() const;

  /// Returns the state for a checkpoint's client_state: {"evaluation": {...}}.
  [[nodiscard]] std::string state() const;
  /// Restores the state from such a text; without that member evaluation starts from the beginning.
  void restore(const std::string& client_state);

 private:
  void evaluate(std::int64_t step);

  EvaluationOptions options_;
  Engine& engine_;
  MetricsWriter& metrics_;
  double best_loss_ = std::numeric_limits<double>::infinity();
  std::int64_t best_step_ = -1;
  std::int64_t since_best_ = 0;  // evaluations
  std::int64_t last_step_ = -1;  // evaluated
};

}  // namespace tandem
