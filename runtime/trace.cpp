#include "runtime/trace.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/util/error.hpp"

namespace tandem::trace {

namespace detail {
std::atomic<bool> on{false};
}

namespace {

using detail::Kind;

std::atomic<int> g_rank{-1};
constinit thread_local int t_rank = -1;

struct Record {
  Kind kind;
  int rank;  // -1: none
  const char* name;
  std::int64_t start_ns;
  std::int64_t duration_ns;
  std::uint64_t id;
};

// One writer (its thread), any reader. The fields are atomics so that a reader may look while the
// writer overwrites; what it looked at meanwhile it throws away.
class Ring {
 public:
  Ring(std::size_t records, int thread_id)
      : slots_(std::make_unique<Slot[]>(records)), mask_(records - 1), thread_id_(thread_id) {}

  void push(const Record& record) noexcept {
    const std::uint64_t at = head_.load(std::memory_order_relaxed);
    Slot& slot = slots_[at & mask_];
    slot[0].store(
        static_cast<std::uint64_t>(record.kind) | static_cast<std::uint64_t>(record.rank + 1) << 8,
        std::memory_order_relaxed);
    slot[1].store(reinterpret_cast<std::uintptr_t>(record.name), std::memory_order_relaxed);
    slot[2].store(static_cast<std::uint64_t>(record.start_ns), std::memory_order_relaxed);
    slot[3].store(static_cast<std::uint64_t>(record.duration_ns), std::memory_order_relaxed);
    slot[4].store(record.id, std::memory_order_relaxed);
    // release: a reader that sees the new head sees the record.
    head_.store(at + 1, std::memory_order_release);
  }

  [[nodiscard]] std::vector<Record> read() const {
    const std::uint64_t end = head_.load(std::memory_order_acquire);
    const std::uint64_t capacity = mask_ + 1;
    const std::uint64_t begin = std::max(first_, end > capacity ? end - capacity : 0);
    std::vector<Record> records;
    records.reserve(end - begin);
    for (std::uint64_t at = begin; at < end; ++at) {
      const Slot& slot = slots_[at & mask_];
      const std::uint64_t kind_and_rank = slot[0].load(std::memory_order_relaxed);
      records.push_back({static_cast<Kind>(kind_and_rank & 0xff),
                         static_cast<int>(kind_and_rank >> 8) - 1,
                         reinterpret_cast<const char*>(slot[1].load(std::memory_order_relaxed)),
                         static_cast<std::int64_t>(slot[2].load(std::memory_order_relaxed)),
                         static_cast<std::int64_t>(slot[3].load(std::memory_order_relaxed)),
                         slot[4].load(std::memory_order_relaxed)});
    }
    // What the writer may have overwritten while we read, plus the slot it may be in now.
    const std::uint64_t now = head_.load(std::memory_order_acquire);
    if (now != end && now + 1 > begin + capacity) {
      const std::uint64_t stale =
          std::min<std::uint64_t>(now + 1 - capacity - begin, records.size());
      records.erase(records.begin(), records.begin() + static_cast<std::ptrdiff_t>(stale));
    }
    return records;
  }

  void clear() noexcept { first_ = head_.load(std::memory_order_relaxed); }
  [[nodiscard]] int thread_id() const noexcept { return thread_id_; }

 private:
  using Slot = std::array<std::atomic<std::uint64_t>, 6>;
  std::unique_ptr<Slot[]> slots_;
  std::uint64_t mask_;
  int thread_id_;
  std::uint64_t first_ = 0;
  std::atomic<std::uint64_t> head_{0};
};

struct ThreadName {
  int thread_id;
  std::string name;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Ring>> rings;
  std::vector<ThreadName> names;
  std::size_t records_per_thread = std::size_t{1} << 16;
};

// Never destroyed: threads may record until the process ends.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

thread_local Ring* t_ring = nullptr;

Ring& this_threads_ring() {
  if (t_ring == nullptr) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.rings.push_back(std::make_unique<Ring>(all.records_per_thread, gettid()));
    t_ring = all.rings.back().get();
  }
  return *t_ring;
}

void append_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
}

// Writes records, and in the end names for the processes, threads and streams that occurred.
class Writer {
 public:
  void add(const Record& record, int thread_id) {
    const int pid = record.rank >= 0 ? record.rank : getpid();
    const int track = record.kind == Kind::kDevice
                          ? stream_track(reinterpret_cast<const char*>(record.id))
                          : thread_id;
    tracks_.insert({pid, track});
    ranks_.insert({pid, record.rank});
    switch (record.kind) {
      case Kind::kSpan:
      case Kind::kDevice:
        begin(record, 'X', pid, track, record.start_ns);
        print(",\"cat\":\"{}\",\"dur\":{}.{:03}}}", record.kind == Kind::kSpan ? "span" : "device",
              record.duration_ns / 1000, record.duration_ns % 1000);
        break;
      case Kind::kAsync:
        begin(record, 'b', pid, track, record.start_ns);
        print(",\"cat\":\"task\",\"id\":{}}}", record.id);
        begin(record, 'e', pid, track, record.start_ns + record.duration_ns);
        print(",\"cat\":\"task\",\"id\":{}}}", record.id);
        break;
      case Kind::kTaskBegin:
      case Kind::kTaskEnd:
        begin(record, static_cast<char>(record.kind), pid, track, record.start_ns);
        print(",\"cat\":\"task\",\"id\":{}}}", record.id);
        break;
      case Kind::kFlowStart:
      case Kind::kFlowEnd:
        begin(record, static_cast<char>(record.kind), pid, track, record.start_ns);
        print(",\"cat\":\"message\",\"id\":{}{}}}", record.id,
              record.kind == Kind::kFlowEnd ? ",\"bp\":\"e\"" : "");
        break;
      case Kind::kInstant:
        begin(record, 'i', pid, track, record.start_ns);
        print(",\"cat\":\"instant\",\"s\":\"t\"}}");
        break;
      case Kind::kCounter:
        begin(record, 'C', pid, track, record.start_ns);
        print(",\"args\":{{\"value\":{}}}}}", record.id);
        break;
    }
  }

