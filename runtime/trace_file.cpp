#include "runtime/trace_file.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "runtime/detail/trace_events.hpp"
#include "runtime/detail/trace_ring.hpp"
#include "runtime/system/bounded_lines.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"

namespace tandem::trace {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

Error cannot_write(const std::string& path, std::string_view why) {
  return failure(ExitCode::kFailure, "trace", "cannot write {}: {}", path, why);
}

/// A file under a name of its own until it is whole, and never through a link that lies there.
class NewFile {
 public:
  NewFile(const std::string& path, bool gzip) : path_(path) {
    struct stat there{};
    if (::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode)) {
      throw cannot_write(path, "it is no regular file");
    }
    const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
    temporary_ =
        fmt::format("{}.{}.tmp-{}", path.substr(0, name), path.substr(name), fresh_nonce());
    file_ = reach::open(temporary_, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    // "T": zlib as it is, without compression.
    stream_ = file_ < 0 ? nullptr : gzdopen(file_, gzip ? "wb" : "wbT");
    if (stream_ == nullptr) {
      const int error = errno;
      if (file_ >= 0) {
        ::close(file_);
        (void)reach::remove(temporary_);
      }
      throw cannot_write(path, std::strerror(error));
    }
  }
  ~NewFile() {
    if (stream_ != nullptr) {
      gzclose(stream_);
      (void)reach::remove(temporary_);
    }
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::string_view text) {
    buffer_ += text;
    if (buffer_.size() >= kPieceBytes) {
      flush();
    }
  }
  void finish() {
    flush();
    const bool synced = gzflush(stream_, Z_FINISH) == Z_OK && ::fsync(file_) == 0;
    const int error = errno;
    const bool closed = gzclose(std::exchange(stream_, nullptr)) == Z_OK;
    if (!synced || !closed || reach::rename(temporary_, path_) != 0) {
      const int last = synced ? errno : error;
      (void)reach::remove(temporary_);
      throw cannot_write(path_, std::strerror(last));
    }
  }

 private:
  void flush() {
    const auto bytes = static_cast<unsigned>(buffer_.size());
    if (bytes > 0 && gzwrite(stream_, buffer_.data(), bytes) != static_cast<int>(bytes)) {
      throw cannot_write(path_, std::strerror(errno));
    }
    buffer_.clear();
  }

  std::string path_;
  std::string temporary_;
  int file_ = -1;
  gzFile stream_ = nullptr;
  std::string buffer_;
};

/// The events of a part, line by line.
void read_part(const std::string& path, const detail::EventSink& sink) {
  OwnedDescriptor file = open_ordinary_file(path);
  if (file.get() < 0) {
    throw failure(ExitCode::kFailure, "trace", "cannot read {}: {}", path, std::strerror(errno));
  }
  BoundedLines lines(std::move(file), BoundedLines::kLongest, UINT64_MAX);
  while (const auto line = lines.next()) {
    sink(*line);
  }
  if (!lines.is_whole() || lines.left_out() > 0) {
    throw failure(ExitCode::kFailure, "trace", "cannot read {}: it is not whole", path);
  }
}

/// All events of a file: those of this process, then the parts'.
void for_each_event(const ChromeFile& file, const detail::EventSink& sink) {
  detail::write_events(file.window, sink);
  for (const std::string& part : file.parts) {
    read_part(part, sink);
  }
}

/// The id of an arrow between ranks; none in other lines.
std::optional<std::uint64_t> rank_arrow_of(std::string_view line) {
  const std::size_t at = line.find(detail::kRankArrowMark);
  std::uint64_t id = 0;
  if (at == std::string_view::npos ||
      std::from_chars(line.data() + at + detail::kRankArrowMark.size(), line.data() + line.size(),
                      id)
              .ec != std::errc()) {
    return std::nullopt;
  }
  return id;
}

/// The file's text, piece by piece.
void write_text(const ChromeFile& file, const std::function<void(std::string_view)>& write) {
  std::unordered_map<std::uint64_t, int> ends_of_arrow;
  for_each_event(file, [&](std::string_view line) {
    if (const auto id = rank_arrow_of(line)) {
      ++ends_of_arrow[*id];
    }
  });
  write(fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{},\"traceEvents\":[",
                    file.other_data));
  bool first = true;
  for_each_event(file, [&](std::string_view line) {
    if (const auto id = rank_arrow_of(line); id && ends_of_arrow[*id] != 2) {
      return;
    }
    write(std::exchange(first, false) ? "\n" : ",\n");
    write(line);
  });
  write("\n]}\n");
}

}  // namespace

Kept kept() {
  detail::Registry& all = detail::registry();
  const std::lock_guard lock(all.mutex);
  Kept kept{.since_ns = all.period.began_ns,
            .until_ns = all.period.ended_ns > 0 ? all.period.ended_ns : detail::now_ns()};
  for (const auto& ring : all.rings) {
    const detail::Ring::Contents contents = ring->read();
    if (contents.dropped && !contents.entries.empty()) {
      // Records come with their ends: what ended before the oldest one's may be lost.
      kept.since_ns = std::max(kept.since_ns, contents.entries.front().end_ns());
      kept.dropped = true;
    }
    for (const detail::Ring::Entry& entry : contents.entries) {
      if (entry.kind == detail::Kind::kStep) {
        kept.steps.push_back({static_cast<std::int64_t>(entry.id), entry.start_ns});
      }
    }
  }
  std::erase_if(kept.steps, [&](const StepMark& step) {
    return step.at_ns < kept.since_ns || step.at_ns > kept.until_ns;
  });
  std::ranges::sort(kept.steps, {}, &StepMark::at_ns);
  return kept;
}

Window window_of(const Kept& kept) {
  const bool from_step = kept.dropped && !kept.steps.empty();
  return {from_step ? kept.steps.front().at_ns : kept.since_ns, kept.until_ns};
}

void write_part(const std::string& path, const Window& window) {
  NewFile file(path, /*gzip=*/true);
  detail::write_events(window, [&file](std::string_view line) {
    file.write(line);
    file.write("\n");
  });
  file.finish();
}

void write_chrome_json(const std::string& path, const ChromeFile& file) {
  NewFile written(path, path.ends_with(".gz"));
  write_text(file, [&written](std::string_view text) { written.write(text); });
  written.finish();
}

void write_chrome_json(const std::string& path) {
  write_chrome_json(path, {.window = window_of(kept())});
}

std::string chrome_json() {
  std::string text;
  write_text({.window = window_of(kept())}, [&text](std::string_view piece) { text += piece; });
  return text;
}

}  // namespace tandem::trace
