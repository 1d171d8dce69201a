// engine/part_ranks.cpp — see part_ranks.hpp.
#include "engine/part_ranks.hpp"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

RankGroup ranks_of_part(const Communicator& communicator, std::int64_t parts) {
  const int of_part = communicator.world_size() / static_cast<int>(parts);
  const int part = communicator.rank() / of_part;
  return {.name = fmt::format("part-{}", part),
          .rank = communicator.rank() % of_part,
          .world_size = of_part};
}

std::unique_ptr<CollectiveBackend> staged(std::unique_ptr<CollectiveBackend> part,
                                          const PartRanks::Stage& stage) {
  return stage ? stage(std::move(part)) : std::move(part);
}

RankGroup exchange_group(const Communicator& communicator, std::int64_t parts) {
  const int of_part = communicator.world_size() / static_cast<int>(parts);
  return {.name = fmt::format("exchange-{}", communicator.rank() % of_part),
          .rank = communicator.rank() / of_part,
          .world_size = static_cast<int>(parts)};
}

}  // namespace

std::int64_t require_parts(const Model& model, std::int64_t world_size) {
  std::int64_t parts = 1;
  for (const UnitSpec& unit : model.units) {
    if (unit.parts == 1) {
      continue;
    }
    if (parts > 1 && unit.parts != parts) {
      throw user_error("engine",
                       "unit {} is spread over {} ranks and another one over {}; use one number",
                       unit.name, unit.parts, parts);
    }
    parts = unit.parts;
    if (parts < 1 || unit.experts % parts != 0) {
      throw user_error(
          "engine",
          "the {} experts of unit {} cannot be divided among {} ranks alike; use a divisor",
          unit.experts, unit.name, parts);
    }
  }
  if (world_size % parts != 0) {
    throw user_error("engine",
                     "experts are spread over {} ranks, and {} take part; use a divisor of that",
                     parts, world_size);
  }
  return parts;
}

// ---- from the lane to the loop and back ------------------------------------------------------------

LaneExchange::~LaneExchange() {
  if (state_ != nullptr) {
    finish(std::make_exception_ptr(ActorClosed("exchange")));
  }
}

void LaneExchange::finish(std::exception_ptr error) noexcept {
  const std::shared_ptr<State> state = std::move(state_);
  state->error = std::move(error);
  state->done.release();
}

Task<> PartRanks::Exchanger::handle(LaneExchange exchange) {
  std::exception_ptr error;
  try {
    co_await backend_.all_to_all(exchange.arguments());
  } catch (...) {
    error = std::current_exception();
  }
  exchange.finish(error);  // the lane throws it
}

void PartRanks::all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes) {
  const auto state = std::make_shared<LaneExchange::State>();
  const SendResult sent = exchanger_.address().send_blocking(
      LaneExchange({.from = from, .into = into, .bytes = piece_bytes}, state));
  state->done.acquire();  // a message that was not taken has ended, too
  if (state->error != nullptr) {
    std::rethrow_exception(state->error);
  }
  TANDEM_CHECK(sent == SendResult::kSent, "an exchange that was not taken has an error");
}

// ---- the groups --------------------------------------------------------------------------------------

PartRanks::PartRanks(Communicator& communicator, EventLoop& loop, CpuPool& pool, std::int64_t parts,
                     const Stage& stage)
    : parts_(parts),
      part_(staged(communicator.make_group_backend(loop, pool, ranks_of_part(communicator, parts)),
                   stage)),
      exchange_(communicator.make_group_backend(loop, pool, exchange_group(communicator, parts))),
      collectives_({.backend = part_.get()}),
      exchanger_(*exchange_) {}

void PartRanks::start(Scope& scope) {
  collectives_.start(scope);
  exchanger_.start(scope);
}

void PartRanks::close() {
  collectives_.close();
  exchanger_.close();
}

void PartRanks::abandon(std::string_view why) noexcept {
  part_->abandon(why);
  exchange_->abandon(why);
}

}  // namespace tandem
