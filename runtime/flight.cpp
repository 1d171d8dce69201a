#include "runtime/flight.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tandem::flight {
namespace {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

constexpr std::array<std::string_view, static_cast<std::size_t>(Kind::kCount)> kNames = {
    "nothing",    "meet",           "connect",    "load", "step",    "verdict",
    "updates",    "checkpoint",     "save",       "end",  "blame",   "all-gather",
    "all-to-all", "reduce-scatter", "all-reduce", "norm", "exchange"};

// ---- the fault point ----
struct Fault {
  Kind what = Kind::kNone;
  std::string action;
  std::atomic<std::int64_t> left{0};
};

/// RANK:ACTION:OPERATION:COUNT, of this rank; what is no such thing plants nothing.
void read_fault(Fault& fault, std::string_view text) {
  std::array<std::string_view, 4> parts;
  for (std::string_view& part : parts) {
    part = text.substr(0, text.find(':'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
  }
  const char* rank = std::getenv("RANK");
  const auto name = std::ranges::find(kNames, parts[2]);
  std::int64_t count = 0;
  std::from_chars(parts[3].data(), parts[3].data() + parts[3].size(), count);
  if (parts[0] == (rank != nullptr ? rank : "0") && name != kNames.end() && count > 0) {
    fault.action = parts[1];
    fault.left = count;
    fault.what = static_cast<Kind>(name - kNames.begin());
  }
}

void happen(Fault& fault, const Entry& entry) noexcept {
  if (entry.what != fault.what || entry.edge != Edge::kBegins || --fault.left != 0) {
    return;
  }
  std::fprintf(stderr, "[fault] %s at %s, as TANDEM_FAULT says\n", fault.action.c_str(),
               entry.text().c_str());
  std::fflush(stderr);
  if (fault.action.starts_with("sleep")) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::atof(&fault.action[5])));
  } else {
    const int number = fault.action == "kill"   ? SIGKILL
                       : fault.action == "stop" ? SIGSTOP
                                                : SIGTERM;
    (void)::kill(::getpid(), number);
  }
}

// ---- this process's ring ----
struct Own {
  Own() {
    if (const char* text = std::getenv("TANDEM_FLIGHT_FD")) {
      ring = map_ring(std::atoi(text));
    }
    if (ring == nullptr) {
      static Ring in_memory;
      ring = &in_memory;
    }
    if (const char* text = std::getenv("TANDEM_FAULT")) {
      read_fault(fault, text);
    }
  }
  Ring* ring = nullptr;
  Fault fault;
};

Own& own() noexcept {
  alignas(Own) static std::array<std::byte, sizeof(Own)> memory;
  static Own* const made = new (memory.data()) Own();  // outlives the threads that record
  return *made;
}

std::string size_text(std::uint64_t bytes) {
  constexpr double kKi = 1024;
  const auto size = static_cast<double>(bytes);
  return bytes < 1024             ? fmt::format("{} B", bytes)
         : size < kKi * kKi       ? fmt::format("{:.1f} KiB", size / kKi)
         : size < kKi * kKi * kKi ? fmt::format("{:.1f} MiB", size / kKi / kKi)
                                  : fmt::format("{:.1f} GiB", size / kKi / kKi / kKi);
}

/// A rank may write any time into its ring.
double seconds_between(std::int64_t from_ns, std::int64_t to_ns) {
  return (static_cast<double>(to_ns) - static_cast<double>(from_ns)) * 1e-9;
}

std::string list_of(const std::vector<std::size_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// Gathers and reductions are numbered apart.
bool is_reduction(Kind what) noexcept { return what >= Kind::kReduceScatter; }

/// The point that a rank has reached in one sequence of collectives.
struct Progress {
  std::optional<Entry> last;  // begun
  bool is_open = false;
  bool gave_up = false;  // it failed, and that is still where the rank waited
};

Progress progress_of(const std::vector<Entry>& entries, bool reductions) {
  Progress progress;
  for (const Entry& entry : entries) {
    if (!is_collective(entry.what) || entry.group != 0 || is_reduction(entry.what) != reductions) {
      continue;
    }
    if (entry.edge == Edge::kBegins) {
      progress = {entry, true, false};
    } else if (progress.last && progress.last->number == entry.number) {
      progress.is_open = entry.edge != Edge::kEnds;
      progress.gave_up = entry.edge == Edge::kFails;
    }
  }
  return progress;
}

}  // namespace

