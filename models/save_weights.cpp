#include "models/save_weights.hpp"

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "actors/kernels/finite.hpp"
#include "actors/storage/folder.hpp"
#include "models/io/tokenizer/tokenizer.hpp"
#include "models/io/weights_writer.hpp"
#include "runtime/flight.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

/// Whether a saved model replaces this file of the older one in its folder.
bool is_model_file(std::string_view name) {
  return name == "config.json" || name == "generation_config.json" || is_tokenizer_file(name) ||
         is_weight_file(name) || is_abandoned_file(name);
}

/// In the order in which the engine visits its parameters; readers go by name.
std::vector<TensorPlan> plan_of(const Model& model, TensorType type, const SavedPart& part) {
  std::vector<TensorPlan> plan;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      for (std::string& name : part.names(parameter)) {
        TANDEM_CHECK(parameter.numel() > 0, "no tensor is saved empty");
        plan.push_back({std::move(name), type, parameter.shape});
      }
    }
  }
  return plan;
}

void append(WeightsWriter& writer, const ParameterSpec& parameter, std::span<const float> values) {
  if (first_not_finite(values.data(), DType::kF32, values.size()) < values.size()) {
    throw failure(
        ExitCode::kBadState, "save model",
        "the weights of {} are not finite; nothing was saved: go back to a checkpoint, and "
        "lower the learning rate",
        parameter.name);
  }
  writer.append_f32(values);
}

}  // namespace

void save_weights(Engine& engine, const fs::path& folder, TensorType type,
                  const FolderDescription& describe) {
  const SavedPart all = {
      .names = [](const ParameterSpec& parameter) { return std::vector{parameter.name}; },
      .is_replaced = &is_model_file};
  save_part(engine, folder, type, all, describe);
}

void save_part(Engine& engine, const fs::path& folder, TensorType type, const SavedPart& part,
               const FolderDescription& describe) {
  const flight::Span saving(flight::Kind::kSaveModel);
  std::optional<AtomicFolder> made;
  std::optional<WeightsWriter> writer;
  std::exception_ptr failure;
  // The other ranks hand over their slices whatever happens to the files.
  const auto on_first_rank = [&](const auto& work) {
    try {
      if (engine.rank() == 0 && !failure) {
        work();
      }
    } catch (const Error&) {
      failure = std::current_exception();
    }
  };
  on_first_rank([&] {
    made.emplace(folder, "save model");
    if (describe) {
      describe(made->temporary());
    }
    std::vector<TensorPlan> plan = plan_of(engine.model(), type, part);
    if (part.file.empty()) {
      writer.emplace(made->temporary(), std::move(plan));
    } else {
      writer.emplace(made->temporary(), std::move(plan),
                     WeightsWriter::Options{.max_shard_bytes = 0, .file = part.file});
    }
  });
  engine.for_each_parameter(
      [&](const ParameterSpec& parameter, std::span<const float> values) {
        on_first_rank([&] {
          for (std::size_t i = 0; i < part.names(parameter).size(); ++i) {
            append(*writer, parameter, values);
          }
        });
      },
      [&](const ParameterSpec& parameter) { return !part.names(parameter).empty(); });
  on_first_rank([&] {
    writer->finish();
    made->keep_others(part.is_replaced);
    made->commit();
  });
  if (failure) {
    std::rethrow_exception(failure);
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