  std::string finish(const std::vector<ThreadName>& thread_names) && {
    for (const auto& [pid, rank] : ranks_) {
      metadata("process_name", pid, 0, rank >= 0 ? fmt::format("rank {}", rank) : "tandem");
    }
    for (const auto& [pid, track] : tracks_) {
      if (track >= kFirstStream) {
        metadata("thread_name", pid, track,
                 std::string("stream ") + streams_[static_cast<std::size_t>(track - kFirstStream)]);
      }
      for (const ThreadName& entry : thread_names) {
        if (entry.thread_id == track) {
          metadata("thread_name", pid, track, entry.name);
        }
      }
    }
    text_ += "\n]}\n";
    return std::move(text_);
  }

 private:
  static constexpr int kFirstStream = 1'000'000'000;  // beyond every thread id

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  void begin(const Record& record, char phase, int pid, int track, std::int64_t ns) {
    text_ += std::exchange(first_, false) ? "\n{\"name\":\"" : ",\n{\"name\":\"";
    append_escaped(text_, record.name);
    print("\",\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{}.{:03}", phase, pid, track, ns / 1000,
          ns % 1000);
  }
  void metadata(const char* what, int pid, int track, const std::string& name) {
    print("{}{{\"name\":\"{}\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"",
          std::exchange(first_, false) ? "\n" : ",\n", what, pid, track);
    append_escaped(text_, name);
    text_ += "\"}}";
  }
  int stream_track(const char* name) {
    const auto found = std::find(streams_.begin(), streams_.end(), name);
    const auto index = found - streams_.begin();
    if (found == streams_.end()) {
      streams_.push_back(name);
    }
    return kFirstStream + static_cast<int>(index);
  }

  std::string text_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
  bool first_ = true;
  std::set<std::pair<int, int>> tracks_;  // process, thread or stream
  std::map<int, int> ranks_;              // process to rank
  std::vector<const char*> streams_;      // names are interned: one address each
};

/// Removes the file, and throws.
[[noreturn]] void write_failed(const std::string& path, const std::string& temporary, int error) {
  ::unlink(temporary.c_str());
  throw failure(ExitCode::kFailure, "trace", "cannot write {}: {}", path, std::strerror(error));
}

/// Whether all of `text` went into the file, which is closed.
bool write_text(int file, const std::string& text, bool gzip) {
  // "T": zlib as it is, without compression.
  gzFile stream = gzdopen(file, gzip ? "wb" : "wbT");
  if (stream == nullptr) {
    ::close(file);
    return false;
  }
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  bool written = true;
  for (std::size_t at = 0; at < text.size() && written; at += kPieceBytes) {
    const auto bytes = static_cast<unsigned>(std::min(kPieceBytes, text.size() - at));
    written = gzwrite(stream, text.data() + at, bytes) == static_cast<int>(bytes);
  }
  written = written && gzflush(stream, Z_FINISH) == Z_OK && ::fsync(file) == 0;
  const int error = errno;
  const bool closed = gzclose(stream) == Z_OK;
  errno = written ? errno : error;
  return written && closed;
}

}  // namespace

namespace detail {

void record(Kind kind, const char* name, std::int64_t start_ns, std::int64_t duration_ns,
            std::uint64_t id) noexcept {
  const int rank = t_rank >= 0 ? t_rank : g_rank.load(std::memory_order_relaxed);
  this_threads_ring().push({kind, rank, name, start_ns, duration_ns, id});
}

std::int64_t now_ns() noexcept {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace detail

void enable(std::size_t records_per_thread) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.records_per_thread = std::bit_ceil(std::max<std::size_t>(records_per_thread, 64));
  detail::on.store(true, std::memory_order_relaxed);
}

void disable() noexcept { detail::on.store(false, std::memory_order_relaxed); }

void clear() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& ring : all.rings) {
    ring->clear();
  }
}

void set_thread_name(const std::string& name) {
  Registry& all = registry();
  const int id = gettid();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.names, [id](const ThreadName& entry) { return entry.thread_id == id; });
  all.names.push_back({id, name});
}

void set_rank(int rank) noexcept { g_rank.store(rank, std::memory_order_relaxed); }
void set_thread_rank(int rank) noexcept { t_rank = rank; }

std::string chrome_json() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Writer writer;
  for (const auto& ring : all.rings) {
    for (const Record& record : ring->read()) {
      writer.add(record, ring->thread_id());
    }
  }
  return std::move(writer).finish(all.names);
}

void write_chrome_json(const std::string& path) {
  const std::string text = chrome_json();
  struct stat there{};
  if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode)) {
    throw failure(ExitCode::kFailure, "trace", "cannot write {}: it is no regular file", path);
  }
  // Under a name of its own until it is whole, and never through a link that lies there.
  const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  const std::string temporary = fmt::format("{}.{}.tmp-{}-{:x}", path.substr(0, name),
                                            path.substr(name), getpid(), detail::now_ns());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) {
    throw failure(ExitCode::kFailure, "trace", "cannot write {}: {}", path, std::strerror(errno));
  }
  if (!write_text(file, text, path.ends_with(".gz")) ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    write_failed(path, temporary, errno);
  }
}

}  // namespace tandem::trace
