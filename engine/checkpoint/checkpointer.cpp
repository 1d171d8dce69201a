#include "engine/checkpoint/checkpointer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/file.hpp"
#include "runtime/flight.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr const char* kOfAnother = "another rank could not write its part";

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
  return {
      .pool = &rank.copy_pool(),
      .optimizer = rank.optimizer().address(),
      .units = layout.units,
      .order = std::move(order),
      .state_of =
          [&rank](std::uint32_t unit) {
            return rank.loader().state_of(unit, rank.optimizer().state_of(unit).buffers);
          },
      .state_file = rank.memory().state_file(),
      .lies_at = [&rank](std::uint32_t unit) { return rank.optimizer().state_of(unit).buffers; },
      .staging_bytes = staging};
}

}  // namespace

Checkpointer::Checkpointer(Rank& rank, std::vector<std::uint32_t> update_order, Exchange exchange,
                           Options options)
    : rank_(rank),
      exchange_(std::move(exchange)),
      io_(rank.loop(), {.backend = options.io_backend, .name = "checkpoint io"}),
      hosts_(std::move(options.hosts)),
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

Task<Disks> Checkpointer::disks_of(std::string folder) {
  const Sharding& sharding = rank_.layout().sharding;
  return find_disks([this](std::string mine) { return texts_of_all_ranks(std::move(mine)); },
                    hosts_, sharding.rank, sharding.world, std::move(folder));
}

/// Where the request's folder lies, and what of a checkpoint.
Task<> Checkpointer::look_at_disks() {
  if (parent_ == request_.parent) {
    co_return;
  }
  disks_ = co_await disks_of(request_.parent);
  parent_ = request_.parent;
  const std::uint32_t me = rank_.layout().sharding.rank;
  of_own_disk_ = disks_.ranks_of(disks_.of_rank[me]);
  make_layout();
}

void Checkpointer::make_layout() {
  layout_ = disks_.are_several() ? CheckpointLayout::of(rank_.layout(), of_own_disk_, with_frozen_)
                                 : CheckpointLayout::of(rank_.layout(), {}, with_frozen_);
  writer_.use_units(layout_.units);
}

void Checkpointer::save_frozen() {
  if (!std::exchange(with_frozen_, true)) {
    make_layout();
  }
}

void Checkpointer::make_save(Start start) {
  const std::string folder = request_.parent + "/" + request_.name;
  CheckpointPlan plan{.step = request_.step,
                      .folder = folder,
                      .temporary = temporary_checkpoint(folder, nonce_text(start.low)),
                      .files = layout_.files};
  const std::uint32_t me = rank_.layout().sharding.rank;
  if (disks_.are_several()) {
    plan.slices = SlicesPlan{.save = ContentHash{start.high, start.low}.text(),
                             .disk = disks_.of_rank[me],
                             .hosts = disks_.hosts,
                             .whole = layout_.whole};
  }
  const auto place = std::ranges::find(of_own_disk_, me) - of_own_disk_.begin();
  save_ = std::make_unique<CheckpointSave>(&io_, std::move(plan), static_cast<std::uint32_t>(place),
                                           static_cast<std::uint32_t>(of_own_disk_.size()),
                                           &rank_.copy_pool());
}

Checkpointer::Start Checkpointer::new_start() {
  std::random_device random;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.high = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count()),
          .low = std::uint64_t{random()} << 32 | random()};
}

