#include "engine/initialize.hpp"

#include <utility>

#include "actors/kernels/simd_limit.hpp"
#include "engine/distributed/process_group.hpp"
#include "engine/engine_impl.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

double Optimizer::get_lr() const { return impl_->rate_of(impl_->next_step()); }
double Optimizer::loss_scale() const { return impl_->scaler ? impl_->scaler->scale() : 1; }
std::int64_t Optimizer::steps() const { return impl_->counters.applied_steps; }

DataLoader::Iterator DataLoader::begin() {
  at_epoch_end_ = false;
  advance();
  return Iterator(*this);
}

std::int64_t DataLoader::size() const {
  return impl_->feed ? impl_->feed->loader().batches_per_epoch() : 0;
}

std::int64_t DataLoader::epoch() const { return size() == 0 ? 0 : impl_->feed->taken() / size(); }

void DataLoader::advance() {
  batch_.reset();
  if (at_epoch_end_ || size() == 0) {
    return;
  }
  batch_ = impl_->run(&DataFeed::next, &*impl_->feed);
  at_epoch_end_ = !batch_ || impl_->feed->taken() % size() == 0;
}

double Scheduler::get_last_lr() const {
  return impl_->rate_of(std::max<std::int64_t>(1, impl_->counters.applied_steps));
}
double Scheduler::lr_at(std::int64_t step) const {
  if (step < 1) {
    throw user_error("engine", "lr_at() was asked for step {}; steps are counted from 1", step);
  }
  return impl_->rate_of(step);
}

Initialized initialize(InitializeArgs args) {
  (void)simd_limit();  // a wrong one ends the start
  if (args.communicator == nullptr) {
    args.communicator = ProcessGroup::from_environment();
  }
  Engine engine(std::move(args));
  const auto impl = engine.impl_;
  return {std::move(engine), Optimizer(impl), DataLoader(impl), Scheduler(impl)};
}

}  // namespace tandem
