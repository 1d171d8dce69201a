#include "models/foreign/torch_rules.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace tandem {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t kMostRank = 32;
// A tensor that repeats elements of a small storage may have this many; without a limit, a file of
// 1 kB would ask for any amount of memory.
constexpr std::int64_t kMostRepeated = 1 << 24;

struct NamedType {
  std::string_view name;
  TensorType type;
};
constexpr std::array kStorageTypes = {
    NamedType{"torch.FloatStorage", TensorType::kF32},
    NamedType{"torch.BFloat16Storage", TensorType::kBF16},
    NamedType{"torch.HalfStorage", TensorType::kF16},
    NamedType{"torch.DoubleStorage", TensorType::kF64},
    NamedType{"torch.LongStorage", TensorType::kI64},
    NamedType{"torch.IntStorage", TensorType::kI32},
    NamedType{"torch.ShortStorage", TensorType::kI16},
    NamedType{"torch.CharStorage", TensorType::kI8},
    NamedType{"torch.ByteStorage", TensorType::kU8},
    NamedType{"torch.BoolStorage", TensorType::kBool},
    NamedType{"torch.ComplexFloatStorage", TensorType::kC64},
};
constexpr std::array kElementTypes = {
    NamedType{"torch.float32", TensorType::kF32},
    NamedType{"torch.bfloat16", TensorType::kBF16},
    NamedType{"torch.float16", TensorType::kF16},
    NamedType{"torch.float64", TensorType::kF64},
    NamedType{"torch.uint16", TensorType::kU16},
    NamedType{"torch.uint32", TensorType::kU32},
    NamedType{"torch.uint64", TensorType::kU64},
    NamedType{"torch.float8_e4m3fn", TensorType::kF8E4M3},
    NamedType{"torch.float8_e5m2", TensorType::kF8E5M2},
    NamedType{"torch.float8_e8m0fnu", TensorType::kF8E8M0},
};
/// Classes whose objects become records: their fields are data.
constexpr std::array<std::string_view, 3> kRecords = {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.utils.tensor_fragment.fragment_address",
};
constexpr std::array<std::string_view, 11> kOtherNames = {
    "__builtin__.set",
    "builtins.set",
    "collections.OrderedDict",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "torch.Size",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
};
constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";

template <std::size_t N>
std::optional<TensorType> type_of(const std::array<NamedType, N>& types, std::string_view name) {
  const auto* found = std::ranges::find(types, name, &NamedType::name);
  return found == types.end() ? std::nullopt : std::optional(found->type);
}

bool is_global(const PickleValue& value, std::string_view name) {
  return value.is(Kind::kGlobal) && value.text == name;
}
bool is_object(const PickleValue& value, std::string_view what) {
  return value.is(Kind::kObject) && value.text == what;
}
bool is_empty_dict(const PickleValue& value) {
  return value.is(Kind::kDict) && value.items.empty();
}

/// The numbers of a tuple of integers that are at least 0.
std::optional<std::vector<std::int64_t>> sizes_of(const PickleValue& tuple) {
  std::vector<std::int64_t> out;
  if (!tuple.is(Kind::kTuple) || tuple.items.size() > kMostRank) {
    return std::nullopt;
  }
  for (const PickleValue* item : tuple.items) {
    if (!item->is(Kind::kInt) || item->number < 0) {
      return std::nullopt;
    }
    out.push_back(item->number);
  }
  return out;
}

/// Elements of the shape, and where in the storage the last one ends. Empty if a number overflows.
struct Extent {
  std::int64_t numel = 1;
  std::int64_t end = 0;
};
std::optional<Extent> extent_of(const TorchTensor& tensor) {
  Extent extent;
  std::int64_t last = tensor.offset;
  const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
  for (std::size_t i = 0; i < tensor.shape.size() && !empty; ++i) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(extent.numel, tensor.shape[i], &extent.numel) ||
        __builtin_mul_overflow(tensor.shape[i] - 1, tensor.stride[i], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return std::nullopt;
    }
  }
  if (empty) {
    return Extent{.numel = 0, .end = tensor.offset};
  }
  if (__builtin_add_overflow(last, std::int64_t{1}, &extent.end)) {
    return std::nullopt;
  }
  return extent;
}

