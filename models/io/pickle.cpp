#include "models/io/pickle.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace tandem {
namespace {

constexpr std::size_t kMostMarks = 1000;
constexpr std::size_t kMostShown = 120;

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMostShown)) {
    if (c >= ' ' && c <= '~') {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return text.size() > kMostShown ? out + "..." : out;
}

const PickleValue* PickleValue::find(std::string_view key) const noexcept {
  for (std::size_t i = kind == Kind::kDict ? items.size() : 0; i >= 2; i -= 2) {
    if (items[i - 2]->is_text(key)) {
      return items[i - 1];
    }
  }
  return nullptr;
}

std::string PickleRules::persistent(PickleValue& /*result*/, const PickleValue& /*id*/) {
  return "it refers to data outside of the pickle";
}

PickleReader::PickleReader(std::string_view bytes, PickleRules& rules, Options options)
    : bytes_(bytes), rules_(rules), options_(std::move(options)) {}

const PickleValue& PickleReader::read() {
  stack_.clear();
  marks_.clear();
  memo_.clear();
  while (true) {
    const auto op = static_cast<unsigned char>(take(1).front());
    if (op == '.') {
      if (stack_.size() != 1 || !marks_.empty()) {
        throw refused("it ends with other than one value");
      }
      return *pop();
    }
    if (!literal(op) && !text(op) && !container(op) && !memo(op) && !object(op)) {
      throw refused(fmt::format("operation 0x{:02x} ('{}') is not one that builds plain data", op,
                                printable(std::string_view(bytes_).substr(at_ - 1, 1))));
    }
  }
}

Error PickleReader::refused(std::string_view reason) const {
  return user_error(options_.where, "{} {}: {} (byte {}); {}", options_.file, options_.complaint,
                    reason, at_, options_.advice);
}

// ---- bytes

std::string_view PickleReader::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) {
    throw refused("it is cut short");
  }
  const std::string_view part = bytes_.substr(at_, count);
  at_ += count;
  return part;
}

/// Little-endian, unsigned.
std::uint64_t PickleReader::take_number(std::size_t width) {
  const std::string_view part = take(width);
  std::uint64_t value = 0;
  std::memcpy(&value, part.data(), width);
  return value;
}

std::string_view PickleReader::take_line() {
  const std::size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) {
    throw refused("it is cut short");
  }
  const std::string_view line = bytes_.substr(at_, end - at_);
  at_ = end + 1;
  return line;
}

// ---- stack

PickleValue& PickleReader::push(Kind kind) {
  if (values_.size() >= options_.max_values || stack_.size() >= options_.max_values) {
    throw refused(fmt::format("it has more than {} values", options_.max_values));
  }
  PickleValue& value = values_.emplace_back();
  value.kind = kind;
  stack_.push_back(&value);
  return value;
}

void PickleReader::push_global(std::string_view module, std::string_view name) {
  std::string full = fmt::format("{}.{}", module, name);
  if (!rules_.allows(full)) {
    throw refused(fmt::format("it names {}, which is not on the list of names that are read",
                              printable(full)));
  }
  push_text(Kind::kGlobal, names_.emplace_back(std::move(full)));
}

/// Two's complement, little-endian, any length.
void PickleReader::push_long(std::string_view bytes) {
  if (bytes.size() > sizeof(std::int64_t)) {
    push_text(Kind::kLong, bytes);
    return;
  }
  std::uint64_t value =
      !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0 ? ~0ULL : 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  push_number(Kind::kInt, static_cast<std::int64_t>(value));
}

PickleValue* PickleReader::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
    throw refused("its stack is empty");
  }
  PickleValue* top = stack_.back();
  stack_.pop_back();
  return top;
}

std::vector<const PickleValue*> PickleReader::pop_some(std::size_t count) {
  std::vector<const PickleValue*> items(count);
  for (std::size_t i = count; i-- > 0;) {
    items[i] = pop();
  }
  return items;
}

