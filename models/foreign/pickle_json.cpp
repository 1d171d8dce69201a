#include "models/foreign/pickle_json.hpp"

#include <cmath>

#include "actors/storage/json.hpp"

namespace tandem {
namespace {

using Kind = PickleValue::Kind;

// One value may stand in many places, so a small pickle can spell a huge text.
constexpr std::size_t kMostBytes = 16u << 20;

bool append(std::string& out, const PickleValue& value);

bool append_items(std::string& out, const PickleValue& value) {
  out += '[';
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    out += i == 0 ? "" : ", ";
    if (!append(out, *value.items[i])) {
      return false;
    }
  }
  out += ']';
  return true;
}

bool append_members(std::string& out, const PickleValue& value) {
  out += '{';
  for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
    if (!is_plain_text(*value.items[i])) {
      return false;
    }
    out += fmt::format("{}{}: ", i == 0 ? "" : ", ", json_quote(value.items[i]->text));
    if (!append(out, *value.items[i + 1])) {
      return false;
    }
  }
  out += '}';
  return true;
}

bool append(std::string& out, const PickleValue& value) {
  if (out.size() > kMostBytes) {
    return false;
  }
  switch (value.kind) {
    case Kind::kNone:
      out += "null";
      return true;
    case Kind::kBool:
      out += value.number != 0 ? "true" : "false";
      return true;
    case Kind::kInt:
      out += fmt::format("{}", value.number);
      return true;
    case Kind::kFloat: {
      const std::string text = fmt::format("{}", value.real);
      out += text;
      // A float stays one: Python reads 2 and 2.0 as different types.
      out += text.find_first_of(".en") == std::string::npos ? ".0" : "";
      return std::isfinite(value.real);
    }
    case Kind::kText:
      out += json_quote(value.text);
      return is_plain_text(value);
    case Kind::kList:
    case Kind::kTuple:
      return append_items(out, value);
    case Kind::kDict:
      return append_members(out, value);
    default:
      return false;
  }
}

}  // namespace

bool is_plain_text(const PickleValue& value) {
  return value.is(Kind::kText) && simdjson::validate_utf8(value.text.data(), value.text.size());
}

std::optional<std::string> json_of(const PickleValue& value) {
  std::string out;
  return append(out, value) ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace tandem
