#include "engine/config/key_value.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/ranges.h>

#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/nearest.hpp"

namespace tandem {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

/// DeepSpeed reads these blocks with pydantic, which turns strings into numbers and flags.
bool takes_strings(std::string_view path) {
  constexpr std::array<std::string_view, 10> kBlocks = {"zero_optimization.",
                                                        "fp16.",
                                                        "bf16.",
                                                        "tensorboard.",
                                                        "csv_monitor.",
                                                        "wandb.",
                                                        "comet.",
                                                        "comms_logger.",
                                                        "timers.",
                                                        "data_types."};
  return std::ranges::any_of(kBlocks, [&](std::string_view b) { return path.starts_with(b); });
}

class Reader {
 public:
  Reader(const KeyRow& row, const element& value, std::string_view where)
      : row_(row), value_(value), where_(where) {}

  [[noreturn]] void reject(std::string_view rule) const {
    throw user_error("config", "{}: {} is {}; {}", where_, row_.path, shown(), rule);
  }

  [[nodiscard]] bool boolean() const {
    bool flag = false;
    if (value_.get(flag) == simdjson::SUCCESS) {
      return flag;
    }
    std::string_view text;
    if (takes_strings(row_.path) && value_.get(text) == simdjson::SUCCESS) {
      for (const std::string_view yes : {"true", "True", "TRUE", "1", "yes", "on"}) {
        if (text == yes) {
          return true;
        }
      }
      for (const std::string_view no : {"false", "False", "FALSE", "0", "no", "off"}) {
        if (text == no) {
          return false;
        }
      }
    }
    std::int64_t number = 0;
    if (takes_strings(row_.path) && value_.get(number) == simdjson::SUCCESS &&
        (number == 0 || number == 1)) {
      return number == 1;
    }
    reject("write true or false");
  }

  [[nodiscard]] double number() const { return in_range(plain_number("write a number")); }

  [[nodiscard]] std::int64_t integer() const {
    std::int64_t exact = 0;
    if (value_.get(exact) == simdjson::SUCCESS) {
      static_cast<void>(in_range(static_cast<double>(exact)));
      return exact;
    }
    // 4e8 is a float in JSON and an integer to people.
    const double wide = plain_number("write an integer");
    const bool whole = wide == std::floor(wide) || is_size();
    if (!whole || std::abs(wide) >= 9.2e18) {
      reject("write an integer");
    }
    return static_cast<std::int64_t>(in_range(std::floor(wide)));
  }

  [[nodiscard]] std::string text() const {
    std::string_view text;
    if (value_.get(text) != simdjson::SUCCESS) {
      reject("write a string");
    }
    check_choice(text);
    return std::string(text);
  }

  [[nodiscard]] std::array<double, 2> betas() const {
    simdjson::dom::array items;
    std::array<double, 2> out{};
    if (value_.get(items) != simdjson::SUCCESS || items.size() != out.size()) {
      reject("write two numbers, e.g. [0.9, 0.999]");
    }
    std::ranges::transform(items, out.begin(), [&](const element& item) {
      double beta = -1;
      if (item.get(beta) != simdjson::SUCCESS || !(beta >= 0 && beta < 1)) {
        reject("write two numbers, each at least 0 and below 1");
      }
      return beta;
    });
    return out;
  }

  [[nodiscard]] std::vector<std::string> texts() const {
    simdjson::dom::array items;
    if (value_.get(items) != simdjson::SUCCESS) {
      reject("write a list of strings");
    }
    std::vector<std::string> out;
    for (const element& item : items) {
      std::string_view text;
      if (item.get(text) != simdjson::SUCCESS) {
        reject("write a list of strings");
      }
      out.emplace_back(text);
    }
    return out;
  }

  [[nodiscard]] WarmupShape shape() const {
    std::string_view text;
    if (value_.get(text) == simdjson::SUCCESS) {
      if (const auto shape = parse_enum<WarmupShape>(text)) {
        return *shape;
      }
    }
    reject("write \"log\" or \"linear\"");
  }

  [[nodiscard]] std::string raw(RawKey::Kind kind) const {
    std::string out;
    switch (kind) {
      case RawKey::Kind::kBool:
        return boolean() ? "true" : "false";
      case RawKey::Kind::kInt:
        return std::to_string(integer());
      case RawKey::Kind::kNumber:
        append_json_number(out, number());
        return out;
      case RawKey::Kind::kString:
        append_json_string(out, text());
        return out;
      case RawKey::Kind::kList:
        if (value_.type() != element_type::ARRAY) {
          reject("write a list");
        }
        return simdjson::minify(value_);
      case RawKey::Kind::kBlock:
        if (value_.type() != element_type::OBJECT) {
          reject("write an object");
        }
        return simdjson::minify(value_);
    }
    return out;
  }

