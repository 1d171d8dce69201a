// engine/part_ranks.hpp — the collectives of a rank whose model has units of several parts (UnitSpec::parts): experts that
// are spread over ranks.
//
// Of W ranks and P parts, D = W / P ranks hold a part: rank r part r / D, as the r % D-th of them. They gather it from
// each other and reduce its gradients among themselves. The ranks r, r + D, r + 2 D, ... hold one part each; within this
// exchange group the compute lane sends what other ranks' parts are to compute, and gets it back.
// Both groups have back ends of their own, so that neither waits for what all ranks do. The exchange group's rank j is
// rank j * D + d. So the blocks of a gradient, added one after another and each in its ranks' order, are added in the
// order of all ranks: the bits of experts that every rank has.
// Thread rule: of the loop's thread, but all_to_all(), which is the compute lane's. Failure: that of the back ends
// (PeerLost); abandon() ends a lane's wait, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <semaphore>
#include <string_view>
#include <utility>

#include "actors/collectives.hpp"
#include "engine/communicator.hpp"
#include "engine/model.hpp"
#include "runtime/actor.hpp"

namespace tandem {

/// The parts of the model's units; 1: there are none. Throws user_error when they do not suit each other, the experts or
/// the number of ranks.
[[nodiscard]] std::int64_t require_parts(const Model& model, std::int64_t world_size);

/// From the compute lane. `done` is released when the arguments' memory is the sender's again, or the message was dropped.
class LaneExchange {
 public:
  struct State {
    std::binary_semaphore done{0};
    std::exception_ptr error;  // set before
  };
  LaneExchange(AllToAllArguments arguments, std::shared_ptr<State> state) noexcept
      : arguments_(arguments), state_(std::move(state)) {}
  LaneExchange(LaneExchange&& other) noexcept = default;
  LaneExchange& operator=(LaneExchange&& other) = delete;
  ~LaneExchange();

  [[nodiscard]] const AllToAllArguments& arguments() const noexcept { return arguments_; }
  void finish(std::exception_ptr error) noexcept;

 private:
  AllToAllArguments arguments_;
  std::shared_ptr<State> state_;  // also the lane's; null: finished, or moved from
};

class PartRanks final : public RankExchange {
 public:
  /// Puts a back end that knows the units' blocks around one that knows host memory.
  using Stage =
      std::function<std::unique_ptr<CollectiveBackend>(std::unique_ptr<CollectiveBackend> part)>;
  /// Blocks until all ranks are connected; they all make one, after their common back end. The arguments outlive it.
  PartRanks(Communicator& communicator, EventLoop& loop, CpuPool& pool, std::int64_t parts,
            const Stage& stage = {});

  void start(Scope& scope);
  void close();
  void abandon(std::string_view why) noexcept;

  /// Of the ranks that hold this rank's part.
  [[nodiscard]] CollectivesAddress collectives() const { return collectives_.address(); }

  [[nodiscard]] std::int64_t ranks() const noexcept override { return parts_; }
  void all_to_all(const std::byte* from, std::byte* into, std::size_t piece_bytes) override;

 private:
  class Exchanger : public Actor<Exchanger, LaneExchange> {
   public:
    explicit Exchanger(CollectiveBackend& backend) : Actor("exchange"), backend_(backend) {}
    Task<> handle(LaneExchange exchange);

   private:
    CollectiveBackend& backend_;
  };

  std::int64_t parts_;
  std::unique_ptr<CollectiveBackend> part_;      // D ranks
  std::unique_ptr<CollectiveBackend> exchange_;  // P ranks
  Collectives collectives_;
  Exchanger exchanger_;
};

}  // namespace tandem
