// tools/gpu/trace_report.hpp — what a GPU did in a window of time, as text: time by kernel, copies,
// how busy each stream was, and the gaps in which no kernel ran.
// tools/gpu/cupti_trace.cpp collects the activities; nothing here knows of CUPTI, so that made-up
// activities show what the sums are.
// Invariant: each activity counts with the part that lies inside the window.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <cxxabi.h>

namespace tandem::gpu_trace {

inline constexpr std::size_t kNameMax = 100;
inline constexpr std::size_t kKernelsShown = 45;
inline constexpr std::size_t kGapsShown = 15;

enum class Kind : std::uint8_t { kKernel, kCopy, kMemset };

struct Activity {
  std::uint64_t begin_ns;
  std::uint64_t end_ns;
  std::uint64_t bytes;
  std::uint32_t name;  // an index of names
  std::uint32_t stream;
  Kind kind;

  [[nodiscard]] std::uint64_t ns() const { return end_ns - begin_ns; }
};

inline double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }
inline unsigned long long shown(std::uint64_t count) { return count; }

/// All that was collected, and how much was lost.
struct Collected {
  std::vector<Activity> activities;
  std::vector<std::string> names;
  std::uint64_t lost = 0;
};

/// The window ends with the last kernel.
struct Window {
  double last_ms = 0;  // its length; 0: all
  double gap_us = 20;  // the shortest gap that is listed
};

// ---- time that is covered by spans

using Span = std::pair<std::uint64_t, std::uint64_t>;

/// The spans in their order, those that touch as one.
inline std::vector<Span> joined(std::vector<Span> spans) {
  std::ranges::sort(spans);
  std::vector<Span> out;
  for (const Span& span : spans) {
    if (!out.empty() && span.first <= out.back().second) {
      out.back().second = std::max(out.back().second, span.second);
    } else {
      out.push_back(span);
    }
  }
  return out;
}

inline std::uint64_t covered_ns(const std::vector<Span>& spans) {
  std::uint64_t sum = 0;
  for (const auto& [begin, end] : joined(spans)) {
    sum += end - begin;
  }
  return sum;
}

// ---- the report

struct Total {
  std::uint64_t ns = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t longest_ns = 0;

  void add(std::uint64_t time_ns, std::uint64_t moved_bytes = 0) {
    ns += time_ns;
    count += 1;
    bytes += moved_bytes;
    longest_ns = std::max(longest_ns, time_ns);
  }
};

/// The entries of a map of totals, the longest time first.
template <class Key>
std::vector<std::pair<Key, Total>> by_time(const std::map<Key, Total>& totals) {
  std::vector<std::pair<Key, Total>> order(totals.begin(), totals.end());
  std::ranges::sort(order, std::ranges::greater(),
                    [](const auto& entry) { return entry.second.ns; });
  return order;
}

/// A kernel's name for readers: demangled, without words that say nothing, and not too long.
inline std::string readable(const std::string& name) {
  int status = 0;
  const bool mangled = name.starts_with("_Z");
  char* const plain =
      mangled ? abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status) : nullptr;
  std::string text = status == 0 && plain != nullptr ? plain : name;
  std::free(plain);
  for (const std::string word :
       {"void ", "(anonymous namespace)::", "<unnamed>::", "at::native::", "at_cuda_detail::"}) {
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at)) {
      text.erase(at, word.size());
    }
  }
  if (text.size() > kNameMax) {
    text.resize(kNameMax - 3);
    text += "...";
  }
  return text;
}

class Report {
 public:
  Report(std::FILE* out, const std::vector<std::string>& names, std::vector<Activity> inside,
         std::uint64_t window_ns, double gap_us)
      : out_(out),
        names_(names),
        inside_(std::move(inside)),
        window_ns_(window_ns),
        gap_ns_(static_cast<std::uint64_t>(1e3 * gap_us)) {}

  void print() const {
    print_cover();
    print_kernels();
    print_copies();
    print_streams();
    print_gaps();
  }

