#include "trainer/flags/flag_table.hpp"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "runtime/util/error.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {
namespace {

void require_in(std::string_view flag, const std::string& value,
                const std::vector<std::string_view>& allowed) {
  if (std::ranges::find(allowed, value) == allowed.end()) {
    throw user_error("flags", "{} is \"{}\"; use one of {}", flag, value, fmt::join(allowed, ", "));
  }
}

/// --help shows the value that it has beforehand.
template <class T>
FlagValue::Add add_showing(T& value) {
  return [&value](CLI::App& app, const std::string& names, const std::string& help) {
    return app.add_option(names, value, help)->capture_default_str();
  };
}

template <class T>
FlagValue::Add add_silently(T& value) {
  return [&value](CLI::App& app, const std::string& names, const std::string& help) {
    return app.add_option(names, value, help);
  };
}

template <class T>
FlagValue plain_number(T& value) {
  return {add_showing(value), FlagValue::Number([&value]() -> std::optional<double> {
            return static_cast<double>(value);
          })};
}

template <class T>
FlagValue optional_number(std::optional<T>& value) {
  return {add_silently(value), FlagValue::Number([&value]() -> std::optional<double> {
            return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
          })};
}

/// The first long name of "-e,--epochs".
std::string name_of_flag(const std::string& names) {
  const std::size_t begin = names.find("--");
  return names.substr(begin, names.find(',', begin) - begin);
}

}  // namespace

FlagValue FlagValue::checked_number(std::function<void(std::string_view, double)> check) && {
  return std::move(*this).checked(
      [number = number_, check = std::move(check)](std::string_view flag) {
        if (const auto value = number()) {
          check(flag, *value);
        }
      });
}

FlagValue FlagValue::checked(std::function<void(std::string_view)> check) && {
  check_ = [before = std::move(check_), check = std::move(check)](std::string_view flag) {
    if (before) {
      before(flag);
    }
    check(flag);
  };
  return std::move(*this);
}

FlagValue FlagValue::above_zero(double at_most) && {
  return std::move(*this).checked_number(
      [at_most](std::string_view flag, double value) { require_above_zero(flag, value, at_most); });
}

FlagValue FlagValue::not_negative(double at_most) && {
  return std::move(*this).checked_number([at_most](std::string_view flag, double value) {
    require_not_negative(flag, value, at_most);
  });
}

FlagValue FlagValue::count_or_share() && {
  return std::move(*this).checked_number(
      [](std::string_view flag, double value) { require_count_or_share(flag, value); });
}

FlagValue FlagValue::share(std::string otherwise) && {
  return std::move(*this).checked_number([otherwise](std::string_view flag, double value) {
    if (!(value >= 0 && value <= 1)) {
      throw user_error("flags", "{} is {}; {}", flag, value, otherwise);
    }
  });
}

FlagValue FlagValue::one_of(std::vector<std::string_view> allowed) && {
  return std::move(*this).checked(
      [text = text_, allowed = std::move(allowed)](std::string_view flag) {
        require_in(flag, text(), allowed);
      });
}

FlagValue FlagValue::list_of(std::vector<std::string_view> allowed) && {
  return std::move(*this).checked(
      [text = text_, allowed = std::move(allowed)](std::string_view flag) {
        for (const std::string& name : split(text())) {
          require_in(flag, name, allowed);
        }
      });
}

FlagValue FlagValue::checked_by(std::function<void(const std::string& text)> check) && {
  return std::move(*this).checked(
      [text = text_, check = std::move(check)](std::string_view) { check(text()); });
}

FlagValue FlagValue::if_given() && {
  only_if_given_ = true;
  return std::move(*this);
}

FlagValue FlagValue::required() && {
  is_required_ = true;
  return std::move(*this);
}

FlagValue FlagValue::without_default() && {
  shows_default_ = false;
  return std::move(*this);
}

void FlagTable::add(FlagGroup group) {
  for (FlagRow& row : group.rows) {
    if (!group.title.empty()) {
      app_.option_defaults()->group(group.title);
    }
    CLI::Option* const option = row.value.add_(app_, row.names, row.help);
    option->required(row.value.is_required_);
    if (!row.value.shows_default_) {
      option->default_str("");
    }
    added_.push_back({name_of_flag(row.names), std::move(row.value), option});
  }
}

void FlagTable::add(std::vector<FlagGroup> groups) {
  for (FlagGroup& group : groups) {
    add(std::move(group));
  }
}

void FlagTable::check() const {
  for (const auto& [name, value, option] : added_) {
    const bool is_unset = value.only_if_given_ || (value.text_ && value.text_().empty());
    if (value.check_ && (option->count() > 0 || !is_unset)) {
      value.check_(name);
    }
  }
}

namespace flags {

FlagValue text(std::string& value) {
  return {add_showing(value), FlagValue::Text([&value]() -> const std::string& { return value; })};
}

FlagValue texts(std::vector<std::string>& values) { return FlagValue(add_silently(values)); }

FlagValue on(bool& value) {
  return FlagValue([&value](CLI::App& app, const std::string& names, const std::string& help) {
    return app.add_flag(names, value, help);
  });
}

FlagValue number(double& value) { return plain_number(value); }
FlagValue number(int& value) { return plain_number(value); }
FlagValue number(std::int64_t& value) { return plain_number(value); }
FlagValue number(std::size_t& value) { return plain_number(value); }
FlagValue number(std::optional<double>& value) { return optional_number(value); }
FlagValue number(std::optional<std::int64_t>& value) { return optional_number(value); }

FlagValue numbers(std::vector<std::int64_t>& values) {
  const auto add = [&values](CLI::App& app, const std::string& names, const std::string& help) {
    return app.add_option(names, values, help)->expected(1, -1);
  };
  const auto least = [&values]() -> std::optional<double> {
    return values.empty() ? std::nullopt
                          : std::optional(static_cast<double>(*std::ranges::min_element(values)));
  };
  return {add, FlagValue::Number(least)};
}

FlagValue seed(std::uint64_t& value) {
  return FlagValue([&value](CLI::App& app, const std::string& names, const std::string& help) {
    add_seed(app, value, help);
    return app.get_option(names);
  });
}

FlagValue ignored() {
  return FlagValue([](CLI::App& app, const std::string& names, const std::string& help) {
    return app.add_option(names, help);
  });
}

FlagValue parsed(std::function<void(const std::string& text)> set, std::string default_text) {
  return FlagValue([set = std::move(set), default_text = std::move(default_text)](
                       CLI::App& app, const std::string& names, const std::string& help) {
    return app.add_option_function<std::string>(names, set, help)->default_str(default_text);
  });
}

}  // namespace flags

}  // namespace tandem
