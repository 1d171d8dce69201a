// The files that --resume cuts: metrics.jsonl, event files, CSV files. The first byte chooses one.
#include "engine/metrics/cut_metrics.hpp"

#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {

void read(std::string_view input) {
  const int kind = input.empty() ? 0 : input.front() % 3;
  input.remove_prefix(input.empty() ? 0 : 1);
  const auto cut = [kind](std::string_view text) {
    constexpr std::int64_t kLast = 20;
    return kind == 0   ? metrics_until(text, kLast)
           : kind == 1 ? events_until(text, kLast)
                       : rows_until(text, kLast);
  };
  const std::string left = cut(input);
  expect(left.size() <= input.size() + 1, "nothing is made up");
  expect(cut(left) == left, "what was cut is cut");
}

}  // namespace tandem::fuzz
