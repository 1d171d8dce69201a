// engine/engine_share.cpp — what the ranks tell each other of a step: counts, losses, and the
// labels that their micro-batches have.
//
// Invariant: every rank computes the same from it, in the order of the step's micro-batches, so
// that no bit depends on how many ranks share them.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include "actors/collectives/collectives.hpp"
#include "engine/engine_impl.hpp"

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

}  // namespace

Task<> Engine::Impl::note_labels(Batch* batch) {
  if (batch->label_count < 0 && batch->labels.is_cpu()) {
    auto count = [&] { batch->label_count = labels_of(*batch); };
    co_await rank.compute().lane().run(count, "count labels");
  }
  share_.unlabelled += batch->label_count == 0 && counts_for_group() ? 1 : 0;
}

Task<> Engine::Impl::require_equal_counts(std::size_t micro_batches) {
  const auto bytes = std::as_bytes(std::span(&micro_batches, 1));
  const std::vector<std::byte> of_all =
      co_await of_all_ranks(std::vector<std::byte>(bytes.begin(), bytes.end()));
  std::vector<std::size_t> counts(of_all.size() / sizeof(std::size_t));
  std::memcpy(counts.data(), of_all.data(), of_all.size());
  const auto other =
      std::ranges::find_if(counts, [&](std::size_t count) { return count != counts.front(); });
  if (other != counts.end()) {
    throw user_error("engine",
                     "train_step() was handed {} micro-batches by rank 0 and {} by rank {}; a step "
                     "has equally many on each rank, and an empty batch has labels {} alone",
                     counts.front(), *other, other - counts.begin(), kIgnoredLabel);
  }
}

Task<> Engine::Impl::set_loss_shares(std::vector<Batch>* batches) {
  std::vector<std::int64_t> counts;
  auto count = [&] {
    for (Batch& batch : *batches) {
      batch.label_count = labels_of(batch);
      counts.push_back(batch.label_count);
    }
  };
  co_await rank.compute().lane().run(count, "count labels");
  const auto bytes = std::as_bytes(std::span(counts));
  const std::vector<std::byte> of_all =
      co_await of_all_ranks(std::vector<std::byte>(bytes.begin(), bytes.end()));
  const std::size_t of_group =
      static_cast<std::size_t>(config.sequence_parallel_size) * bytes.size();
  std::int64_t all = 0;
  for (std::size_t group = 0; group < of_all.size(); group += of_group) {
    for (std::size_t at = group; at < group + bytes.size(); at += sizeof(std::int64_t)) {
      std::int64_t one = 0;
      std::memcpy(&one, of_all.data() + at, sizeof(one));
      all += one;
    }
  }
  for (std::size_t i = 0; i < batches->size(); ++i) {
    if (Batch& batch = (*batches)[i]; !batch.loss_share) {
      batch.loss_share = all == 0 ? 0.0 : static_cast<double>(counts[i]) / static_cast<double>(all);
    }
  }
}

/// `mine` of every rank, in rank order; all have equally much. One exchange, unless there are very
/// many micro-steps.
Task<std::vector<std::byte>> Engine::Impl::of_all_ranks(std::vector<std::byte> mine) {
  const auto world = static_cast<std::size_t>(communicator->world_size());
  if (world == 1) {
    co_return mine;
  }
  std::vector<std::byte> all(mine.size() * world);
  for (std::size_t begin = 0; begin < mine.size(); begin += kExchangeBytes) {
    const auto piece =
        std::span(mine).subspan(begin, std::min(kExchangeBytes, mine.size() - begin));
    const std::vector<std::byte> pieces =
        co_await step.exchange(std::vector(piece.begin(), piece.end()));
    for (std::size_t r = 0; r < world; ++r) {
      std::copy_n(pieces.data() + r * piece.size(), piece.size(),
                  all.data() + r * mine.size() + begin);
    }
  }
  co_return all;
}

/// The loss is the mean over all ranks and micro-batches, or over all their labels. Rank r's
/// micro-step a is the step's micro-batch a * world + r, and they are added in that order, so its
/// bits do not depend on how many ranks share them. Ranks that share rows all have the loss of
/// these, and it counts once.
Task<StepResult> Engine::Impl::share_with_ranks(StepResult result) {
  struct LossPart {
    double share = 0;
    float loss = 0;
    float zero = 0;
  };
  const auto world = static_cast<std::size_t>(communicator->world_size());
  const auto sharers = static_cast<std::size_t>(config.sequence_parallel_size);
  share_.stop = stop_asked;
  share_.save = std::exchange(save_asked, false);
  share_.checkpoint = checkpointer ? checkpointer->phase() : Checkpointer::Phase::kIdle;
  checkpoint_phases_.clear();
  std::vector<LossPart> parts(losses_.size());
  for (std::size_t a = 0; a < losses_.size(); ++a) {
    parts[a] = {.share = means_tokens() ? loss_shares_[a] : 1, .loss = losses_[a]};
  }
  std::vector<std::byte> mine(sizeof(Share) + parts.size() * sizeof(LossPart));
  std::memcpy(mine.data(), &share_, sizeof(Share));
  std::memcpy(mine.data() + sizeof(Share), parts.data(), parts.size() * sizeof(LossPart));
  const std::size_t bytes = mine.size();
  const std::vector<std::byte> all = co_await of_all_ranks(std::move(mine));
  for (std::size_t r = 0; r < world; ++r) {
    Share share;
    std::memcpy(&share, all.data() + r * bytes, sizeof(Share));
    result.tokens += share.tokens;
    result.sequences += share.sequences;
    result.micro_batches_unlabelled += share.unlabelled;
    result.stop_asked = result.stop_asked || share.stop;
    result.save_asked = result.save_asked || share.save;
    checkpoint_phases_.push_back(share.checkpoint);
    result.sequence_length = std::max(result.sequence_length, share.longest);
  }
  for (std::size_t a = 0; a < losses_.size(); ++a) {
    for (std::size_t r = 0; r < world; r += sharers) {
      LossPart part;
      std::memcpy(&part, all.data() + r * bytes + sizeof(Share) + a * sizeof(LossPart),
                  sizeof(LossPart));
      result.loss += part.share * static_cast<double>(part.loss);
    }
  }
  result.micro_batches = static_cast<std::int64_t>(losses_.size() * (world / sharers));
  if (!means_tokens()) {
    result.loss /= static_cast<double>(result.micro_batches);
  }
  co_return result;
}

}  // namespace tandem
