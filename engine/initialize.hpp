// engine/initialize.hpp — DeepSpeed's entry point: one call returns engine, optimizer, loader and
// scheduler.
//
//   auto [engine, optimizer, loader, scheduler] =
//       tandem::initialize({.model = model, .config = "ds.json", .dataset = data});
//   for (auto& batch : loader) {
//     auto loss = engine.forward(batch);
//     engine.backward(loss);
//     engine.step();
//   }
//
// The four share one engine, which lives as long as any of them.
// Thread rule, and the order of calls: as for Engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>

#include "engine/engine.hpp"

namespace tandem {

/// The state of the engine's optimizer; it steps with engine.step().
class Optimizer {
 public:
  /// The learning rate of the next step.
  [[nodiscard]] double get_lr() const;
  /// The scale of the next step's gradients; 1 unless fp16.
  [[nodiscard]] double loss_scale() const;
  /// Updates applied; skipped steps are not among them.
  [[nodiscard]] std::int64_t steps() const;

 private:
  friend struct Initialized initialize(InitializeArgs args);
  explicit Optimizer(std::shared_ptr<Engine::Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Engine::Impl> impl_;
};

/// The micro-batches of this rank. Each loop over it is one epoch, reshuffled; after a loop that
/// was left early the next one continues there.
class DataLoader {
 public:
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using iterator_concept = std::input_iterator_tag;

    Batch& operator*() const { return *loader_->batch_; }
    Iterator& operator++() {
      loader_->advance();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t /*end*/) {
      return !it.loader_->batch_.has_value();
    }

   private:
    friend class DataLoader;
    explicit Iterator(DataLoader& loader) : loader_(&loader) {}
    DataLoader* loader_;
  };

  Iterator begin();
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }
  /// Micro-batches of one epoch on this rank; 0 without a dataset.
  [[nodiscard]] std::int64_t size() const;
  /// The epoch that the next batch belongs to, from 0.
  [[nodiscard]] std::int64_t epoch() const;

 private:
  friend struct Initialized initialize(InitializeArgs args);
  explicit DataLoader(std::shared_ptr<Engine::Impl> impl) : impl_(std::move(impl)) {}
  void advance();
  std::shared_ptr<Engine::Impl> impl_;
  std::optional<Batch> batch_;
  bool at_epoch_end_ = false;
};

/// The learning rate as a function of the optimizer step. engine.step() advances it, as in
/// DeepSpeed.
class Scheduler {
 public:
  /// Returns the rate of the last applied step; before the first step, that of step 1.
  [[nodiscard]] double get_last_lr() const;
  /// The rate of optimizer step `step`, 1-based.
  [[nodiscard]] double lr_at(std::int64_t step) const;

 private:
  friend struct Initialized initialize(InitializeArgs args);
  explicit Scheduler(std::shared_ptr<Engine::Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Engine::Impl> impl_;
};

struct Initialized {
  Engine engine;
  Optimizer optimizer;
  DataLoader loader;
  Scheduler scheduler;
};

/// If `args` has no communicator, the process's environment describes the ranks (torchrun, Slurm,
/// Open MPI, ./tandem launch). Throws Error if the config, the model and the ranks do not fit
/// together. Collective: all ranks call it.
[[nodiscard]] Initialized initialize(InitializeArgs args);

}  // namespace tandem
