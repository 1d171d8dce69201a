// models/merged_weights.hpp — computes the merged weights of a base model and adapters, as PEFT
// does: W + s B A for each module, DoRA's column norms, biases, and parameters that were trained in
// full.
//
// Adapters may belong to any parameter of the base. If a tied base's embedding and head were
// trained apart, the merged model has two matrices, and its config says so.
// Invariant: an element's bits do not depend on the range in which it is read.
// Thread rule: read() on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/types/model.hpp"
#include "models/adapter_folder.hpp"
#include "models/io/hf_config.hpp"

namespace tandem {

class MergedWeights {
 public:
  /// `base`: values of the parameters that `config` describes. Throws user_error if a tensor of the
  /// folder does not belong to this base, naming it and both shapes.
  MergedWeights(std::shared_ptr<const AdapterFolder> adapters, ParameterSource base,
                HfConfig config);

  /// Returns the merged model's config.
  [[nodiscard]] const HfConfig& config() const noexcept { return config_; }
  /// Reads elements [begin, end) of a parameter of the merged model.
  void read(const ParameterSpec& parameter, std::int64_t begin, std::int64_t end, float* out) const;
  /// Returns the parameter of the base from which `parameter` has its values, and so its type in
  /// files.
  [[nodiscard]] const std::string& base_of(const std::string& parameter) const;
  [[nodiscard]] std::size_t adapted() const noexcept { return low_ranks_.size(); }
  [[nodiscard]] std::size_t replaced() const noexcept { return replaced_; }

 private:
  /// The sum that is added to a matrix: rows of `left` times `right`, both fp32.
  struct LowRank {
    std::int64_t rank = 0;
    std::int64_t width = 0;  // of the weight's rows
    double scale = 1;
    std::vector<float> left;         // [rows, rank]
    std::vector<float> right;        // [rank, width]
    std::vector<double> magnitudes;  // DoRA: the sum's rows or columns are brought to these lengths
    bool by_rows = true;
    std::vector<double> lengths;  // of its columns, if not by rows
  };
  struct Bias {
    double scale = 1;
    std::vector<float> values;
  };

  void untie();
  void take_whole();
  void take_modules();
  [[nodiscard]] LowRank low_rank_of(const AdapterModule& module, const std::string& name,
                                    const ParameterSpec& weight, bool input_major) const;
  void add_magnitudes(LowRank& low, const AdapterModule& module, const ParameterSpec& weight) const;
  [[nodiscard]] std::vector<float> values_of(const TensorInfo& tensor) const;
  /// Reads a parameter without its adapters: the base's values, or the values of a tensor that
  /// replaces it.
  void read_own(const std::string& parameter, std::int64_t begin, std::int64_t end,
                float* out) const;
  /// DoRA: brings a row of the sum to its magnitude.
  static void bring_to_magnitude(const LowRank& low, std::int64_t row, std::span<float> values);
  /// Reads whole rows of W + s B A.
  void read_rows(const LowRank& low, const std::string& parameter, std::int64_t first,
                 std::int64_t last, float* out) const;

  std::shared_ptr<const AdapterFolder> adapters_;
  ParameterSource base_;
  HfConfig config_;
  std::map<std::string, ParameterSpec> specs_;  // of the merged model
  std::map<std::string, LowRank> low_ranks_;    // by parameter
  std::map<std::string, Bias> biases_;
  std::map<std::string, std::string> stands_for_;  // parameters that the base has by another name
  std::size_t replaced_ = 0;
};

/// The merged model's values, which keep `merged` alive.
[[nodiscard]] ParameterSource source_of(std::shared_ptr<const MergedWeights> merged);

}  // namespace tandem
