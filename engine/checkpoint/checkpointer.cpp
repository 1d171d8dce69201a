#include "engine/checkpoint/checkpointer.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/checkpoint_folder.hpp"
#include "actors/storage/file.hpp"
#include "runtime/flight.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr const char* kOfAnother = "another rank could not write its part";

/// What rank 0 tells the others at the begin.
struct Start {
  bool made = false;
  std::uint32_t nonce = 0;
};

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  std::vector<std::byte> bytes(sizeof(T));
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

template <class T>
T value_at(const std::vector<std::byte>& bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

CheckpointWriter::Options writer_options(Rank& rank, const CheckpointLayout& layout,
                                         std::vector<std::uint32_t> order, std::size_t staging) {
  return {.pool = &rank.copy_pool(),
          .optimizer = rank.optimizer().address(),
          .units = layout.units,
          .order = std::move(order),
          .state_of =
              [&rank](std::uint32_t unit) {
                return rank.loader().state_of(unit, rank.optimizer().state_of(unit).buffers);
              },
          .staging_bytes = staging};
}

}  // namespace

Checkpointer::Checkpointer(Rank& rank, std::vector<std::uint32_t> update_order, Exchange exchange,
                           Options options)
    : rank_(rank),
      exchange_(std::move(exchange)),
      io_(rank.loop(), {.backend = options.io_backend, .name = "checkpoint io"}),
      layout_(CheckpointLayout::of(rank.layout())),
      writer_(writer_options(rank, layout_, std::move(update_order), options.staging_bytes)) {
  rests_.set();
  writer_.start(rank_.scope());
}

Checkpointer::~Checkpointer() = default;

Task<> Checkpointer::end() {
  co_await rests_;
  writer_.close();
}

// ---- the phases

Task<bool> Checkpointer::begin(Request request) {
  co_await finish();
  begun_ = rank_.loop().now();
  request_ = std::move(request);
  flight::record({.what = flight::What::kCheckpoint});
  error_.clear();
  outcome_.reset();
  staged_bytes_ = 0;
  const Sharding& sharding = rank_.layout().sharding;
  Start start{.made = true, .nonce = std::random_device()()};
  const auto make_save = [&] {
    const std::string folder = request_.parent + "/" + request_.name;
    save_ = std::make_unique<CheckpointSave>(
        &io_,
        CheckpointPlan{.step = request_.step,
                       .folder = folder,
                       .temporary = fmt::format("{}.tmp-{:08x}", folder, start.nonce),
                       .files = layout_.files},
        sharding.rank, sharding.world, &rank_.copy_pool());
  };
  if (sharding.rank == 0) {
    make_save();
    try {
      make_writable_folder(request_.parent, "checkpoint");
      co_await save_->create();
    } catch (...) {
      start.made = false;
      fail(std::current_exception());
    }
  }
  start = value_at<Start>(co_await exchange_(bytes_of(start)), 0);
  if (!start.made) {
    co_await close(error_.empty() ? "rank 0 could not make its files" : error_);
    co_return false;
  }
  if (sharding.rank != 0) {
    make_save();
  }
  try {
    co_await save_->open();
    co_await writer_.address().ask(HoldForCheckpoint{});
    rests_.reset();
    phase_ = Phase::kWriting;
    rank_.scope().spawn("write checkpoint", &Checkpointer::write, this);
  } catch (...) {
    fail(std::current_exception());
    rest(Phase::kFailed);
  }
  co_return true;
}

void Checkpointer::rest(Phase phase) {
  phase_ = phase;
  rests_.set();
}

void Checkpointer::fail(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const std::exception& cause) {
    error_ = cause.what();
  }
}

Task<> Checkpointer::write(Checkpointer* self) {
  try {
    const WriteOutcome written =
        co_await self->writer_.address().ask(WriteCheckpoint{.save = self->save_.get()});
    self->staged_bytes_ = written.staged_bytes;
    if (written.failure) {
      std::rethrow_exception(written.failure);
    }
    self->rest(Phase::kWritten);
  } catch (...) {
    self->fail(std::current_exception());
    self->rest(Phase::kFailed);
  }
}

Task<> Checkpointer::hash(Checkpointer* self) {
  try {
    self->entries_ = co_await self->save_->hash();
    self->rest(Phase::kHashed);
  } catch (...) {
    self->fail(std::current_exception());
    self->rest(Phase::kFailed);
  }
}

