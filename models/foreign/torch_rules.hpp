// models/foreign/torch_rules.hpp — the names that a file of torch.save may contain, and their
// meaning: tensors become descriptions of the positions of their elements, everything else becomes
// inert records.
//
// Invariant: after a pickle was read, every element of every tensor lies inside its storage, which
// has the size that the pickle declares; TorchFile checks the sizes in the file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "actors/storage/safetensors.hpp"
#include "models/io/pickle.hpp"

namespace tandem {

/// A tensor's view of a storage, in elements.
struct TorchTensor {
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  std::size_t storage = 0;
  bool contiguous = true;  // row-major without gaps

  friend bool operator==(const TorchTensor&, const TorchTensor&) = default;
};

struct TorchStorage {
  std::string key;
  std::optional<TensorType> type;  // absent: bytes; each tensor has a type
  std::int64_t numel = 0;

  [[nodiscard]] std::uint64_t size_bytes() const noexcept {
    return static_cast<std::uint64_t>(numel) * (type ? bytes_of(*type) : 1);
  }
};

/// The names of the reader's objects. A tensor's or storage's `number` is its index; a record's
/// `text` is its class, and its only item the dict of its fields.
inline constexpr std::string_view kTorchTensorObject = "tensor";
inline constexpr std::string_view kTorchStorageObject = "storage";

class TorchRules : public PickleRules {
 public:
  [[nodiscard]] bool allows(std::string_view global) const override;
  std::string call(PickleValue& result, std::string_view global,
                   const PickleValue& arguments) override;
  std::string set_state(PickleValue& target, const PickleValue& state) override;
  std::string persistent(PickleValue& result, const PickleValue& id) override;

  [[nodiscard]] const std::vector<TorchStorage>& storages() const noexcept { return storages_; }
  [[nodiscard]] const std::vector<TorchTensor>& tensors() const noexcept { return tensors_; }

 private:
  std::string rebuild_tensor(PickleValue& result, const PickleValue& arguments,
                             std::size_t most_arguments, std::optional<TensorType> type);

  std::vector<TorchStorage> storages_;
  std::unordered_map<std::string_view, std::size_t> storage_of_;  // by key, in the pickle
  std::vector<TorchTensor> tensors_;
  std::size_t set_items_left_ = std::size_t{1} << 20;
};

}  // namespace tandem