 private:
  [[nodiscard]] double percent(std::uint64_t ns) const {
    return 100.0 * static_cast<double>(ns) / static_cast<double>(window_ns_);
  }

  void print_cover() const {
    std::vector<Span> kernels;
    std::vector<Span> transfers;
    std::vector<Span> all;
    for (const Activity& a : inside_) {
      (a.kind == Kind::kKernel ? kernels : transfers).emplace_back(a.begin_ns, a.end_ns);
      all.emplace_back(a.begin_ns, a.end_ns);
    }
    const std::uint64_t kernel_ns = covered_ns(kernels);
    const std::uint64_t transfer_ns = covered_ns(transfers);
    const std::uint64_t all_ns = covered_ns(all);
    std::fprintf(out_,
                 "a kernel runs for %.3f ms (%.1f %%); a copy for %.3f ms, for %.3f of them beside "
                 "a kernel; neither for %.3f ms\n",
                 ms(kernel_ns), percent(kernel_ns), ms(transfer_ns),
                 ms(kernel_ns + transfer_ns - all_ns), ms(window_ns_ - all_ns));
  }

  void print_kernels() const {
    std::map<std::uint32_t, Total> totals;
    std::uint64_t sum_ns = 0;
    for (const Activity& a : inside_) {
      if (a.kind == Kind::kKernel) {
        totals[a.name].add(a.ns());
        sum_ns += a.ns();
      }
    }
    std::fprintf(out_, "kernels, %.2f ms in sum\n%9s %6s %8s %9s %9s  name\n", ms(sum_ns), "ms",
                 "%", "count", "us each", "longest");
    Total others;
    std::size_t row = 0;
    for (const auto& [name, total] : by_time(totals)) {
      if (row++ < kKernelsShown) {
        std::fprintf(out_, "%9.3f %6.2f %8llu %9.2f %9.2f  %s\n", ms(total.ns), percent(total.ns),
                     shown(total.count), 1e3 * ms(total.ns) / static_cast<double>(total.count),
                     1e3 * ms(total.longest_ns), readable(names_[name]).c_str());
      } else {
        others.ns += total.ns;
        others.count += total.count;
      }
    }
    if (others.count > 0) {
      std::fprintf(out_, "%9.3f %6.2f %8llu %19s  %zu other kernels\n", ms(others.ns),
                   percent(others.ns), shown(others.count), "", totals.size() - kKernelsShown);
    }
  }

  void print_copies() const {
    std::map<std::uint32_t, Total> totals;
    for (const Activity& a : inside_) {
      if (a.kind != Kind::kKernel) {
        totals[a.name].add(a.ns(), a.bytes);
      }
    }
    std::fprintf(out_, "copies and memsets\n%9s %6s %8s %9s %9s\n", "ms", "%", "count", "GB",
                 "GB/s");
    for (const auto& [name, total] : by_time(totals)) {
      std::fprintf(out_, "%9.3f %6.2f %8llu %9.3f %9.2f  %s\n", ms(total.ns), percent(total.ns),
                   shown(total.count), static_cast<double>(total.bytes) / 1e9,
                   static_cast<double>(total.bytes) / static_cast<double>(total.ns),
                   names_[name].c_str());
    }
  }

  void print_streams() const {
    struct Stream {
      std::array<std::vector<Span>, 3> by_kind;
      std::vector<Span> all;
    };
    std::map<std::uint32_t, Stream> streams;
    for (const Activity& a : inside_) {
      Stream& stream = streams[a.stream];
      stream.by_kind.at(static_cast<std::size_t>(a.kind)).emplace_back(a.begin_ns, a.end_ns);
      stream.all.emplace_back(a.begin_ns, a.end_ns);
    }
    std::fprintf(out_, "streams: ms with kernels, copies, memsets; %% of the window\n");
    for (const auto& [id, stream] : streams) {
      std::fprintf(out_, "  stream %-6u %9.3f %9.3f %9.3f %6.1f  %zu activities\n", id,
                   ms(covered_ns(stream.by_kind[0])), ms(covered_ns(stream.by_kind[1])),
                   ms(covered_ns(stream.by_kind[2])), percent(covered_ns(stream.all)),
                   stream.all.size());
    }
  }

