// actors/collectives/comms_log.hpp — counts and times the collectives of this rank by kind and
// size, and measures how long the compute lane waited for them.
//
// Logging adds no waits: an operation's time runs from its issue to its end on this rank. Exposed
// time is the part of it in which the compute lane waited for the operation's sequence (LaneWait).
// Since one operation of a sequence is under way at a time, the lane waited for this one. Memory is
// bounded: kMostRows sizes, kLatest times of each, kMostVerbose lines.
// Thread rule: one thread at a time: the loop's, or the compute lane's for operations that it
// issues itself.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "runtime/event_loop.hpp"
#include "runtime/flight.hpp"

namespace tandem {

/// The two sequences of Collectives.
enum class CommSequence : std::uint8_t { kGathers, kReductions };

/// Operations of one kind and size; with CommsLog::Options::by_unit also of one unit.
struct CommsKey {
  std::uint8_t group = 0;   // of ranks; 0: all of them
  std::uint32_t ranks = 1;  // in it
  flight::Kind what = flight::Kind::kNone;
  std::uint64_t bytes = 0;  // of the whole block, or of all ranks' bytes in an exchange
  std::uint32_t unit = flight::kNoUnit;
  auto operator<=>(const CommsKey&) const = default;
};

struct CommsCount {
  std::uint64_t operations = 0;
  double total_s = 0;
  double exposed_s = 0;
  std::vector<float> latest_s;  // ring: operation i is at i % CommsLog::kLatest
};

class CommsLog {
 public:
  static constexpr std::size_t kMostRows = 1024;
  static constexpr std::size_t kLatest = 4096;
  static constexpr std::size_t kMostVerbose = 1000;

  struct Options {
    std::uint32_t operations = UINT32_MAX;  // bits by flight::Kind: those that are counted
    bool by_unit = false;
    bool verbose = false;  // keep each of the first kMostVerbose operations for take_verbose()
  };
  struct Verbose {
    CommsKey key;
    double seconds = 0;
  };

  explicit CommsLog(Options options) : options_(options) {}

  /// Sets whether later operations are counted. The exchanges that compare logs are not. Call it
  /// between operations.
  void set_counting(bool counts) noexcept { counts_ = counts; }
  /// Records an operation of several ranks that has ended.
  void add(CommsKey key, Duration took, Duration exposed);

  /// Record that the compute lane begins, or ends, a wait for operations of `sequence`. Waits may
  /// nest.
  void lane_waits(CommSequence sequence, TimePoint now) noexcept;
  void lane_goes_on(CommSequence sequence, TimePoint now) noexcept;
  /// Returns how long the compute lane has waited for `sequence` in all, up to `now`.
  [[nodiscard]] Duration stood_still(CommSequence sequence, TimePoint now) const noexcept;

  [[nodiscard]] const std::map<CommsKey, CommsCount>& rows() const noexcept { return rows_; }
  /// Returns the number of operations that were not counted because there were kMostRows sizes
  /// already.
  [[nodiscard]] std::uint64_t left_out() const noexcept { return left_out_; }
  /// Returns the operations since the last call, in order.
  [[nodiscard]] std::vector<Verbose> take_verbose();
  /// Returns whether take_verbose() will not get any further operations.
  [[nodiscard]] bool verbose_is_full() const noexcept { return verbose_count_ >= kMostVerbose; }

 private:
  struct Standing {
    int waits = 0;  // nested
    TimePoint since{};
    Duration total{0};
  };

  Options options_;
  bool counts_ = true;
  std::map<CommsKey, CommsCount> rows_;
  std::uint64_t left_out_ = 0;
  std::array<Standing, 2> standing_;  // [CommSequence]
  std::vector<Verbose> verbose_;
  std::size_t verbose_count_ = 0;
};

/// Records a wait of the compute lane for operations of `sequence`, which lasts as long as the
/// object. `log` may be null.
class LaneWait {
 public:
  LaneWait(CommsLog* log, CommSequence sequence, const EventLoop& loop) noexcept
      : log_(log), sequence_(sequence), loop_(&loop) {
    if (log_ != nullptr) {
      log_->lane_waits(sequence_, loop_->now());
    }
  }
  ~LaneWait() {
    if (log_ != nullptr) {
      log_->lane_goes_on(sequence_, loop_->now());
    }
  }
  LaneWait(const LaneWait&) = delete;
  LaneWait& operator=(const LaneWait&) = delete;

 private:
  CommsLog* log_;
  CommSequence sequence_;
  const EventLoop* loop_;
};

}  // namespace tandem
