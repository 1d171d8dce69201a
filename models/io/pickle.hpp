// models/io/pickle.hpp — reads Python pickles with a stack machine that has only the operations
// that build plain data; nothing is executed.
//
// A pickle is a program. Here a name is data, which a PickleRules object must allow. A call goes to
// the same object, which describes its result. Every other operation is refused. Nothing is ever
// imported or executed.
// Invariant: a value that lies in another one does not change any more, so the values form a graph
// without a cycle, at most kMaxPickleDepth deep; and no pickle makes the machine use more memory
// than a fixed multiple of its own size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/util/error.hpp"

namespace tandem {

inline constexpr std::uint16_t kMaxPickleDepth = 100;

struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kLong,  // an integer of more than 64 bits: `text` is its bytes, little-endian
    kFloat,
    kText,
    kBytes,
    kList,
    kTuple,
    kDict,
    kGlobal,  // `text` is "module.name"
    kObject,  // PickleRules' result of a call; the rules define its fields
  };
  Kind kind = Kind::kNone;
  bool placed = false;                    // lies in another value: does not change any more
  std::uint16_t depth = 0;                // of what lies inside
  std::int64_t number = 0;                // of bools, ints and objects
  double real = 0;                        // of floats
  std::string_view text;                  // in the pickle, or in memory of the rules
  std::vector<const PickleValue*> items;  // of lists and tuples; of dicts key, value, key, value

  [[nodiscard]] bool is(Kind other) const noexcept { return kind == other; }
  /// Returns whether this is the text or the bytes `wanted`: Python 2 does not tell them apart.
  [[nodiscard]] bool is_text(std::string_view wanted) const noexcept {
    return (kind == Kind::kText || kind == Kind::kBytes) && text == wanted;
  }
  /// Returns the member of a dict, the last one of that name as in Python; nullptr if there is
  /// none, or if this is no dict.
  [[nodiscard]] const PickleValue* find(std::string_view key) const noexcept;
};

/// The names that a kind of file may have, and the meaning of the calls in it. Each function except
/// allows() returns the reason for refusing the file; empty if it is accepted. `result` is a new
/// value, to which nothing refers yet.
class PickleRules {
 public:
  virtual ~PickleRules() = default;
  /// Whether "module.name" may occur.
  [[nodiscard]] virtual bool allows(std::string_view global) const = 0;
  /// `global`(*arguments); `arguments` is a tuple.
  virtual std::string call(PickleValue& result, std::string_view global,
                           const PickleValue& arguments) = 0;
  /// target.__setstate__(state); target is what call() made.
  virtual std::string set_state(PickleValue& target, const PickleValue& state) = 0;
  /// The object that lies outside of the pickle, as torch.save's storages do.
  virtual std::string persistent(PickleValue& result, const PickleValue& id);
};

/// Returns untrusted text for an error's line: printable ASCII, shortened if it is long.
std::string printable(std::string_view text);

class PickleReader {
 public:
  /// An error reads "[where] FILE COMPLAINT: reason (byte N); ADVICE".
  struct Options {
    std::string where;
    std::string file;
    std::string complaint;
    std::string advice;
    std::size_t max_values = std::size_t{1} << 20;
  };

  /// `bytes` and `rules` must outlive the reader, and the reader must outlive the values.
  PickleReader(std::string_view bytes, PickleRules& rules, Options options);
  PickleReader(const PickleReader&) = delete;
  PickleReader& operator=(const PickleReader&) = delete;

  /// Reads the next pickle in the bytes. Throws Error (kUserInput) if it is cut short, names
  /// something that is not allowed, or needs an operation, a size or a depth that is not known
  /// here. One thread.
  const PickleValue& read();

  /// Returns the position at which the last pickle ended.
  [[nodiscard]] std::size_t position() const noexcept { return at_; }
  /// Returns the error for a fault that a caller finds in the values.
  [[nodiscard]] Error refused(std::string_view reason) const;

 private:
  using Kind = PickleValue::Kind;

  std::string_view take(std::uint64_t count);
  std::uint64_t take_number(std::size_t width);
  std::string_view take_line();

  PickleValue& push(Kind kind);
  void push_number(Kind kind, std::int64_t number) { push(kind).number = number; }
  void push_text(Kind kind, std::string_view text) { push(kind).text = text; }
  void push_global(std::string_view module, std::string_view name);
  void push_long(std::string_view bytes);
  PickleValue* pop();
  std::vector<const PickleValue*> pop_some(std::size_t count);
  std::vector<const PickleValue*> pop_to_mark();
  void place(PickleValue& target, std::vector<const PickleValue*> items);
  void append(std::vector<const PickleValue*> items, Kind kind);

  bool literal(unsigned char op);
  bool text(unsigned char op);
  bool container(unsigned char op);
  bool memo(unsigned char op);
  bool object(unsigned char op);
  void remember(std::uint64_t number);
  void recall(std::uint64_t number);
  void call();
  void set_state();

  std::string_view bytes_;
  PickleRules& rules_;
  Options options_;
  std::size_t at_ = 0;
  std::deque<PickleValue> values_;
  std::deque<std::string> names_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;  // how high the stack was
  std::unordered_map<std::uint64_t, PickleValue*> memo_;
};

}  // namespace tandem
