#include "engine/checkpoint/checkpointer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "runtime/flight.hpp"
#include "runtime/trace.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

constexpr const char* kOfAnother = "another rank could not write its part";

CheckpointWriter::Options writer_options(Rank& rank, const CheckpointLayout& layout,
                                         std::vector<std::uint32_t> order, std::size_t staging,
                                         std::size_t piece) {
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
      .staging_bytes = staging,
      .piece_bytes = piece};
}

std::string id_of_now() {
  std::random_device random;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return ContentHash{static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count()),
                     std::uint64_t{random()} << 32 | random()}
      .text();
}

}  // namespace

Checkpointer::Machine Checkpointer::Machine::real(std::vector<std::string> hosts, std::size_t rank,
                                                  std::size_t world) {
  return {
      .find_disks =
          [hosts = std::move(hosts), rank, world](TextExchange exchange, std::string folder) {
            return tandem::find_disks(std::move(exchange), hosts, rank, world, std::move(folder));
          },
      .make_folder = [](const std::string& folder) { make_writable_folder(folder, "checkpoint"); },
      .new_id = &id_of_now};
}

Checkpointer::Checkpointer(Rank& rank, FileIo& io, std::vector<std::uint32_t> update_order,
                           CheckpointExchange exchange, Options options)
    : rank_(rank),
      io_(io),
      exchange_(std::move(exchange)),
      options_(std::move(options)),
      layout_(CheckpointLayout::of(rank.layout())),
      writer_(writer_options(rank, layout_, std::move(update_order), options_.staging_bytes,
                             options_.piece_bytes)) {
  writer_.start(rank_.scope());
}

Checkpointer::~Checkpointer() = default;

Task<> Checkpointer::end() {
  if (save_) {
    co_await save_->votes.refuse();
  }
  writer_.close();
}

Task<std::unique_ptr<CheckpointProtocol>> Checkpointer::protocol_of(std::string folder) {
  Disks disks = co_await options_.machine.find_disks(
      [this](std::string mine) { return exchange_.texts(std::move(mine)); }, std::move(folder));
  co_return CheckpointProtocol::of(std::move(disks), exchange_);
}

void Checkpointer::make_layout() {
  layout_ = protocol_ ? protocol_->layout(rank_.layout(), with_frozen_)
                      : CheckpointLayout::of(rank_.layout(), {}, with_frozen_);
  writer_.use_units(layout_.units);
}

void Checkpointer::save_frozen() {
  if (!std::exchange(with_frozen_, true)) {
    make_layout();
  }
}

Task<bool> Checkpointer::begin(Request request) {
  co_await finish();
  begun_ = rank_.loop().now();
  flight::record({.what = flight::Kind::kCheckpoint});
  error_.clear();
  outcome_.reset();
  if (parent_ != request.parent) {
    protocol_ = co_await protocol_of(request.parent);
    parent_ = request.parent;
    make_layout();
  }
  save_ = std::make_unique<RankSave>(
      RankSave::Parts{.io = &io_,
                      .pool = &rank_.copy_pool(),
                      .writer = &writer_,
                      .layout = &layout_,
                      .sharers = protocol_->disks().ranks_of(protocol_->own_disk()),
                      .rank = exchange_.rank,
                      .make_folder = options_.machine.make_folder,
                      .own_id = options_.machine.new_id()},
      std::move(request));
  rank_.scope().spawn("save checkpoint", &Checkpointer::run, this);
  while (is_active() && save_->votes.last_passed() < Phase::kMade) {
    co_await exchange_phases();
  }
  if (is_active()) {
    co_await save_->held;
  }
  co_return is_active();
}

Task<> Checkpointer::run(Checkpointer* self) {
  RankSave* const save = self->save_.get();
  Phase last = Phase::kFailed;
  try {
    co_await self->protocol_->save(save);
    last = Phase::kDone;
  } catch (const SaveVotes::Refused&) {  // another rank says why
  } catch (const std::exception& cause) {
    self->error_ = cause.what();
  }
  save->held.set();
  save->votes.end(last);
}

Task<> Checkpointer::advance(std::span<const Phase> of_ranks) {
  if (std::ranges::find(of_ranks, Phase::kFailed) != of_ranks.end()) {
    co_await save_->votes.refuse();
    co_await close(error_.empty() ? kOfAnother : error_);
  } else if (std::ranges::count(of_ranks, Phase::kDone) == std::ssize(of_ranks)) {
    co_await close("");
  } else if (SaveVotes::is_unanimous(of_ranks)) {
    std::vector<std::string> texts;
    if (SaveVotes::has_texts(of_ranks.front())) {
      texts = co_await exchange_.texts(save_->votes.says());
    }
    save_->votes.pass(std::move(texts));
  }
}

Task<> Checkpointer::exchange_phases() {
  co_await save_->votes.rests();
  const std::vector<std::byte> all =
      co_await exchange_.bytes({static_cast<std::byte>(save_->votes.phase())});
  std::vector<Phase> of_ranks(all.size());
  std::memcpy(of_ranks.data(), all.data(), all.size());
  co_await advance(of_ranks);
}

Task<> Checkpointer::finish() {
  while (is_active()) {
    co_await exchange_phases();
  }
}

/// The save has ended, on all ranks.
Task<> Checkpointer::close(std::string error) {
  const bool saved = error.empty();
  const std::vector<std::string>& hosts = options_.hosts;
  if (!saved && !hosts.empty()) {  // they have no disk, and no console, in common
    const std::vector<std::string> all = co_await exchange_.texts(error_);
    const auto cause = std::ranges::find_if(all, [](const auto& text) { return !text.empty(); });
    if (cause != all.end()) {
      error = fmt::format("on host {}: {}", hosts[static_cast<std::size_t>(cause - all.begin())],
                          *cause);
    }
  }
  const Request& request = save_->request();
  outcome_ = {
      .step = request.step,
      .path = request.parent + "/" + request.name,
      .error = std::move(error),
      .warning = save_->warning(),
      .bytes = save_->has_files() ? CheckpointPlan{.files = layout_.whole}.total_bytes() : 0,
      .seconds = std::chrono::duration<double>(rank_.loop().now() - begun_).count(),
      .staged_bytes = save_->staged_bytes()};
  if (!saved) {
    co_await save_->discard();
  }
  if (trace::enabled()) {
    const auto began_ns = std::chrono::nanoseconds(begun_.time_since_epoch()).count();
    trace::track_span("checkpoint", fmt::format("checkpoint step {}", request.step), began_ns,
                      trace::now_ns());
  }
  flight::record({.what = flight::Kind::kCheckpoint,
                  .edge = saved ? flight::Edge::kEnds : flight::Edge::kFails});
  save_.reset();
}

std::optional<CheckpointOutcome> Checkpointer::take_outcome() {
  return std::exchange(outcome_, std::nullopt);
}

}  // namespace tandem
