#include "models/cifar/pickle.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kMaxValues = 1 << 20;  // a batch has about 20,000

enum class Kind : std::uint8_t {
  kMark,
  kNone,
  kNumber,
  kText,
  kList,
  kTuple,
  kDict,
  kName,
  kDtype,
  kArray
};

/// One value of the pickle's machine. All live in the machine until it ends, so cycles and depth
/// cost nothing.
struct Value {
  Kind kind = Kind::kNone;
  std::int64_t number = 0;
  std::string_view text;  // of a text: in the file, or in `owned`; of a name: "module name"
  std::string owned;      // bytes that had to be decoded
  // of lists and tuples; of dicts key, value, key, value; of arrays rows, columns, bytes
  std::vector<Value*> items;
};

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, text) != names.end();
}

class Machine {
 public:
  Machine(std::string_view bytes, std::string_view name, std::string_view where)
      : bytes_(bytes), name_(name), where_(where) {}

  /// Runs to the end; the value that is left.
  const Value& run() {
    while (true) {
      const auto op = static_cast<unsigned char>(take(1).front());
      if (op == '.') {
        return *pop();
      }
      if (!literal(op) && !container(op) && !object(op)) {
        throw refused(fmt::format("operation 0x{:02x} is not one of a batch file", op));
      }
    }
  }

  [[nodiscard]] Error refused(std::string_view reason) const {
    return user_error(where_,
                      "{} is not a CIFAR-10 batch: {} (byte {}); use data_batch_1 .. 5 and "
                      "test_batch of the original archive",
                      name_, reason, at_);
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      throw refused("it is cut short");
    }
    const std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }

  /// Little-endian, unsigned.
  std::uint64_t take_number(std::size_t width) {
    const std::string_view part = take(width);
    std::uint64_t value = 0;
    std::memcpy(&value, part.data(), width);
    return value;
  }

  std::string_view take_line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      throw refused("it is cut short");
    }
    const std::string_view line = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  Value& push(Kind kind) {
    if (values_.size() >= kMaxValues) {
      throw refused("it has more values than any batch");
    }
    Value& value = values_.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return value;
  }
  void push_number(std::int64_t number) { push(Kind::kNumber).number = number; }
  void push_text(std::string_view text) { push(Kind::kText).text = text; }

  Value* pop() {
    if (stack_.empty()) {
      throw refused("its stack is empty");
    }
    Value* top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Value* top(Kind kind) {
    if (stack_.empty() || stack_.back()->kind != kind) {
      throw refused("its values do not fit together");
    }
    return stack_.back();
  }

  /// What was pushed since the last mark; the mark goes, too.
  std::vector<Value*> pop_to_mark() {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(),
                                   [](const Value* v) { return v->kind == Kind::kMark; });
    if (mark == stack_.rend()) {
      throw refused("a mark is missing");
    }
    std::vector<Value*> items(mark.base(), stack_.end());
    stack_.erase(mark.base() - 1, stack_.end());
    return items;
  }

  std::vector<Value*> pop_some(std::size_t count) {
    std::vector<Value*> items(count);
    for (std::size_t i = count; i-- > 0;) {
      items[i] = pop();
    }
    return items;
  }

  bool literal(unsigned char op) {
    switch (op) {
      case 0x80:  // PROTO
        if (const auto protocol = take_number(1); protocol > 4) {
          throw refused(fmt::format("pickle protocol {} is newer than 4", protocol));
        }
        return true;
      case 0x95:  // FRAME
        take(8);
        return true;
      case 'N':
        push(Kind::kNone);
        return true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push_number(op == 0x88 ? 1 : 0);
        return true;
      case 'K':
        push_number(static_cast<std::int64_t>(take_number(1)));
        return true;
      case 'M':
        push_number(static_cast<std::int64_t>(take_number(2)));
        return true;
      case 'J':
        push_number(static_cast<std::int32_t>(take_number(4)));
        return true;
      case 'U':   // SHORT_BINSTRING
      case 'C':   // SHORT_BINBYTES
      case 0x8c:  // SHORT_BINUNICODE
        push_text(take(take_number(1)));
        return true;
      case 'T':  // BINSTRING
      case 'B':  // BINBYTES
      case 'X':  // BINUNICODE
        push_text(take(take_number(4)));
        return true;
      case 0x8e:  // BINBYTES8
        push_text(take(take_number(8)));
        return true;
      default:
        return false;
    }
  }

  bool container(unsigned char op) {
    switch (op) {
      case '(':
        push(Kind::kMark);
        return true;
      case ')':
        push(Kind::kTuple);
        return true;
      case ']':
        push(Kind::kList);
        return true;
      case '}':
        push(Kind::kDict);
        return true;
      case 't': {
        std::vector<Value*> items = pop_to_mark();
        push(Kind::kTuple).items = std::move(items);
        return true;
      }
      case 0x85:  // TUPLE1..3
      case 0x86:
      case 0x87: {
        std::vector<Value*> items = pop_some(static_cast<std::size_t>(op - 0x84));
        push(Kind::kTuple).items = std::move(items);
        return true;
      }
      case 'a':
        append(pop_some(1), Kind::kList);
        return true;
      case 'e':
        append(pop_to_mark(), Kind::kList);
        return true;
      case 's':
        append(pop_some(2), Kind::kDict);
        return true;
      case 'u':
        append(pop_to_mark(), Kind::kDict);
        return true;
      default:
        return memo(op);
    }
  }

  void append(const std::vector<Value*>& items, Kind kind) {
    Value* target = top(kind);
    if (kind == Kind::kDict && items.size() % 2 != 0) {
      throw refused("a key without a value");
    }
    target->items.insert(target->items.end(), items.begin(), items.end());
  }

  bool memo(unsigned char op) {
    switch (op) {
      case 'q':
        remember(take_number(1));
        return true;
      case 'r':
        remember(take_number(4));
        return true;
      case 0x94:  // MEMOIZE
        remember(memo_.size());
        return true;
      case 'h':
        recall(take_number(1));
        return true;
      case 'j':
        recall(take_number(4));
        return true;
      default:
        return false;
    }
  }
  void remember(std::uint64_t number) {
    Value* value = pop();
    stack_.push_back(value);
    memo_[number] = value;
  }
  void recall(std::uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end() || stack_.size() >= kMaxValues) {
      throw refused("a reference to nothing");
    }
    stack_.push_back(found->second);
  }

  bool object(unsigned char op) {
    switch (op) {
      case 'c': {
        const std::string_view module = take_line();
        push_name(module, take_line());
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::vector<Value*> parts = pop_some(2);
        push_name(parts[0]->text, parts[1]->text);
        return true;
      }
      case 'R':
        call();
        return true;
      case 'b':
        set_state();
        return true;
      default:
        return false;
    }
  }

  void push_name(std::string_view module, std::string_view name) {
    std::string full = fmt::format("{} {}", module, name);
    if (!is_one_of(full,
                   {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct",
                    "numpy ndarray", "numpy dtype", "_codecs encode"})) {
      throw refused(fmt::format("it names {}.{}, and only arrays of bytes are read", module, name));
    }
    Value& value = push(Kind::kName);
    value.owned = std::move(full);
    value.text = value.owned;
  }

  /// What the three functions of an array's pickle would make, without them.
  void call() {
    const Value* arguments = pop();
    const Value* callee = pop();
    if (callee->kind != Kind::kName || arguments->kind != Kind::kTuple) {
      throw refused("a call of something else than a name");
    }
    const auto& items = arguments->items;
    if (callee->text.ends_with("_reconstruct")) {
      push(Kind::kArray);
    } else if (callee->text == "numpy dtype" && !items.empty()) {
      push(Kind::kDtype).text = items.front()->text;
    } else if (callee->text == "_codecs encode" && items.size() == 2 &&
               items[1]->text == "latin1") {
      Value& bytes = push(Kind::kText);
      bytes.owned = latin1_of(items[0]->text);
      bytes.text = bytes.owned;
    } else {
      throw refused("a call that an array's pickle does not have");
    }
  }

  /// Python 3 writes bytes in protocol 2 as a text whose code points are the bytes.
  std::string latin1_of(std::string_view utf8) const {
    std::string out;
    out.reserve(utf8.size());
    for (std::size_t i = 0; i < utf8.size(); ++i) {
      const auto c = static_cast<unsigned char>(utf8[i]);
      if (c < 0x80) {
        out.push_back(utf8[i]);
      } else if ((c == 0xc2 || c == 0xc3) && i + 1 < utf8.size()) {
        out.push_back(static_cast<char>(((c & 3) << 6) | (utf8[++i] & 0x3f)));
      } else {
        throw refused("a text that is not made of bytes");
      }
    }
    return out;
  }

  /// An array's state: (version, (rows, columns), dtype, is Fortran order, bytes). A dtype's does
  /// not matter for bytes.
  void set_state() {
    const Value* state = pop();
    if (stack_.empty() || state->kind != Kind::kTuple) {
      throw refused("a state for nothing");
    }
    Value* target = stack_.back();
    if (target->kind == Kind::kDtype) {
      return;
    }
    const auto& parts = state->items;
    if (target->kind != Kind::kArray || parts.size() != 5 || parts[1]->items.size() != 2 ||
        parts[2]->kind != Kind::kDtype || parts[2]->text != "u1" || parts[3]->number != 0 ||
        parts[4]->kind != Kind::kText) {
      throw refused("its array is not one of bytes in rows and columns");
    }
    target->items = {parts[1]->items[0], parts[1]->items[1], parts[4]};
  }

  std::string_view bytes_;
  std::string_view name_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::deque<Value> values_;
  std::vector<Value*> stack_;
  std::unordered_map<std::uint64_t, Value*> memo_;
};

