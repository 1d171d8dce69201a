#include "engine/run/step_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

/// counted_labels() of what a batch has become. Compute lane.
std::int64_t labels_of(const Batch& batch) {
  if (batch.label_count >= 0) {
    return batch.label_count;
  }
  if (batch.labels.is_floating_point()) {
    return batch.labels.size(0);
  }
  const at::Tensor labels = !batch.inputs.is_floating_point()
                                ? batch.labels.narrow(1, 1, batch.labels.size(1) - 1)
                                : batch.labels;
  return labels.ne(kIgnoredLabel).sum().item<std::int64_t>();
}

struct Counts {
  std::size_t micro_batches = 0;
  std::int64_t labels = 0;
};

void require_equal(const std::vector<Counts>& of_ranks) {
  const std::size_t first = of_ranks.front().micro_batches;
  const auto other = std::ranges::find_if(
      of_ranks, [first](const Counts& counts) { return counts.micro_batches != first; });
  if (other != of_ranks.end()) {
    throw user_error("engine",
                     "train_step() was handed {} micro-batches by rank 0 and {} by rank {}; a step "
                     "has equally many on each rank, and an empty batch has labels {} alone",
                     first, other->micro_batches, other - of_ranks.begin(), kIgnoredLabel);
  }
}

}  // namespace

Task<> StepExchange::agree_on(std::vector<Batch>* batches) {
  Counts mine{.micro_batches = batches->size()};
  if (means_tokens_) {
    auto count = [&] {
      for (Batch& batch : *batches) {
        batch.label_count = labels_of(batch);
        mine.labels += batch.label_count;
      }
    };
    co_await lane_.run(count, "count labels");
  }
  const std::vector<Counts> of_ranks = co_await ranks_.values(std::vector{mine});
  require_equal(of_ranks);
  if (!means_tokens_) {
    co_return;
  }
  std::int64_t all = 0;
  for (std::size_t r = 0; r < of_ranks.size(); r += static_cast<std::size_t>(groups_.sharers)) {
    all += of_ranks[r].labels;
  }
  for (Batch& batch : *batches) {
    if (!batch.loss_share) {
      batch.loss_share =
          all == 0 ? 0.0 : static_cast<double>(batch.label_count) / static_cast<double>(all);
    }
  }
}

void StepExchange::begin() {
  figures_ = {};
  loss_shares_.clear();
  extents_.clear();
}

Task<> StepExchange::add(Batch* batch) {
  const std::int64_t rows = batch->inputs.size(0);
  const std::int64_t length = batch->inputs.is_floating_point() ? 1 : batch->inputs.size(1);
  if (batch->label_count < 0 && batch->labels.is_cpu()) {
    auto count = [&] { batch->label_count = labels_of(*batch); };
    co_await lane_.run(count, "count labels");
  }
  if (groups_.speaks) {
    figures_.tokens += batch->tokens >= 0 ? batch->tokens : rows * length;
    figures_.sequences += rows;
    figures_.unlabelled += batch->label_count == 0 ? 1 : 0;
  }
  figures_.longest = std::max(figures_.longest, length);
  extents_.push_back(
      {.rows = rows, .length = length, .share = 1.0 / static_cast<double>(groups_.sharers)});
  if (means_tokens_) {
    loss_shares_.push_back(batch->loss_share.value());
  }
}

/// The loss is the mean over all ranks and micro-batches, or over all their labels. Rank r's
/// micro-step a is the step's micro-batch a * world + r, and they are added in that order, so its
/// bits do not depend on how many ranks share them. Ranks that share rows all have the loss of
/// these, and it counts once.
Task<StepExchange::Shared> StepExchange::share(StepResult result, std::vector<float> losses,
                                               Asks asks) {
  struct LossPart {
    double share = 0;
    float loss = 0;
    float zero = 0;
  };
  TANDEM_CHECK_EQ(losses.size(), extents_.size(), "every micro-batch has its loss");
  figures_.asks = asks;
  std::vector<LossPart> parts(losses.size());
  for (std::size_t a = 0; a < losses.size(); ++a) {
    parts[a] = {.share = means_tokens_ ? loss_shares_[a] : 1, .loss = losses[a]};
  }
  std::vector<std::byte> mine(sizeof(Figures) + parts.size() * sizeof(LossPart));
  std::memcpy(mine.data(), &figures_, sizeof(Figures));
  std::memcpy(mine.data() + sizeof(Figures), parts.data(), parts.size() * sizeof(LossPart));
  const std::size_t bytes = mine.size();
  const std::vector<std::byte> all = co_await ranks_.bytes(std::move(mine));
  TANDEM_CHECK_EQ(all.size(), bytes * ranks_.world(), "each rank tells equally much");
  Shared shared{.result = std::move(result), .of_saves = {}};
  StepResult& sum = shared.result;
  for (std::size_t r = 0; r < ranks_.world(); ++r) {
    Figures figures;
    std::memcpy(&figures, all.data() + r * bytes, sizeof(Figures));
    sum.tokens += figures.tokens;
    sum.sequences += figures.sequences;
    sum.micro_batches_unlabelled += figures.unlabelled;
    sum.stop_asked = sum.stop_asked || figures.asks.stop;
    sum.save_asked = sum.save_asked || figures.asks.save;
    sum.sequence_length = std::max(sum.sequence_length, figures.longest);
    shared.of_saves.push_back(figures.asks.checkpoint);
  }
  const auto sharers = static_cast<std::size_t>(groups_.sharers);
  TANDEM_CHECK_EQ(ranks_.world() % sharers, std::size_t{0}, "every group has as many ranks");
  for (std::size_t a = 0; a < losses.size(); ++a) {
    for (std::size_t r = 0; r < ranks_.world(); r += sharers) {
      LossPart part;
      std::memcpy(&part, all.data() + r * bytes + sizeof(Figures) + a * sizeof(LossPart),
                  sizeof(LossPart));
      sum.loss += part.share * static_cast<double>(part.loss);
    }
  }
  sum.micro_batches = static_cast<std::int64_t>(losses.size() * (ranks_.world() / sharers));
  if (!means_tokens_) {
    sum.loss /= static_cast<double>(sum.micro_batches);
  }
  co_return shared;
}

}  // namespace tandem