  void print_gaps() const {
    struct Length {
      const char* name;
      std::uint64_t most_ns;
      Total total;
    };
    std::array<Length, 5> lengths{{{"to 50 us", 50'000, {}},
                                   {"to 100 us", 100'000, {}},
                                   {"to 500 us", 500'000, {}},
                                   {"to 2 ms", 2'000'000, {}},
                                   {"longer", UINT64_MAX, {}}}};
    std::map<std::pair<std::uint32_t, std::uint32_t>, Total> places;  // after which, before which
    Total all;
    const Activity* last = nullptr;  // the kernel that ended last so far
    for (const Activity& a : inside_) {
      if (a.kind != Kind::kKernel) {
        continue;
      }
      if (last != nullptr && a.begin_ns > last->end_ns + gap_ns_) {
        const std::uint64_t gap_ns = a.begin_ns - last->end_ns;
        all.add(gap_ns);
        places[{last->name, a.name}].add(gap_ns);
        std::ranges::find_if(lengths, [&](const Length& l) {
          return gap_ns <= l.most_ns;
        })->total.add(gap_ns);
      }
      last = last == nullptr || a.end_ns > last->end_ns ? &a : last;
    }
    std::fprintf(out_, "no kernel for more than %.0f us: %llu times, %.3f ms (%.1f %%)\n",
                 static_cast<double>(gap_ns_) / 1e3, shown(all.count), ms(all.ns), percent(all.ns));
    for (const Length& length : lengths) {
      std::fprintf(out_, "  %-9s %6llu times %10.3f ms\n", length.name, shown(length.total.count),
                   ms(length.total.ns));
    }
    auto order = by_time(places);
    order.resize(std::min(order.size(), kGapsShown));
    for (const auto& [place, total] : order) {
      std::fprintf(out_, "  %8.3f ms in %5llu, longest %8.1f us: after %.60s, before %.60s\n",
                   ms(total.ns), shown(total.count), 1e3 * ms(total.longest_ns),
                   readable(names_[place.first]).c_str(), readable(names_[place.second]).c_str());
    }
  }

  std::FILE* out_;
  const std::vector<std::string>& names_;
  std::vector<Activity> inside_;  // by their begin
  std::uint64_t window_ns_;
  std::uint64_t gap_ns_;
};

inline void print(std::FILE* out, const Collected& all, const Window& window) {
  std::uint64_t begin_ns = UINT64_MAX;
  std::uint64_t end_ns = 0;
  for (const Activity& a : all.activities) {
    begin_ns = std::min(begin_ns, a.begin_ns);
    end_ns = a.kind == Kind::kKernel ? std::max(end_ns, a.end_ns) : end_ns;
  }
  if (end_ns == 0) {
    std::fprintf(out, "cupti_trace: no kernel ran; %zu activities, %llu lost\n",
                 all.activities.size(), shown(all.lost));
    return;
  }
  const std::uint64_t whole_ns = end_ns - begin_ns;
  const auto last_ns = static_cast<std::uint64_t>(1e6 * window.last_ms);
  begin_ns = last_ns > 0 && last_ns < whole_ns ? end_ns - last_ns : begin_ns;
  std::vector<Activity> inside;
  for (Activity a : all.activities) {
    a.begin_ns = std::max(a.begin_ns, begin_ns);
    a.end_ns = std::min(a.end_ns, end_ns);
    if (a.begin_ns < a.end_ns) {
      inside.push_back(a);
    }
  }
  std::ranges::sort(inside, {}, &Activity::begin_ns);
  std::fprintf(out, "cupti_trace: the last %.1f of %.1f ms: %zu activities, %llu lost\n",
               ms(end_ns - begin_ns), ms(whole_ns), inside.size(), shown(all.lost));
  Report(out, all.names, std::move(inside), end_ns - begin_ns, window.gap_us).print();
}

}  // namespace tandem::gpu_trace
