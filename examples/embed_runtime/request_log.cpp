#include "request_log.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>

#include <fmt/format.h>

namespace {

constexpr std::size_t kFields = 5;

bool parse_line(std::string_view line, Rows& rows) {
  std::array<std::string_view, kFields> field;
  for (std::size_t i = 0; i < kFields; ++i) {
    const std::size_t comma = line.find(',');
    const bool last = i + 1 == kFields;
    if ((comma == std::string_view::npos) != last) {
      return false;
    }
    field[i] = line.substr(0, comma);
    line.remove_prefix(last ? line.size() : comma + 1);
  }
  std::array<std::uint64_t, kFields> number{};
  for (const std::size_t i : {0, 2, 3, 4}) {
    const char* end = field[i].data() + field[i].size();
    const auto [at, error] = std::from_chars(field[i].data(), end, number[i]);
    if (at != end || error != std::errc()) {
      return false;
    }
  }
  auto row = rows.find(field[1]);
  if (row == rows.end()) {
    row = rows.emplace(field[1], Stats()).first;
  }
  row->second.add({.requests = 1,
                   .errors = number[2] >= 500 ? 1U : 0U,
                   .bytes = number[3],
                   .latency_us = number[4],
                   .max_latency_us = number[4]});
  return true;
}

}  // namespace

Parsed parse_lines(std::string_view text) {
  Parsed out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!parse_line(line, out.rows) && out.bad++ == 0) {
      out.first_bad_line = out.lines;
      out.first_bad = line.substr(0, 60);
    }
    ++out.lines;
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return out;
}

std::string table_of(const Rows& rows) {
  std::string text = fmt::format("{:<10} {:>10} {:>8} {:>9} {:>9} {:>9}\n", "route", "requests",
                                 "errors", "mean_ms", "max_ms", "MB");
  for (const auto& [route, s] : rows) {
    const double mean_us = static_cast<double>(s.latency_us) / static_cast<double>(s.requests);
    text += fmt::format("{:<10} {:>10} {:>8} {:>9.3f} {:>9.3f} {:>9.1f}\n", route, s.requests,
                        s.errors, mean_us / 1e3, static_cast<double>(s.max_latency_us) / 1e3,
                        static_cast<double>(s.bytes) / 1e6);
  }
  return text;
}

std::string LogGenerator::next(std::size_t bytes) {
  constexpr std::array<std::string_view, 6> kRoutes = {"/",    "/cart",   "/login",
                                                       "/pay", "/search", "/static"};
  std::string text;
  for (; written_ < lines_ && text.size() < bytes; ++written_) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t random = state_ >> 33;
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{}\n", written_ / 7,
                   kRoutes[random % kRoutes.size()], random % 97 == 0 ? 503 : 200, random % 20'011,
                   80 + random % 9'973);
  }
  return text;
}
