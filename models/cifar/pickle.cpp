#include "models/cifar/pickle.hpp"

#include <algorithm>
#include <deque>
#include <string>

#include "models/io/pickle.hpp"

namespace tandem {

namespace {

using Kind = PickleValue::Kind;

/// An object with one of these texts stands for what the three functions of an array's pickle would
/// make.
constexpr std::string_view kDtype = "dtype";
constexpr std::string_view kArray = "array";

class ArrayRules : public PickleRules {
 public:
  explicit ArrayRules(std::size_t most_bytes) : bytes_left_(most_bytes) {}

  [[nodiscard]] bool allows(std::string_view global) const override {
    constexpr std::string_view kNames[] = {"numpy.core.multiarray._reconstruct",
                                           "numpy._core.multiarray._reconstruct", "numpy.ndarray",
                                           "numpy.dtype", "_codecs.encode"};
    return std::ranges::find(kNames, global) != std::end(kNames);
  }

  std::string call(PickleValue& result, std::string_view global,
                   const PickleValue& arguments) override {
    const auto& items = arguments.items;
    if (global.ends_with("._reconstruct")) {
      result.kind = Kind::kObject;
      result.text = kArray;
    } else if (global == "numpy.dtype" && !items.empty()) {
      result.kind = Kind::kObject;
      result.text = kDtype;
      result.items = {items.front()};
    } else if (global == "_codecs.encode" && items.size() == 2 && items[1]->is_text("latin1")) {
      return decode_latin1(result, items[0]->text);
    } else {
      return "a call that an array's pickle does not have";
    }
    return {};
  }

  /// An array's state: (version, (rows, columns), dtype, is Fortran order, bytes). A dtype's does
  /// not matter for bytes.
  std::string set_state(PickleValue& target, const PickleValue& state) override {
    if (target.is(Kind::kObject) && target.text == kDtype) {
      return {};
    }
    const auto& parts = state.items;
    const bool fits = target.is(Kind::kObject) && state.is(Kind::kTuple) && parts.size() == 5 &&
                      parts[1]->items.size() == 2 && parts[2]->is(Kind::kObject) &&
                      parts[2]->text == kDtype && parts[2]->items[0]->is_text("u1") &&
                      parts[3]->number == 0 &&
                      (parts[4]->is(Kind::kText) || parts[4]->is(Kind::kBytes));
    if (!fits) {
      return "its array is not one of bytes in rows and columns";
    }
    target.items = {parts[1]->items[0], parts[1]->items[1], parts[4]};
    return {};
  }

 private:
  /// Python 3 writes bytes in protocol 2 as a text whose code points are the bytes. A pickle that
  /// decodes one text many times would ask for much more memory than the file has.
  std::string decode_latin1(PickleValue& result, std::string_view utf8) {
    if (utf8.size() > bytes_left_) {
      return "it decodes more bytes than it has";
    }
    bytes_left_ -= utf8.size();
    std::string& out = decoded_.emplace_back();
    out.reserve(utf8.size());
    for (std::size_t i = 0; i < utf8.size(); ++i) {
      const auto c = static_cast<unsigned char>(utf8[i]);
      if (c < 0x80) {
        out.push_back(utf8[i]);
      } else if ((c == 0xc2 || c == 0xc3) && i + 1 < utf8.size()) {
        out.push_back(static_cast<char>(((c & 3) << 6) | (utf8[++i] & 0x3f)));
      } else {
        return "a text that is not made of bytes";
      }
    }
    result.kind = Kind::kBytes;
    result.text = out;
    return {};
  }

  std::size_t bytes_left_;
  std::deque<std::string> decoded_;
};

}  // namespace

PickledBatch read_pickled_batch(std::string_view bytes, std::string_view name,
                                std::string_view where) {
  ArrayRules rules(bytes.size());
  PickleReader reader(bytes, rules,
                      {.where = std::string(where),
                       .file = std::string(name),
                       .complaint = "is not a CIFAR-10 batch",
                       .advice = "use data_batch_1 .. 5 and test_batch of the original archive"});
  const PickleValue& dict = reader.read();
  if (!dict.is(Kind::kDict)) {
    throw reader.refused("it holds no dict");
  }
  const PickleValue* data = dict.find("data");
  const PickleValue* labels = dict.find("labels");
  if (data == nullptr || !data->is(Kind::kObject) || data->items.size() != 3 || labels == nullptr ||
      !labels->is(Kind::kList)) {
    throw reader.refused("its dict lacks \"data\" or \"labels\", or they are no array and no list");
  }
  PickledBatch batch{.rows = data->items[0]->number, .columns = data->items[1]->number};
  const std::string_view pixels = data->items[2]->text;
  if (batch.rows < 0 || batch.columns <= 0 ||
      batch.rows != static_cast<std::int64_t>(pixels.size()) / batch.columns ||
      static_cast<std::int64_t>(pixels.size()) % batch.columns != 0) {
    throw reader.refused("its array's shape does not fit its bytes");
  }
  batch.data.assign(pixels.begin(), pixels.end());
  for (const PickleValue* label : labels->items) {
    batch.labels.push_back(label->is(Kind::kInt) ? label->number : -1);
  }
  return batch;
}

}  // namespace tandem