Task<bool> Checkpointer::begin(Request request) {
  co_await finish();
  begun_ = rank_.loop().now();
  request_ = std::move(request);
  flight::record({.what = flight::Kind::kCheckpoint});
  error_.clear();
  outcome_.reset();
  staged_bytes_ = 0;
  is_sealed_ = false;
  co_await look_at_disks();
  const std::uint32_t me = rank_.layout().sharding.rank;
  Start start = new_start();
  if (disks_
          .are_several()) {  // else the only one that needs it before the files are made is rank 0
    start = value_at<Start>(co_await exchange_(bytes_of(start)), 0);
  }
  if (disks_.is_first_of_its_disk(me)) {
    make_save(start);
    try {
      make_writable_folder(request_.parent, "checkpoint");
      co_await save_->create();
    } catch (...) {
      start.made = 0;
      fail(std::current_exception());
    }
  }
  const std::vector<std::byte> all = co_await exchange_(bytes_of(start));
  start = value_at<Start>(all, 0);
  for (std::uint32_t rank = 0; rank < rank_.layout().sharding.world; ++rank) {
    if (value_at<Start>(all, rank).made == 0) {
      co_await close(error_.empty() ? fmt::format("rank {} could not make its files", rank)
                                    : error_);
      co_return false;
    }
  }
  if (!save_) {
    make_save(start);
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

Task<> Checkpointer::do_phase(Phase phase, std::vector<ManifestFile> all) {
  if (phase == Phase::kSealing) {
    co_await save_->seal(std::move(all), request_.texts);
  } else if (phase == Phase::kNaming) {
    co_await save_->take_name();
  } else {
    co_await remove_older_ones();
  }
}

Task<> Checkpointer::remove_older_ones() {
  if (request_.keep > 0 && !request_.keeps_all_since.empty()) {
    warning_ = request_.keeps_all_since;
  } else if (request_.keep > 0) {
    try {
      co_await remove_older(&io_, request_.parent, request_.keep, request_.step);
    } catch (const std::exception& cause) {
      warning_ = cause.what();
    }
  }
}

namespace {

Checkpointer::Phase after(Checkpointer::Phase phase) {
  return static_cast<Checkpointer::Phase>(static_cast<std::uint8_t>(phase) + 1);
}

}  // namespace

Task<> Checkpointer::work(Checkpointer* self, Phase next, std::vector<ManifestFile> all) {
  try {
    if (self->disks_.are_several()) {
      co_await self->do_phase(next, std::move(all));
      self->rest(after(next));
    } else {
      co_await self->save_->commit(std::move(all), self->request_.texts);
      co_await self->remove_older_ones();
      self->rest(Phase::kDone);
    }
  } catch (...) {
    self->fail(std::current_exception());
    self->rest(Phase::kFailed);
  }
}

void Checkpointer::go_on(Phase ended, std::vector<ManifestFile> all) {
  const Phase next = after(ended);
  if (disks_.is_first_of_its_disk(rank_.layout().sharding.rank)) {
    rests_.reset();
    phase_ = next;
    rank_.scope().spawn("commit checkpoint", &Checkpointer::work, this, next, std::move(all));
  } else {
    rest(disks_.are_several() ? after(next) : Phase::kDone);
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
    go_on(Phase::kHashed, co_await entries_of_own_disk());
  } else if (all_are(Phase::kSealed)) {
    is_sealed_ = true;
    go_on(Phase::kSealed, {});
  } else if (all_are(Phase::kNamed)) {
    go_on(Phase::kNamed, {});
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

/// Texts differ in length; each rank sends as much as the one with most.
Task<std::vector<std::string>> Checkpointer::texts_of_all_ranks(std::string mine) {
  const auto sizes = co_await exchange_(bytes_of(static_cast<std::uint64_t>(mine.size())));
  const std::size_t world = rank_.layout().sharding.world;
  std::size_t most = 0;
  for (std::size_t r = 0; r < world; ++r) {
    most = std::max(most, static_cast<std::size_t>(value_at<std::uint64_t>(sizes, r)));
  }
  mine.resize(most, ' ');
  const auto* begin = reinterpret_cast<const std::byte*>(mine.data());
  const std::vector<std::byte> all =
      co_await exchange_(std::vector<std::byte>(begin, begin + most));
  std::vector<std::string> texts;
  texts.reserve(world);
  for (std::size_t r = 0; r < world; ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + r * most,
                       value_at<std::uint64_t>(sizes, r));
  }
  co_return texts;
}

Task<std::vector<ManifestFile>> Checkpointer::entries_of_own_disk() {
  const std::vector<std::string> texts =
      co_await texts_of_all_ranks(Manifest{.step = request_.step, .files = entries_}.json());
  std::vector<ManifestFile> of_own_disk;
  for (std::uint32_t r = 0; r < texts.size(); ++r) {
    std::vector<ManifestFile> files =
        Manifest::parse(texts[r], fmt::format("the entries of rank {}", r)).files;
    if (const std::string bad = first_not_finite(files); !bad.empty()) {
      request_.keeps_all_since = fmt::format(
          "this one is not to be resumed from, {} holds a value that is not finite", bad);
    }
    if (std::ranges::find(of_own_disk_, r) != of_own_disk_.end()) {
      std::ranges::move(files, std::back_inserter(of_own_disk));
    }
  }
  co_return of_own_disk;
}

/// The save has ended, on all ranks.
Task<> Checkpointer::close(std::string error) {
  const bool saved = error.empty();
  if (!saved && !hosts_.empty()) {  // they have no disk, and no console, in common
    const std::vector<std::string> all = co_await texts_of_all_ranks(error_);
    const auto cause = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
    if (cause != all.end()) {
      error = fmt::format("on host {}: {}", hosts_[static_cast<std::size_t>(cause - all.begin())],
                          *cause);
    }
  }
  outcome_ = {.step = request_.step,
              .path = request_.parent + "/" + request_.name,
              .error = std::move(error),
              .warning = std::exchange(warning_, ""),
              .bytes = save_ ? CheckpointPlan{.files = layout_.whole}.total_bytes() : 0,
              .seconds = std::chrono::duration<double>(rank_.loop().now() - begun_).count(),
              .staged_bytes = staged_bytes_};
  const bool stays = is_sealed_ && disks_.are_several();
  if (!saved && save_ && !stays && disks_.is_first_of_its_disk(rank_.layout().sharding.rank)) {
    co_await save_->discard();
  }
  if (trace::enabled()) {
    const auto began_ns = std::chrono::nanoseconds(begun_.time_since_epoch()).count();
    trace::track_span("checkpoint", fmt::format("checkpoint step {}", request_.step), began_ns,
                      trace::now_ns());
  }
  flight::record({.what = flight::Kind::kCheckpoint,
                  .edge = saved ? flight::Edge::kEnds : flight::Edge::kFails});
  save_.reset();
  entries_.clear();
  phase_ = Phase::kIdle;
}

std::optional<CheckpointOutcome> Checkpointer::take_outcome() {
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace tandem
