// engine/memory/memory_plan_text.cpp — the names and the table of memory_plan.hpp.
#include <cmath>

#include <fmt/format.h>

#include "engine/memory/memory_plan.hpp"

namespace tandem {

namespace {

constexpr std::array<std::string_view, kMemoryKinds> kKindNames = {"device", "pinned", "host",
                                                                   "shared", "disk",   "nvme"};
constexpr std::array<std::string_view, kMemoryPurposes> kPurposeNames = {
    "weights", "gather slots", "gradients",   "gradient slots", "master",
    "moments", "shadows",      "activations", "loss",           "allocator",
    "staging", "checkpoint",   "process",     "saved model"};

}  // namespace

std::string_view name_of(MemoryKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }
std::string_view name_of(MemoryPurpose purpose) {
  return kPurposeNames[static_cast<std::size_t>(purpose)];
}

std::string size_text(std::int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  constexpr double kGiB = 1 << 30;
  const auto size = static_cast<double>(bytes);
  return std::abs(size) < kGiB ? fmt::format("{:.1f} MiB", size / kMiB)
                               : fmt::format("{:.1f} GiB", size / kGiB);
}

std::string plan_table(const MemoryPlan& plan) {
  std::array<bool, kMemoryKinds> used{};
  for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
    used[kind] = plan.total(static_cast<MemoryKind>(kind)) > 0;
  }
  std::string text;
  const auto line = [&](std::string_view name, const auto& cell) {
    text += fmt::format("{:<17}", name);
    for (std::size_t kind = 0; kind < kMemoryKinds; ++kind) {
      if (used[kind]) {
        text += fmt::format("{:>12}", cell(kind));
      }
    }
    text += '\n';
  };
  const auto size_or_none = [](std::int64_t bytes) {
    return bytes == 0 ? std::string("-") : size_text(bytes);
  };
  line("one rank", [](std::size_t kind) { return std::string(kKindNames[kind]); });
  for (std::size_t purpose = 0; purpose < kMemoryPurposes; ++purpose) {
    const auto& row = plan.bytes[purpose];
    if (row != decltype(plan.bytes)::value_type{}) {
      line(kPurposeNames[purpose], [&](std::size_t kind) { return size_or_none(row[kind]); });
    }
  }
  line("total",
       [&](std::size_t kind) { return size_or_none(plan.total(static_cast<MemoryKind>(kind))); });
  return text;
}

}  // namespace tandem
