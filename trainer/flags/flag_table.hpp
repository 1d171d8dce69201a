// trainer/flags/flag_table.hpp — the flags of a program as rows: names, value, what the value may
// be, and the line of --help.
//
// A row is written once; FlagTable makes the command line of it and checks the values. A program
// that lets flags contradict each other checks that itself, behind check().
// Lifetime: the values outlive the table, which outlives the parsing.
//
//   FlagTable table(app);
//   table.add({"Evaluation", {
//       {"--eval_every,--eval_steps", flags::number(e.every).count_or_share(), "Steps between
//       ..."},
//       {"--keep_best", flags::on(e.keep_best), "Save the best model by then in model-best/"}}});
//   ... parse ...
//   table.check();
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/util/enum_names.hpp"
#include "trainer/program/program.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tandem {

/// The value of a flag, and what it may be.
class FlagValue {
 public:
  using Add =
      std::function<CLI::Option*(CLI::App& app, const std::string& names, const std::string& help)>;
  using Number = std::function<std::optional<double>()>;  // nullopt: the flag is absent
  using Text = std::function<const std::string&()>;
  explicit FlagValue(Add add) : add_(std::move(add)) {}
  FlagValue(Add add, Number number) : add_(std::move(add)), number_(std::move(number)) {}
  FlagValue(Add add, Text text) : add_(std::move(add)), text_(std::move(text)) {}

  // Each of these adds a bound, and several may be given. FlagTable::check() throws user_error,
  // naming the flag, for a value beyond it. These bound numbers:
  [[nodiscard]] FlagValue above_zero(double at_most = kMostOfFlag) &&;
  [[nodiscard]] FlagValue not_negative(double at_most = kMostOfFlag) &&;
  /// A number of steps, or below 1 a share of them.
  [[nodiscard]] FlagValue count_or_share() &&;
  /// From 0 to 1; `otherwise` is the end of the message.
  [[nodiscard]] FlagValue share(std::string otherwise) &&;
  // These bound texts; a text that is empty and was not given is not checked.
  [[nodiscard]] FlagValue one_of(std::vector<std::string_view> allowed) &&;
  /// Each name between the commas must be allowed.
  [[nodiscard]] FlagValue list_of(std::vector<std::string_view> allowed) &&;
  [[nodiscard]] FlagValue checked_by(std::function<void(const std::string& text)> check) &&;

  /// The value is checked only if the flag is given.
  [[nodiscard]] FlagValue if_given() &&;
  /// The flag must be given.
  [[nodiscard]] FlagValue required() &&;
  /// --help shows no default.
  [[nodiscard]] FlagValue without_default() &&;

 private:
  friend class FlagTable;
  [[nodiscard]] FlagValue checked(std::function<void(std::string_view flag)> check) &&;
  [[nodiscard]] FlagValue checked_number(
      std::function<void(std::string_view flag, double value)> check) &&;

  Add add_;
  Number number_;
  Text text_;
  std::function<void(std::string_view flag)> check_;
  bool only_if_given_ = false;
  bool is_required_ = false;
  bool shows_default_ = true;
};

struct FlagRow {
  std::string names;  // "--save_every,--save_steps": messages have the first one
  FlagValue value;
  std::string help;
};

struct FlagGroup {
  std::string title;  // in --help; empty: the program's own
  std::vector<FlagRow> rows;
};

class FlagTable {
 public:
  /// `app` outlives it.
  explicit FlagTable(CLI::App& app) : app_(app) {}
  void add(FlagGroup group);
  void add(std::vector<FlagGroup> groups);
  /// Throws user_error for the first value that its row does not allow.
  void check() const;

 private:
  struct Added {
    std::string name;  // "--save_every"
    FlagValue value;
    CLI::Option* option;
  };

  CLI::App& app_;
  std::vector<Added> added_;
};

namespace flags {

[[nodiscard]] FlagValue text(std::string& value);
[[nodiscard]] FlagValue texts(std::vector<std::string>& values);
/// A flag that has no value.
[[nodiscard]] FlagValue on(bool& value);
[[nodiscard]] FlagValue number(double& value);
[[nodiscard]] FlagValue number(int& value);
[[nodiscard]] FlagValue number(std::int64_t& value);
[[nodiscard]] FlagValue number(std::size_t& value);
[[nodiscard]] FlagValue number(std::optional<double>& value);
[[nodiscard]] FlagValue number(std::optional<std::int64_t>& value);
/// One number or more.
[[nodiscard]] FlagValue numbers(std::vector<std::int64_t>& values);
/// 0 to 2^64 - 1 (seed_flag.hpp).
[[nodiscard]] FlagValue seed(std::uint64_t& value);
/// A flag that is accepted and has no effect.
[[nodiscard]] FlagValue ignored();
/// `set` is called with the text, and throws user_error for a text that it does not accept.
[[nodiscard]] FlagValue parsed(std::function<void(const std::string& text)> set,
                               std::string default_text);

/// One of an enum's names.
template <class E>
[[nodiscard]] FlagValue name_in(E& value, std::string flag) {
  return parsed(
      [flag = std::move(flag), &value](const std::string& text) {
        const auto parsed = parse_enum<E>(text);
        if (!parsed) {
          throw user_error("flags", "{} is \"{}\"; use {}", flag, text, choices<E>());
        }
        value = *parsed;
      },
      std::string(name_of(value)));
}

}  // namespace flags

}  // namespace tandem
