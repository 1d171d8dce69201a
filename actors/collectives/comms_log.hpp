// actors/collectives/comms_log.hpp — how often each collective of each size has run on this rank,
// how long it took, and how long the compute lane stood still for it.
//
// Nothing waits for anything because of it: an operation's time goes from its issue to its end, as
// the rank sees them. Exposed time is the part of it in which the compute lane waited for the
// operation's sequence (LaneWait): one operation of a sequence is under way at a time, so the lane
// waited for this one.
// Memory is bounded: kMostRows sizes, kLatest times of each, kMostVerbose lines.
// Thread rule: one thread at a time: the loop's, or the compute lane's for what it issues itself.
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
  std::uint64_t bytes = 0;  // of the whole block, or of what all ranks tell each other
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

  /// Between operations: whether those that follow are counted. Comparisons of logs are not.
  void set_counting(bool counts) noexcept { counts_ = counts; }
  /// An operation of several ranks has ended.
  void add(CommsKey key, Duration took, Duration exposed);

  /// The compute lane begins, ends to stand still for operations of that sequence.
  void lane_waits(CommSequence sequence, TimePoint now) noexcept;
  void lane_goes_on(CommSequence sequence, TimePoint now) noexcept;
  /// For how long it has until `now`.
  [[nodiscard]] Duration stood_still(CommSequence sequence, TimePoint now) const noexcept;

  [[nodiscard]] const std::map<CommsKey, CommsCount>& rows() const noexcept { return rows_; }
  /// Operations of sizes beyond kMostRows.
  [[nodiscard]] std::uint64_t left_out() const noexcept { return left_out_; }
  /// The operations since the last call, in order.
  [[nodiscard]] std::vector<Verbose> take_verbose();
  /// Whether further ones will not be kept.
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

/// While it lives the compute lane stands still for operations of that sequence. `log` may be null.
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
