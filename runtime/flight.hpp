// runtime/flight.hpp — the last operations of this process, in a ring that survives it.
//
// `./tandem launch` gives each rank an anonymous file (TANDEM_FLIGHT_FD) and holds it open, so the
// ring can be read after a SIGKILL and nothing is left when the launcher ends. Without a launcher
// the ring is memory of the process, and SIGQUIT prints it (runtime/supervision/describe.hpp).
// Always on: a clock read, two atomic operations and five stores, no lock, no allocation.
// Format, version 2: Ring below, little endian, times of CLOCK_MONOTONIC. A slot counts only if its
// sequence is its entry's index plus 1. Otherwise it is being written (kBeingWritten is set), or
// its entry was left out because a thread stood still in the same slot for a whole round.
// Fault point: TANDEM_FAULT=RANK:ACTION:OPERATION:COUNT makes that rank do something to itself when
// the operation begins for the COUNT-th time (from 1): "kill", "stop", "term", or "sleep" and
// seconds, as in "1:sleep2.5:all-gather:20". For drills (tests/drills/).
// Thread rule: any thread.
//
//   { const flight::Span span(flight::Kind::kLoad); load(); }
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::flight {

enum class Kind : std::uint16_t {
  kNone,
  kMeet,     // the ranks find each other
  kConnect,  // ... and map each other's memory
  kLoad,
  kStep,  // its number
  kVerdict,
  kUpdates,
  kCheckpoint,
  kSaveModel,
  kEnd,
  kBlame,  // this rank ends because of the rank in `number`
  // Collectives; the number counts the operations of its sequence, alike on all ranks.
  kAllGather,
  kAllToAll,
  kReduceScatter,
  kAllReduce,
  kNorm,
  kExchange,
  kCount,
};
/// Returns the name, as "all-gather"; "?" for a kind that this version does not know.
[[nodiscard]] std::string_view name_of(Kind what) noexcept;
[[nodiscard]] inline bool is_collective(Kind what) noexcept {
  return what >= Kind::kAllGather && what < Kind::kCount;
}

enum class Edge : std::uint8_t { kBegins, kEnds, kFails };

inline constexpr std::uint32_t kNoUnit = UINT32_MAX;

struct Entry {
  Kind what = Kind::kNone;
  Edge edge = Edge::kBegins;
  std::uint8_t group = 0;  // of ranks; 0: all of them
  std::uint32_t unit = kNoUnit;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;
  std::int64_t time_ns = 0;  // filled in by record()

  /// "all-gather 812 (unit 7, 4.0 MiB)".
  [[nodiscard]] std::string text() const;
};

/// Adds the entry to this process's ring, with the time. Never throws, and never waits (except for
/// a fault that was asked for).
void record(Entry entry) noexcept;

/// Records that this rank gives up because of `rank`, numbered over all hosts. The last call
/// counts.
inline void blame(std::uint64_t rank) noexcept { record({.what = Kind::kBlame, .number = rank}); }

/// Records an operation that begins now and ends with the block.
class Span {
 public:
  explicit Span(Kind what, std::uint64_t number = 0) noexcept : what_(what), number_(number) {
    record({.what = what_, .number = number_});
  }
  ~Span() { record({.what = what_, .edge = Edge::kEnds, .number = number_}); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Kind what_;
  std::uint64_t number_;
};

struct Ring {
  static constexpr std::uint64_t kMagic = 0x74686c66'6d646e74;  // "tndmflht"
  static constexpr std::uint32_t kVersion = 2;
  static constexpr std::size_t kSlots = 4096;
  static constexpr std::uint64_t kBeingWritten = std::uint64_t{1} << 63;  // in a slot's sequence
  struct Slot {
    std::atomic<std::uint64_t> sequence{0};
    std::atomic<std::int64_t> time_ns{0};
    std::atomic<std::uint64_t> kind{0};  // what | edge << 16 | group << 24 | unit << 32
    std::atomic<std::uint64_t> number{0};
    std::atomic<std::uint64_t> bytes{0};
  };

  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t slots = kSlots;
  alignas(64) std::atomic<std::uint64_t> next{0};
  alignas(64) std::array<Slot, kSlots> slot;

  void record(const Entry& entry) noexcept;
  /// Returns the newest `most` entries, oldest first.
  [[nodiscard]] std::vector<Entry> entries(std::size_t most = kSlots) const;
};

/// Makes a ring in an anonymous file that child processes may inherit; returns its descriptor, or
/// -1 if that fails.
[[nodiscard]] int make_ring_file() noexcept;
/// Maps the ring of `descriptor` for as long as the process lives; null if it is not a ring.
[[nodiscard]] Ring* map_ring(int descriptor) noexcept;

/// This process's ring.
[[nodiscard]] const Ring& own_ring() noexcept;

/// One line per entry, the age first: "-1.250 s  all-gather 812 begins (unit 7, 4.0 MiB)".
[[nodiscard]] std::string describe(const std::vector<Entry>& entries, std::int64_t now_ns);

/// "its last: reduce-scatter 811 (unit 8, 4.0 MiB) ended 41.2 s ago".
[[nodiscard]] std::string last_of(const std::vector<Entry>& entries, std::int64_t now_ns);

/// Returns the rank because of which this rank said that it ends; nullopt if it named none.
[[nodiscard]] std::optional<std::uint64_t> blamed_by(const std::vector<Entry>& entries);

/// Tells which ranks wait for which others.
struct Explanation {
  std::vector<std::size_t> absent;  // ranks for which the others wait
  std::string text;                 // "rank 2 never entered reduce-scatter 812 (unit 7, 4.0 MiB)
                                    // (its last: ...); ranks 0, 1, 3 wait in it since 41.0 s"
};
/// Explains a hang from the rings' entries, by rank; nullopt if no rank waits in a collective.
[[nodiscard]] std::optional<Explanation> explain(const std::vector<std::vector<Entry>>& ranks,
                                                 std::int64_t now_ns);

/// The time of CLOCK_MONOTONIC.
[[nodiscard]] std::int64_t now_ns() noexcept;

}  // namespace tandem::flight
