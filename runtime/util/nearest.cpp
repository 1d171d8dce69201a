#include "runtime/util/nearest.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include <fmt/format.h>

namespace tandem {
namespace {

char folded(char c) {
  if (c >= 'A' && c <= 'Z') {
    return static_cast<char>(c - 'A' + 'a');
  }
  return c == '-' ? '_' : c;
}

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (folded(c) == '_') {
      words.emplace_back();
    } else {
      words.back() += folded(c);
    }
  }
  std::erase(words, "");
  std::ranges::sort(words);
  return words;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: the swap looks two rows back.
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> last(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) &&
          folded(a[i - 2]) == folded(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::size_t name_distance(std::string_view a, std::string_view b) {
  const std::size_t letters = edit_distance(a, b);
  const std::vector<std::string> left = words_of(a);
  const std::vector<std::string> right = words_of(b);
  const auto& few = left.size() < right.size() ? left : right;
  const auto& many = left.size() < right.size() ? right : left;
  if (few.empty() || !std::ranges::includes(many, few)) {
    return letters;
  }
  return std::min(letters, 1 + many.size() - few.size());
}

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = name_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string_view likely_name(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string_view best = nearest_name(name, candidates);
  const std::size_t slip = std::max<std::size_t>(2, std::max(name.size(), best.size()) / 3);
  const std::size_t distance = name_distance(name, best);
  // A slip leaves at least one letter of the name as it was, also of a name of two letters.
  return distance <= slip && distance < name.size() ? best : std::string_view();
}

std::string name_hint(std::string_view name, std::span<const std::string_view> candidates) {
  if (candidates.empty()) {
    return "no name is known here";
  }
  if (const std::string_view likely = likely_name(name, candidates); !likely.empty()) {
    return fmt::format("did you mean \"{}\"?", likely);
  }
  return fmt::format("the nearest known name is \"{}\"", nearest_name(name, candidates));
}

}  // namespace tandem
