// The order of a node as bytes, each field a line, and a host's news. Bytes in their place of a
// stranger, or of an ssh that goes elsewhere, are refused.
#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "tools/launch/node_link.hpp"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "tandem launch 4";
constexpr int kMostRanks = 1 << 20;  // on all hosts together
constexpr int kMostHere = 1024;

std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  }
  return line;
}

std::string unescaped(std::string_view line) {
  std::string text;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool is_escape = line[at] == '\\' && at + 1 < line.size();
    text += !is_escape ? line[at] : line[++at] == 'n' ? '\n' : line[at];
  }
  return text;
}

/// Every field, in the order of the lines.
template <class Order, class Visit>
void visit(Order& order, const Visit& field) {
  field(order.host);
  field(order.other_host);
  for (auto* number : {&order.places.first, &order.places.here, &order.places.world,
                       &order.places.host, &order.places.hosts, &order.places.restart,
                       &order.places.max_restarts, &order.places.first_world, &order.places.port}) {
    field(*number);
  }
  field(order.settings.grace);
  field(order.settings.bind_cores_to_rank);
  field(order.places.address);
  field(order.places.secret);
  field(order.directory);
  field(order.settings.log_dir);
  field(order.variables);
  field(order.settings.command);
}

struct Writer {
  std::string& text;
  void operator()(const std::string& value) const { text += escaped(value) + "\n"; }
  template <std::integral Number>
  void operator()(Number value) const {
    text += fmt::format("{:d}\n", value);
  }
  void operator()(std::chrono::milliseconds value) const { (*this)(value.count()); }
  void operator()(const std::vector<std::string>& values) const {
    (*this)(values.size());
    for (const std::string& value : values) {
      (*this)(value);
    }
  }
};

struct Reader {
  std::string_view& text;
  [[nodiscard]] std::string_view line() const {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      throw user_error("launch", "the order of this host ends too early; see what ssh starts here");
    }
    const std::string_view found = text.substr(0, end);
    text.remove_prefix(end + 1);
    return found;
  }
  void operator()(std::string& value) const {
    value = unescaped(line());
    if (value.find('\0') != std::string::npos) {
      throw user_error("launch", "the order of this host has a zero byte in a text; leave it out");
    }
  }
  template <std::integral Number>
  void operator()(Number& value) const {
    const std::string_view found = line();
    const auto [end, error] = std::from_chars(found.data(), found.data() + found.size(), value);
    if (error != std::errc() || end != found.data() + found.size()) {
      throw user_error("launch", "the order of this host has \"{}\" for a number",
                       one_line(found.substr(0, 40)));
    }
  }
  void operator()(std::chrono::milliseconds& value) const {
    std::int64_t count = 0;
    (*this)(count);
    value = std::chrono::milliseconds(count);
  }
  void operator()(bool& value) const {
    int number = 0;
    (*this)(number);
    value = number != 0;
  }
  void operator()(std::vector<std::string>& values) const {
    std::size_t count = 0;
    (*this)(count);
    for (std::size_t index = 0; index < count; ++index) {  // line() ends it where the text does
      (*this)(values.emplace_back());
    }
  }
};

void check(const NodeOrder& order) {
  const RankPlaces& places = order.places;
  const auto within = [](std::string_view what, std::int64_t value, std::int64_t from,
                         std::int64_t to) {
    if (value < from || value > to) {
      throw user_error("launch", "the order of this host has {} {}; it takes {} to {}", what, value,
                       from, to);
    }
  };
  within("ranks here:", places.here, 1, kMostHere);
  within("ranks of all hosts:", places.world, places.here, kMostRanks);
  within("the first rank", places.first, 0, places.world - places.here);
  within("hosts:", places.hosts, 1, places.world);
  within("the host's number", places.host, 0, places.hosts - 1);
  within("restarts:", places.max_restarts, 0, 1'000'000);
  within("the restart", places.restart, 0, places.max_restarts);
  within("ranks at first:", places.first_world, 0, kMostRanks);
  within("the port", places.port, 0, 65'535);
  within("a grace in ms:", order.settings.grace.count(), 0, 1'000'000'000);
  within("words of the command:", static_cast<std::int64_t>(order.settings.command.size()), 1,
         static_cast<std::int64_t>(kMostOrderBytes));
  for (const std::string& variable : order.variables) {
    if (variable.find('=') == std::string::npos || variable.front() == '=') {
      throw user_error("launch", "the order of this host has \"{}\" for a variable",
                       one_line(variable.substr(0, 40)));
    }
  }
}

/// The word at the begin of `text`, which goes on behind its blank.
std::string_view take_word(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

std::optional<int> take_number(std::string_view& text) {
  const std::string_view word = take_word(text);
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(number)
                                                                  : std::nullopt;
}

}  // namespace

std::optional<News> parse_news(std::string_view line) {
  constexpr std::pair<std::string_view, News::What> kWords[] = {
      {"ready", News::What::kReady},     {"failed", News::What::kFailed},
      {"stopped", News::What::kStopped}, {"runs", News::What::kRuns},
      {"ended", News::What::kEnded},     {"refused", News::What::kRefused}};
  const std::string_view word = take_word(line);
  const auto known =
      std::ranges::find(kWords, word, &std::pair<std::string_view, News::What>::first);
  if (known == std::end(kWords)) {
    return std::nullopt;
  }
  News news{.what = known->second};
  const bool is_of_rank = news.what == News::What::kFailed || news.what == News::What::kStopped ||
                          news.what == News::What::kRuns;
  const bool has_code = news.what == News::What::kFailed || news.what == News::What::kEnded ||
                        news.what == News::What::kRefused;
  if (is_of_rank) {
    news.rank = take_number(line).value_or(-1);
  }
  if (has_code) {
    news.code = take_number(line).value_or(-1);
  }
  if (news.what == News::What::kFailed) {
    news.blamed = take_number(line);
    news.blamed = news.blamed && *news.blamed >= 0 ? news.blamed : std::nullopt;
  }
  news.text = line;
  const bool is_good = (!is_of_rank || news.rank >= 0) && news.code >= 0 && news.code <= 255;
  return is_good ? std::optional(std::move(news)) : std::nullopt;
}

std::string encode(const NodeOrder& order, std::string_view key) {
  std::string text;
  visit(order, Writer{text});
  return fmt::format("{} {} {}\n{}", kFormat, key, text.size(), text);
}

NodeOrder decode(std::string_view text) {
  NodeOrder order;
  visit(order, Reader{text});
  if (!text.empty()) {
    throw user_error("launch", "the order of this host goes on behind its end, by {} bytes",
                     text.size());
  }
  check(order);
  return order;
}

}  // namespace tandem