const Value* member(const Value& dict, std::string_view key) {
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::kText && dict.items[i]->text == key) {
      return dict.items[i + 1];
    }
  }
  return nullptr;
}

}  // namespace

PickledBatch read_pickled_batch(std::string_view bytes, std::string_view name,
                                std::string_view where) {
  Machine machine(bytes, name, where);
  const Value& dict = machine.run();
  if (dict.kind != Kind::kDict) {
    throw machine.refused("it holds no dict");
  }
  const Value* data = member(dict, "data");
  const Value* labels = member(dict, "labels");
  if (data == nullptr || data->kind != Kind::kArray || data->items.size() != 3 ||
      labels == nullptr || labels->kind != Kind::kList) {
    throw machine.refused("its dict lacks \"data\" or \"labels\"");
  }
  PickledBatch batch{.rows = data->items[0]->number, .columns = data->items[1]->number};
  const std::string_view pixels = data->items[2]->text;
  if (batch.rows < 0 || batch.columns <= 0 ||
      batch.rows != static_cast<std::int64_t>(pixels.size()) / batch.columns ||
      static_cast<std::int64_t>(pixels.size()) % batch.columns != 0) {
    throw machine.refused("its array's shape does not fit its bytes");
  }
  batch.data.assign(pixels.begin(), pixels.end());
  for (const Value* label : labels->items) {
    batch.labels.push_back(label->kind == Kind::kNumber ? label->number : -1);
  }
  return batch;
}

}  // namespace tandem