std::string_view name_of(Kind what) noexcept {
  return what < Kind::kCount ? kNames[static_cast<std::size_t>(what)] : "?";
}

std::string Entry::text() const {
  std::string text(name_of(what));
  if (is_collective(what) || what == Kind::kStep) {
    text += fmt::format(" {}", number);
  } else if (what == Kind::kBlame) {
    text += fmt::format(" of rank {}", number);
  }
  std::string more = unit != kNoUnit ? fmt::format("unit {}", unit) : "";
  if (bytes > 0) {
    more += fmt::format("{}{}", more.empty() ? "" : ", ", size_text(bytes));
  }
  return more.empty() ? text : fmt::format("{} ({})", text, more);
}

std::int64_t now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void Ring::record(const Entry& entry) noexcept {
  const std::uint64_t index = next.fetch_add(1, std::memory_order_relaxed);
  Slot& into = slot[index % kSlots];
  // A thread that stood still in here while the others went once around finds its slot newer, or
  // they find theirs half written: the one that comes second leaves its entry out.
  std::uint64_t before = into.sequence.load(std::memory_order_relaxed);
  if ((before & kBeingWritten) != 0 || before > index ||
      !into.sequence.compare_exchange_strong(before, (index + 1) | kBeingWritten,
                                             std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
    return;
  }
  std::atomic_thread_fence(std::memory_order_release);
  into.time_ns.store(entry.time_ns, std::memory_order_relaxed);
  into.kind.store(static_cast<std::uint64_t>(entry.what) |
                      static_cast<std::uint64_t>(entry.edge) << 16 |
                      static_cast<std::uint64_t>(entry.group) << 24 |
                      static_cast<std::uint64_t>(entry.unit) << 32,
                  std::memory_order_relaxed);
  into.number.store(entry.number, std::memory_order_relaxed);
  into.bytes.store(entry.bytes, std::memory_order_relaxed);
  into.sequence.store(index + 1, std::memory_order_release);
}

std::vector<Entry> Ring::entries(std::size_t most) const {
  std::vector<Entry> found;
  const std::uint64_t end = next.load(std::memory_order_acquire);
  const std::uint64_t kept = std::min<std::uint64_t>({end, kSlots, most});
  for (std::uint64_t index = end - kept; index < end; ++index) {
    const Slot& from = slot[index % kSlots];
    if (from.sequence.load(std::memory_order_acquire) != index + 1) {
      continue;
    }
    const std::uint64_t kind = from.kind.load(std::memory_order_relaxed);
    const Entry entry{.what = static_cast<Kind>(kind & 0xffff),
                      .edge = static_cast<Edge>(kind >> 16 & 0xff),
                      .group = static_cast<std::uint8_t>(kind >> 24),
                      .unit = static_cast<std::uint32_t>(kind >> 32),
                      .number = from.number.load(std::memory_order_relaxed),
                      .bytes = from.bytes.load(std::memory_order_relaxed),
                      .time_ns = from.time_ns.load(std::memory_order_relaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (from.sequence.load(std::memory_order_relaxed) == index + 1) {
      found.push_back(entry);
    }
  }
  return found;
}

void record(Entry entry) noexcept {
  Own& mine = own();
  entry.time_ns = now_ns();
  mine.ring->record(entry);
  if (mine.fault.what != Kind::kNone) [[unlikely]] {
    happen(mine.fault, entry);
  }
}

// Sealed: a file that a rank makes shorter would end its launcher, which reads the mapping, by a
// SIGBUS.
int make_ring_file() noexcept {
  const int descriptor = ::memfd_create("tandem-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) {
    return -1;
  }
  if (::ftruncate(descriptor, sizeof(Ring)) == 0 &&
      ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    void* const at =
        ::mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at != MAP_FAILED) {
      new (at) Ring();
      ::munmap(at, sizeof(Ring));
      return descriptor;
    }
  }
  ::close(descriptor);
  return -1;
}

Ring* map_ring(int descriptor) noexcept {
  const int seals = descriptor < 0 ? -1 : ::fcntl(descriptor, F_GET_SEALS);
  struct stat file{};
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(descriptor, &file) != 0 ||
      file.st_size != static_cast<off_t>(sizeof(Ring))) {
    return nullptr;
  }
  void* const at = ::mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) {
    return nullptr;
  }
  auto* const ring = static_cast<Ring*>(at);
  if (ring->magic != Ring::kMagic || ring->version != Ring::kVersion ||
      ring->slots != Ring::kSlots) {
    ::munmap(at, sizeof(Ring));
    return nullptr;
  }
  return ring;
}