bool is_contiguous(const TorchTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.stride[i] != expected) {
      return tensor.numel == 0;
    }
    expected *= tensor.shape[i];
  }
  return true;
}

}  // namespace

bool TorchRules::allows(std::string_view global) const {
  return type_of(kStorageTypes, global) || type_of(kElementTypes, global) || global == kUntyped ||
         std::ranges::find(kRecords, global) != kRecords.end() ||
         std::ranges::find(kOtherNames, global) != kOtherNames.end();
}

std::string TorchRules::call(PickleValue& result, std::string_view global,
                             const PickleValue& arguments) {
  const auto& items = arguments.items;
  if (global == "torch._utils._rebuild_tensor_v2") {
    return rebuild_tensor(result, arguments, 7, std::nullopt);
  }
  if (global == "torch._utils._rebuild_tensor_v3") {
    const auto type = items.size() >= 7 && items[6]->is(Kind::kGlobal)
                          ? type_of(kElementTypes, items[6]->text)
                          : std::nullopt;
    return type ? rebuild_tensor(result, arguments, 8, type) : "a tensor of an unknown type";
  }
  if (global == "torch._utils._rebuild_parameter" && items.size() == 3 &&
      is_object(*items[0], kTorchTensorObject) && is_empty_dict(*items[2])) {
    result.kind = Kind::kObject;
    result.text = kTorchTensorObject;
    result.number = items[0]->number;
    return {};
  }
  // (function, class, the function's arguments, attributes)
  if (global == "torch._tensor._rebuild_from_type_v2" && items.size() == 4 &&
      is_global(*items[0], "torch._utils._rebuild_tensor_v2") &&
      (is_global(*items[1], "torch.Tensor") ||
       is_global(*items[1], "torch.nn.parameter.Parameter")) &&
      items[2]->is(Kind::kTuple)) {
    return rebuild_tensor(result, *items[2], 7, std::nullopt);
  }
  if (global == "torch.Size" && items.size() == 1 && sizes_of(*items[0])) {
    result.kind = Kind::kTuple;
    result.items = items[0]->items;
    return {};
  }
  if (global == "collections.OrderedDict" && items.empty()) {
    result.kind = Kind::kDict;
    return {};
  }
  if (global.ends_with(".set") && items.size() == 1 && items[0]->is(Kind::kList)) {
    // A pickle that makes sets of one list many times would ask for much more memory than the file
    // has.
    if (items[0]->items.size() > set_items_left_) {
      return "its sets repeat more values than a file holds";
    }
    set_items_left_ -= items[0]->items.size();
    result.kind = Kind::kList;
    result.items = items[0]->items;
    return {};
  }
  if (global == "deepspeed.runtime.zero.config.ZeroStageEnum" && items.size() == 1 &&
      items[0]->is(Kind::kInt)) {
    result.kind = Kind::kInt;
    result.number = items[0]->number;
    return {};
  }
  if (const auto* record = std::ranges::find(kRecords, global);
      record != kRecords.end() && items.empty()) {
    result.kind = Kind::kObject;
    result.text = *record;
    return {};
  }
  return fmt::format("a call of {} with other arguments than torch.save gives it",
                     printable(global));
}

std::string TorchRules::set_state(PickleValue& target, const PickleValue& state) {
  const bool is_record = target.is(Kind::kObject) && target.items.empty() &&
                         std::ranges::find(kRecords, target.text) != kRecords.end();
  if (is_record && state.is(Kind::kDict)) {
    target.items = {&state};
    return {};
  }
  // Modules put the versions of their parts beside a state dict.
  if (target.is(Kind::kDict) && state.is(Kind::kDict) && state.items.size() == 2 &&
      state.items[0]->is_text("_metadata")) {
    return {};
  }
  return "a state for something that has none";
}

