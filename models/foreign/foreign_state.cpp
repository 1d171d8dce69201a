#include "models/foreign/foreign_state.hpp"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "runtime/util/error.hpp"

namespace tandem {

ForeignState foreign_state(ImportedCheckpoint checkpoint, const Model& model) {
  const auto kept = std::make_shared<const ImportedCheckpoint>(std::move(checkpoint));
  std::unordered_map<std::string, const ImportedTensor*> found;
  bool moments = true;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      const auto tied = kept->tied.find(parameter.name);
      const ImportedTensor* tensor =
          kept->find(tied == kept->tied.end() ? parameter.name : tied->second);
      if (tensor == nullptr) {
        throw user_error("resume", "{} has no {}; use the model that it was saved with", kept->path,
                         parameter.name);
      }
      if (tensor->shape != parameter.shape) {
        throw user_error(
            "resume", "{} is {} in {} and {} in the model; use the model that it was saved with",
            parameter.name, shape_text(tensor->shape), kept->path, shape_text(parameter.shape));
      }
      moments = moments && (parameter.frozen || tensor->moments[0]);
      found[parameter.name] = tensor;
    }
  }
  ForeignState state{.path = kept->path,
                     .source = {},
                     .moments = moments,
                     .global_steps = kept->global_steps,
                     .skipped_steps = kept->skipped_steps,
                     .optimizer_steps = moments ? kept->optimizer_steps : 0,
                     .schedule_steps = kept->schedule_step.value_or(kept->global_steps - 1) + 1,
                     .scaler = kept->scaler,
                     .client_state = kept->client_state_json,
                     .notes = kept->notes};
  if (!moments) {
    state.notes.push_back("it has no moments for each parameter: they begin as zeros");
  }
  state.source = [kept, found = std::move(found)](const ParameterSpec& parameter,
                                                  std::uint32_t array, std::int64_t begin,
                                                  std::int64_t end, float* out) {
    const ImportedTensor& tensor = *found.at(parameter.name);
    const ImportedTensor::ReadF32& read = array == 0 ? tensor.master : tensor.moments[array - 1];
    if (read) {
      read(begin, end, out);
    } else {
      std::fill_n(out, end - begin, 0.0F);
    }
  };
  return state;
}

}  // namespace tandem