const Ring& own_ring() noexcept { return *own().ring; }

std::string describe(const std::vector<Entry>& entries, std::int64_t now_ns) {
  constexpr std::string_view kEdges[] = {"begins", "ends", "fails"};
  std::string text;
  for (const Entry& entry : entries) {
    text += fmt::format("{:+.6f} s  {} {}\n", seconds_between(now_ns, entry.time_ns), entry.text(),
                        kEdges[static_cast<std::size_t>(entry.edge) % 3]);
  }
  return text;
}

std::string last_of(const std::vector<Entry>& entries, std::int64_t now_ns) {
  const auto newest = std::find_if(entries.rbegin(), entries.rend(),
                                   [](const Entry& one) { return one.what != Kind::kBlame; });
  if (newest == entries.rend()) {
    return "it had not begun anything";
  }
  const Entry& last = *newest;
  const char* edge = last.edge == Edge::kBegins ? "began"
                     : last.edge == Edge::kEnds ? "ended"
                                                : "failed";
  return fmt::format("its last: {} {} {:.1f} s ago", last.text(), edge,
                     seconds_between(last.time_ns, now_ns));
}

std::optional<std::uint64_t> blamed_by(const std::vector<Entry>& entries) {
  const auto last = std::find_if(entries.rbegin(), entries.rend(),
                                 [](const Entry& one) { return one.what == Kind::kBlame; });
  return last == entries.rend() ? std::nullopt : std::optional(last->number);
}

std::optional<Explanation> explain(const std::vector<std::vector<Entry>>& ranks,
                                   std::int64_t now_ns) {
  std::optional<Explanation> best;
  double longest = 0;
  for (const bool reductions : {false, true}) {
    std::vector<Progress> all;
    std::optional<Entry> stuck;  // the earliest that a rank waits in
    for (const auto& entries : ranks) {
      const Progress& one = all.emplace_back(progress_of(entries, reductions));
      if (one.is_open && (!stuck || one.last->number < stuck->number)) {
        stuck = one.last;
      }
    }
    if (!stuck) {
      continue;
    }
    std::vector<std::size_t> waiting;
    std::vector<std::size_t> absent;
    std::int64_t since_ns = now_ns;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].last || all[rank].last->number < stuck->number) {
        absent.push_back(rank);
      } else if (all[rank].is_open && all[rank].last->number == stuck->number) {
        waiting.push_back(rank);
        since_ns = std::min(since_ns, all[rank].last->time_ns);
      }
    }
    // All are in it: those that have not given up, where others have, are what the others waited
    // for.
    const bool all_entered = absent.empty();
    if (all_entered) {
      std::ranges::copy_if(waiting, std::back_inserter(absent),
                           [&](std::size_t rank) { return !all[rank].gave_up; });
      if (absent.size() == waiting.size()) {
        absent.clear();
      }
    }
    const double seconds = seconds_between(since_ns, now_ns);
    if (best && (absent.empty() || seconds <= longest)) {
      continue;
    }
    longest = seconds;
    best = Explanation{.absent = absent};
    if (absent.empty()) {
      best->text = fmt::format("{} did not end {}, begun {:.1f} s ago", list_of(waiting),
                               stuck->text(), seconds);
    } else if (all_entered) {
      best->text = fmt::format("{} began {} {:.1f} s ago and did not go on; the others gave up",
                               list_of(absent), stuck->text(), seconds);
    } else {
      best->text =
          fmt::format("{} never entered {} ({}); {} wait{} in it since {:.1f} s", list_of(absent),
                      stuck->text(), last_of(ranks[absent.front()], now_ns), list_of(waiting),
                      waiting.size() == 1 ? "s" : "", seconds);
    }
  }
  return best;
}

}  // namespace tandem::flight