/// ("storage", class, key, device, elements[, nothing])
std::string TorchRules::persistent(PickleValue& result, const PickleValue& id) {
  const auto& items = id.items;
  const bool fits = id.is(Kind::kTuple) && (items.size() == 5 || items.size() == 6) &&
                    items[0]->is_text("storage") && items[1]->is(Kind::kGlobal) &&
                    items[2]->is(Kind::kText) && !items[2]->text.empty() &&
                    items[3]->is(Kind::kText) && items[4]->is(Kind::kInt) &&
                    (items.size() == 5 || items[5]->is(Kind::kNone));
  if (!fits) {
    return "a reference that is not one to a storage";
  }
  const auto type = type_of(kStorageTypes, items[1]->text);
  if (!type && items[1]->text != kUntyped) {
    return fmt::format("a storage of class {}", printable(items[1]->text));
  }
  const TorchStorage storage{
      .key = std::string(items[2]->text), .type = type, .numel = items[4]->number};
  std::int64_t bytes = 0;
  if (storage.numel < 0 || __builtin_mul_overflow(storage.numel, std::int64_t{8}, &bytes)) {
    return fmt::format("a storage of {} elements", storage.numel);
  }
  const auto [place, is_new] = storage_of_.emplace(items[2]->text, storages_.size());
  if (is_new) {
    storages_.push_back(storage);
  } else if (storages_[place->second].type != storage.type ||
             storages_[place->second].numel != storage.numel) {
    return fmt::format("two descriptions of storage \"{}\" that differ", printable(storage.key));
  }
  result.kind = Kind::kObject;
  result.text = kTorchStorageObject;
  result.number = static_cast<std::int64_t>(place->second);
  return {};
}

/// (storage, offset, shape, stride, requires_grad, hooks[, type][, metadata])
std::string TorchRules::rebuild_tensor(PickleValue& result, const PickleValue& arguments,
                                       std::size_t most_arguments, std::optional<TensorType> type) {
  const auto& items = arguments.items;
  const std::size_t least = type ? 7 : 6;
  if (items.size() < least || items.size() > most_arguments ||
      !is_object(*items[0], kTorchStorageObject) || !items[1]->is(Kind::kInt) ||
      !items[4]->is(Kind::kBool) || !is_empty_dict(*items[5]) ||
      (items.size() > least && !items[least]->is(Kind::kNone) && !is_empty_dict(*items[least]))) {
    return "a tensor that torch.save does not write";
  }
  TorchTensor tensor{.offset = items[1]->number,
                     .storage = static_cast<std::size_t>(items[0]->number)};
  const TorchStorage& storage = storages_[tensor.storage];
  if (!type && !storage.type) {
    return "a tensor without a type";
  }
  tensor.type = type ? *type : *storage.type;
  const auto shape = sizes_of(*items[2]);
  const auto stride = sizes_of(*items[3]);
  if (!shape || !stride || shape->size() != stride->size() || tensor.offset < 0) {
    return "a tensor whose shape, strides or offset are none";
  }
  tensor.shape = *shape;
  tensor.stride = *stride;
  const auto available = static_cast<std::int64_t>(storage.size_bytes() / bytes_of(tensor.type));
  const auto extent = extent_of(tensor);
  if (!extent || extent->end > available) {
    return fmt::format("a tensor of shape {} that does not fit into the {} elements of its storage",
                       shape_text(tensor.shape), available);
  }
  tensor.numel = extent->numel;
  if (tensor.numel > std::max(available, kMostRepeated)) {
    return fmt::format("a tensor of shape {} out of a storage of {} elements",
                       shape_text(tensor.shape), available);
  }
  tensor.contiguous = is_contiguous(tensor);
  result.kind = Kind::kObject;
  result.text = kTorchTensorObject;
  result.number = static_cast<std::int64_t>(tensors_.size());
  tensors_.push_back(std::move(tensor));
  return {};
}

}  // namespace tandem
