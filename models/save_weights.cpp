#include "models/save_weights.hpp"

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/io/weights_writer.hpp"
#include "runtime/flight.hpp"

namespace tandem {

namespace fs = std::filesystem;

void save_weights(Engine& engine, const fs::path& folder, TensorType type) {
  const flight::Span saving(flight::What::kSaveModel);
  std::optional<WeightsWriter> writer;
  if (engine.rank() == 0) {
    std::error_code ignored;  // the writer says what is wrong with the folder
    fs::create_directories(folder, ignored);
    // In the order in which the engine visits its parameters; readers go by name.
    std::vector<TensorPlan> plan;
    for (const UnitSpec& unit : engine.model().units) {
      for (const ParameterSpec& parameter : unit.parameters) {
        plan.push_back({parameter.name, type, parameter.shape});
      }
    }
    writer.emplace(folder, std::move(plan));
  }
  engine.for_each_parameter([&](const ParameterSpec&, std::span<const float> values) {
    if (writer) {
      writer->append_f32(values);
    }
  });
  if (writer) {
    writer->finish();
  }
}

namespace {

TensorType type_of(Precision precision) {
  switch (precision) {
    case Precision::kBF16:
      return TensorType::kBF16;
    case Precision::kF16:
      return TensorType::kF16;
    case Precision::kF32:
      break;
  }
  return TensorType::kF32;
}

}  // namespace

TensorType compute_type(const Engine& engine) { return type_of(engine.config().precision()); }

std::optional<TensorType> type_by_name(std::string_view name) {
  const auto precision = parse_enum<Precision>(name);
  return precision ? std::optional(type_of(*precision)) : std::nullopt;
}

void save_16bit_model(Engine& engine, const fs::path& folder) {
  save_weights(engine, folder, compute_type(engine));
}

}  // namespace tandem