/// The values pushed since the last mark; the mark goes, too.
std::vector<const PickleValue*> PickleReader::pop_to_mark() {
  if (marks_.empty()) {
    throw refused("a mark is missing");
  }
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<const PickleValue*> items(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

/// Puts items behind those of the target.
void PickleReader::place(PickleValue& target, std::vector<const PickleValue*> items) {
  if (target.placed) {
    throw refused("it changes a value after its use");
  }
  for (const PickleValue* item : items) {
    if (item == &target) {
      throw refused("a value that holds itself");
    }
    // The values are the machine's own; only those outside of it see them as const.
    const_cast<PickleValue*>(item)->placed = true;
    target.depth = std::max(target.depth, static_cast<std::uint16_t>(item->depth + 1));
  }
  if (target.depth > kMaxPickleDepth) {
    throw refused(fmt::format("its values lie more than {} deep in each other", kMaxPickleDepth));
  }
  if (target.items.empty()) {
    target.items = std::move(items);
  } else {
    target.items.insert(target.items.end(), items.begin(), items.end());
  }
}

void PickleReader::append(std::vector<const PickleValue*> items, Kind kind) {
  PickleValue* target = pop();
  stack_.push_back(target);
  if (!target->is(kind)) {
    throw refused("its values do not fit together");
  }
  if (kind == Kind::kDict && items.size() % 2 != 0) {
    throw refused("a key without a value");
  }
  place(*target, std::move(items));
}

// ---- operations

bool PickleReader::literal(unsigned char op) {
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
      push_number(Kind::kBool, op == 0x88 ? 1 : 0);
      return true;
    case 'K':
      push_number(Kind::kInt, static_cast<std::int64_t>(take_number(1)));
      return true;
    case 'M':
      push_number(Kind::kInt, static_cast<std::int64_t>(take_number(2)));
      return true;
    case 'J':
      push_number(Kind::kInt, static_cast<std::int32_t>(take_number(4)));
      return true;
    case 0x8a:  // LONG1
      push_long(take(take_number(1)));
      return true;
    case 'G': {  // BINFLOAT, big-endian
      const std::uint64_t bits = __builtin_bswap64(take_number(8));
      push(Kind::kFloat).real = std::bit_cast<double>(bits);
      return true;
    }
    default:
      return false;
  }
}

bool PickleReader::text(unsigned char op) {
  switch (op) {
    case 'U':   // SHORT_BINSTRING
    case 0x8c:  // SHORT_BINUNICODE
      push_text(Kind::kText, take(take_number(1)));
      return true;
    case 'T':  // BINSTRING
    case 'X':  // BINUNICODE
      push_text(Kind::kText, take(take_number(4)));
      return true;
    case 'C':  // SHORT_BINBYTES
      push_text(Kind::kBytes, take(take_number(1)));
      return true;
    case 'B':  // BINBYTES
      push_text(Kind::kBytes, take(take_number(4)));
      return true;
    case 0x8e:  // BINBYTES8
      push_text(Kind::kBytes, take(take_number(8)));
      return true;
    default:
      return false;
  }
}

bool PickleReader::container(unsigned char op) {
  switch (op) {
    case '(':
      if (marks_.size() >= kMostMarks) {
        throw refused(fmt::format("more than {} marks are open", kMostMarks));
      }
      marks_.push_back(stack_.size());
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
      std::vector<const PickleValue*> items = pop_to_mark();
      place(push(Kind::kTuple), std::move(items));
      return true;
    }
    case 0x85:  // TUPLE1..3
    case 0x86:
    case 0x87: {
      std::vector<const PickleValue*> items = pop_some(static_cast<std::size_t>(op - 0x84));
      place(push(Kind::kTuple), std::move(items));
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
      return false;
  }
}

bool PickleReader::memo(unsigned char op) {
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

void PickleReader::remember(std::uint64_t number) {
  PickleValue* value = pop();
  stack_.push_back(value);
  memo_[number] = value;
}

void PickleReader::recall(std::uint64_t number) {
  const auto found = memo_.find(number);
  if (found == memo_.end() || stack_.size() >= options_.max_values) {
    throw refused("a reference to nothing");
  }
  stack_.push_back(found->second);
}

bool PickleReader::object(unsigned char op) {
  switch (op) {
    case 'c': {
      const std::string_view module = take_line();
      push_global(module, take_line());
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const auto parts = pop_some(2);
      if (!parts[0]->is(Kind::kText) || !parts[1]->is(Kind::kText)) {
        throw refused("a name that is no text");
      }
      push_global(parts[0]->text, parts[1]->text);
      return true;
    }
    case 'R':   // REDUCE
    case 0x81:  // NEWOBJ
      call();
      return true;
    case 'b':
      set_state();
      return true;
    case 'Q': {  // BINPERSID
      const PickleValue* id = pop();
      PickleValue& result = push(Kind::kNone);
      if (const std::string reason = rules_.persistent(result, *id); !reason.empty()) {
        throw refused(reason);
      }
      return true;
    }
    default:
      return false;
  }
}

void PickleReader::call() {
  PickleValue* arguments = pop();
  const PickleValue* callee = pop();
  if (!callee->is(Kind::kGlobal) || !arguments->is(Kind::kTuple)) {
    throw refused("a call of something else than a name");
  }
  arguments->placed = true;
  PickleValue& result = push(Kind::kNone);
  result.depth = arguments->depth;
  if (const std::string reason = rules_.call(result, callee->text, *arguments); !reason.empty()) {
    throw refused(reason);
  }
}

void PickleReader::set_state() {
  PickleValue* state = pop();
  PickleValue* target = pop();
  stack_.push_back(target);
  if (target->placed || target == state) {
    throw refused("it changes a value after its use");
  }
  state->placed = true;
  target->depth = std::max(target->depth, static_cast<std::uint16_t>(state->depth + 1));
  if (target->depth > kMaxPickleDepth) {
    throw refused(fmt::format("its values lie more than {} deep in each other", kMaxPickleDepth));
  }
  if (const std::string reason = rules_.set_state(*target, *state); !reason.empty()) {
    throw refused(reason);
  }
}

}  // namespace tandem
