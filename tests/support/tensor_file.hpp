// tests/support/tensor_file.hpp — tensors of reference files as ATen's.
#pragma once

#include <cstring>
#include <map>
#include <string>

#include <ATen/ATen.h>

#include "actors/storage/safetensors.hpp"

namespace tandem::test {

/// Undefined if the file has no such tensor. Throws for a type that references do not have.
inline at::Tensor find_tensor(const SafetensorsFile& file, const std::string& name) {
  const std::map<TensorType, at::ScalarType> types = {
      {TensorType::kF32, at::kFloat}, {TensorType::kI64, at::kLong}, {TensorType::kI32, at::kInt}};
  const TensorInfo* const info = file.find(name);
  if (info == nullptr) {
    return {};
  }
  at::Tensor tensor = at::empty(info->shape, at::TensorOptions().dtype(types.at(info->type)));
  const auto bytes = file.bytes(*info);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

/// Throws Error if the file has no such tensor.
inline at::Tensor read(const SafetensorsFile& file, const std::string& name) {
  (void)file.at(name);
  return find_tensor(file, name);
}

}  // namespace tandem::test