Task<> Checkpointer::commit(Checkpointer* self, std::vector<ManifestFile> all) {
  try {
    co_await self->save_->commit(std::move(all), self->request_.texts);
    try {
      if (self->request_.keep > 0) {
        co_await remove_older(&self->io_, self->request_.parent, self->request_.keep);
      }
    } catch (const std::exception& cause) {
      self->warning_ = cause.what();
    }
    self->rest(Phase::kDone);
  } catch (...) {
    self->fail(std::current_exception());
    self->rest(Phase::kFailed);
  }
}

Task<> Checkpointer::advance(std::span<const Phase> of_ranks) {
  const auto all_are = [&](Phase phase) {
    return std::ranges::all_of(of_ranks, [=](Phase one) { return one == phase; });
  };
  if (std::ranges::find(of_ranks, Phase::kFailed) != of_ranks.end()) {
    co_await rests_;  // what this rank still writes
    co_await close(error_.empty() ? kOfAnother : error_);
  } else if (all_are(Phase::kWritten)) {
    rests_.reset();
    phase_ = Phase::kHashing;
    rank_.scope().spawn("hash checkpoint", &Checkpointer::hash, this);
  } else if (all_are(Phase::kHashed)) {
    std::vector<ManifestFile> all = co_await entries_of_all_ranks();
    if (rank_.layout().sharding.rank == 0) {
      rests_.reset();
      phase_ = Phase::kCommitting;
      rank_.scope().spawn("commit checkpoint", &Checkpointer::commit, this, std::move(all));
    } else {
      rest(Phase::kDone);
    }
  } else if (all_are(Phase::kDone)) {
    co_await close("");
  }
}

Task<> Checkpointer::finish() {
  while (is_active()) {
    co_await rests_;
    const std::vector<std::byte> all = co_await exchange_(bytes_of(phase_));
    std::vector<Phase> of_ranks(all.size());
    std::memcpy(of_ranks.data(), all.data(), all.size());
    co_await advance(of_ranks);
  }
}

/// Ranks have a different number of files; each sends as much as the one with most.
Task<std::vector<ManifestFile>> Checkpointer::entries_of_all_ranks() {
  std::string mine = Manifest{.step = request_.step, .files = entries_}.json();
  const auto sizes = co_await exchange_(bytes_of(static_cast<std::uint64_t>(mine.size())));
  const std::size_t world = rank_.layout().sharding.world;
  std::size_t most = 0;
  for (std::size_t r = 0; r < world; ++r) {
    most = std::max(most, static_cast<std::size_t>(value_at<std::uint64_t>(sizes, r)));
  }
  mine.resize(most, ' ');
  const auto* begin = reinterpret_cast<const std::byte*>(mine.data());
  const std::vector<std::byte> texts =
      co_await exchange_(std::vector<std::byte>(begin, begin + most));
  std::vector<ManifestFile> all;
  for (std::size_t r = 0; r < world; ++r) {
    const std::string text(reinterpret_cast<const char*>(texts.data()) + r * most,
                           value_at<std::uint64_t>(sizes, r));
    for (ManifestFile& file :
         Manifest::parse(text, fmt::format("the entries of rank {}", r)).files) {
      all.push_back(std::move(file));
    }
  }
  co_return all;
}

/// The save has ended, on all ranks.
Task<> Checkpointer::close(std::string error) {
  const bool saved = error.empty();
  outcome_ = {.step = request_.step,
              .path = request_.parent + "/" + request_.name,
              .error = std::move(error),
              .warning = std::exchange(warning_, ""),
              .bytes = save_ ? CheckpointPlan{.files = layout_.files}.total_bytes() : 0,
              .seconds = std::chrono::duration<double>(rank_.loop().now() - begun_).count(),
              .staged_bytes = staged_bytes_};
  if (!saved && save_ && rank_.layout().sharding.rank == 0) {
    co_await save_->discard();
  }
  if (trace::enabled()) {
    const auto began_ns = std::chrono::nanoseconds(begun_.time_since_epoch()).count();
    trace::track_span("checkpoint", fmt::format("checkpoint step {}", request_.step), began_ns,
                      trace::now_ns());
  }
  flight::record({.what = flight::What::kCheckpoint,
                  .edge = saved ? flight::Edge::kEnds : flight::Edge::kFails});
  save_.reset();
  entries_.clear();
  phase_ = Phase::kIdle;
}

std::optional<CheckpointOutcome> Checkpointer::take_outcome() {
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace tandem
