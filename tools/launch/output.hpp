// tools/launch/output.hpp — where a launcher's lines go: its own output and errors, and the ranks'
// logs. No call waits for a reader.
//
// Lines that the reader has not taken are held. Above kHoldsBack bytes takes_more() is false, so
// that ranks wait for a reader that is slow and no line is lost; a reader that takes nothing for
// kPatience is waited for no longer, and what goes beyond kMostHeld bytes is dropped by whole lines
// and counted. Output and errors that are one file are one queue, which keeps their order.
// Thread rule: one thread; one Output per process.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <poll.h>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

class Output {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kHoldsBack = std::size_t{1} << 20;
  static constexpr std::size_t kMostHeld = std::size_t{8} << 20;
  static constexpr std::chrono::seconds kPatience{2};

  [[nodiscard]] static Output& of_process();

  /// `to` is 1 or 2. The line has its newline.
  void write(int to, std::string_view line);
  /// The same for a line that another program waits for: it has twice the room.
  void write_news(int to, std::string_view line);
  /// Hands on what the readers take now.
  void flush();
  /// Adds the descriptors whose readers are waited for.
  void watch(std::vector<pollfd>& looked_at) const;
  /// False while a reader that still reads is behind.
  [[nodiscard]] bool takes_more() const;
  /// When takes_more() becomes true by itself; max(): there is no such time.
  [[nodiscard]] Clock::time_point next_poll() const;
  /// Whether the ranks are ending: then they wait for no reader.
  void hurry(bool is_ending) noexcept { hurries_ = is_ending; }
  /// A signal asked for the end: finish() waits kPatience at most.
  void be_brief() noexcept { is_brief_ = true; }
  /// No reader will come.
  void give_up() noexcept;
  /// Waits until takes_more(), or a signal asks this process to end.
  void wait_for_room();
  /// Waits until all is taken, no reader took anything for `patience`, or a signal asks for the
  /// end. Then says how many lines were dropped.
  void finish(std::chrono::milliseconds patience);

 private:
  enum class Kind : unsigned char { kFile, kSocket, kStream, kShared, kGone };
  struct Way {
    Kind kind = Kind::kGone;
    int descriptor = -1;
    OwnedDescriptor own;  // that of kStream: flags that no other process sees
    std::string held;
    std::size_t taken = 0;       // from `held`
    Clock::time_point progress;  // when it was empty, or its reader took something
    std::uint64_t dropped = 0;   // lines
    int error = 0;               // why; 0: there was no room
    [[nodiscard]] std::size_t bytes() const { return held.size() - taken; }
  };

  Output();
  void open(Way& way, int descriptor) const;
  void put(int to, std::string_view line, std::size_t most);
  static void flush(Way& way);
  static ssize_t write_some(const Way& way, std::string_view text);
  [[nodiscard]] bool is_behind(const Way& way) const;
  void poll_for(std::chrono::milliseconds time);
  [[nodiscard]] Way& way(int to) { return to == 2 && !is_one_ ? ways_[1] : ways_[0]; }

  Way ways_[2];
  bool is_one_ = false;  // output and errors are the same file
  bool hurries_ = false;
  bool is_brief_ = false;
};

/// A rank's log: a file of this process's own choice, which is no link and no FIFO.
class RankLog {
 public:
  RankLog() = default;
  /// Throws a user error for what is no ordinary file, or cannot be written.
  RankLog(std::string path, bool goes_on);
  ~RankLog();
  RankLog(RankLog&&) = default;
  RankLog& operator=(RankLog&&) = default;

  /// Lines that cannot be written are counted, and said once at once and once at the end.
  void write(std::string_view line);

 private:
  std::string path_;
  OwnedDescriptor file_;
  std::uint64_t lost_ = 0;  // lines
  int error_ = 0;
};

}  // namespace tandem