 private:
  /// Whether it counts elements, as 0.9 * 4096^2 in files that were written by a formula.
  [[nodiscard]] bool is_size() const {
    return row_.path.starts_with("zero_optimization.") &&
           (row_.path.ends_with("_size") || row_.path.ends_with("_threshold"));
  }

  [[nodiscard]] std::string shown() const {
    constexpr std::size_t kShownMax = 60;
    std::string text = simdjson::minify(value_);
    if (text.size() > kShownMax) {
      return std::string(kind_of(value_));
    }
    return text;
  }

  [[nodiscard]] double plain_number(std::string_view rule) const {
    double number = 0;
    if (value_.get(number) == simdjson::SUCCESS) {
      return number;
    }
    std::string_view text;
    if (value_.get(text) == simdjson::SUCCESS) {
      const char* end = text.data() + text.size();
      const auto parsed = std::from_chars(text.data(), end, number);
      const bool is_number = parsed.ec == std::errc() && parsed.ptr == end && std::isfinite(number);
      if (is_number && takes_strings(row_.path)) {
        return number;
      }
      if (is_number) {
        reject("write the number without quotes");
      }
    }
    reject(rule);
  }

  [[nodiscard]] double in_range(double number) const {
    const bool low = row_.above_min ? !(number > row_.min) : !(number >= row_.min);
    if (low || !(number <= row_.max)) {
      std::string rule =
          std::isfinite(row_.min)
              ? fmt::format("it must be {} {}", row_.above_min ? "above" : "at least", row_.min)
              : "it must be";
      if (std::isfinite(row_.max)) {
        rule += fmt::format("{} at most {}", std::isfinite(row_.min) ? " and" : "", row_.max);
      }
      reject(rule);
    }
    return number;
  }

  void check_choice(std::string_view text) const {
    if (row_.choices.empty() || std::ranges::find(row_.choices, text) != row_.choices.end()) {
      return;
    }
    reject(fmt::format("it must be one of {}; {}", fmt::join(row_.choices, ", "),
                       name_hint(text, row_.choices)));
  }

  const KeyRow& row_;
  const element& value_;
  std::string_view where_;
};

}  // namespace

std::string_view kind_of(const element& value) {
  switch (value.type()) {
    case element_type::ARRAY:
      return "a list";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return "a string";
    case element_type::BOOL:
      return "true or false";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

void assign(KeyRow& row, const element& value, std::string_view where) {
  const Reader read(row, value, where);
  std::visit(Overloaded{
                 [&](RawKey& raw) { raw.json = read.raw(raw.kind); },
                 [&](bool* field) { *field = read.boolean(); },
                 [&](std::int64_t* field) { *field = read.integer(); },
                 [&](double* field) { *field = read.number(); },
                 [&](std::string* field) { *field = read.text(); },
                 [&](std::optional<bool>* field) { *field = read.boolean(); },
                 [&](std::optional<std::int64_t>* field) { *field = read.integer(); },
                 [&](std::optional<double>* field) { *field = read.number(); },
                 [&](std::array<double, 2>* field) { *field = read.betas(); },
                 [&](std::vector<std::string>* field) { *field = read.texts(); },
                 [&](WarmupShape* field) { *field = read.shape(); },
             },
             row.field);
}

std::string json_of(const KeyRow& row) {
  JsonWriter json;
  const auto optional = [&](const auto* field) {
    if (*field) {
      json.value(**field);
    } else {
      json.value(nullptr);
    }
  };
  std::visit(
      Overloaded{
          [&](const RawKey& raw) { json.raw(raw.json); },
          [&](const bool* field) { json.value(*field); },
          [&](const std::int64_t* field) { json.value(*field); },
          [&](const double* field) { json.value(*field); },
          [&](const std::string* field) { json.value(*field); },
          [&](const std::optional<bool>* field) { optional(field); },
          [&](const std::optional<std::int64_t>* field) { optional(field); },
          [&](const std::optional<double>* field) { optional(field); },
          [&](const std::array<double, 2>* field) { json.value(std::span<const double>(*field)); },
          [&](const std::vector<std::string>* field) { json.value(*field); },
          [&](const WarmupShape* field) { json.value(name_of(*field)); },
      },
      row.field);
  return json.take();
}

}  // namespace tandem
