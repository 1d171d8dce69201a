// engine/config/config.hpp — a DeepSpeed JSON as typed, resolved values.
//
// The parser is strict: a mistyped, misplaced or doubled key is an error with its path, line and
// the nearest known name. A key that resembles no known one is ignored where DeepSpeed ignores it
// (unknown_keys.hpp). "auto" is replaced by the caller's value (ParseOptions::fills), else by the
// default. One table says whether a key is applied (engine/config/key_table.cpp). This parser
// resolves values; the engine decides whether a combination can run (fp16, a stage, a device).
// Invariant: a Config that was returned has passed every type, range and contradiction check; batch
// values multiply up.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/kernels/optimizers/optimizers.hpp"
#include "engine/config/monitor_config.hpp"
#include "engine/schedule/schedule.hpp"
#include "runtime/util/enum_names.hpp"

namespace tandem {

enum class Precision : std::uint8_t { kF32, kBF16, kF16 };
template <>
inline constexpr auto kEnumNames<Precision> =
    std::array{EnumName{Precision::kF32, "fp32"}, EnumName{Precision::kBF16, "bf16"},
               EnumName{Precision::kF16, "fp16"}};

/// train_batch_size = micro_batch_size x accumulation_steps x data-parallel ranks. The first two
/// are 0 when the file has neither and ParseOptions::batch_required is false.
struct BatchConfig {
  std::int64_t train_batch_size = 0;
  std::int64_t micro_batch_size = 0;
  std::int64_t accumulation_steps = 0;
};

/// Defaults are DeepSpeed's for the optimizer's kind; each kind reads the fields that
/// actors/kernels/optimizers/optimizers.hpp names. "Adam" means AdamW (decoupled decay) unless
/// adam_w_mode is false.
struct OptimizerConfig {
  bool given = false;          // the file has an optimizer block
  std::string type = "AdamW";  // as written in the file
  OptimizerKind kind = OptimizerKind::kAdam;
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool adam_w_mode = true;  // Adam: decoupled weight decay; false: L2 added to the gradient
  bool bias_correction = true;
  double momentum = 0;   // SGD, Muon
  double dampening = 0;  // SGD, as the next
  bool nesterov = false;
  double min_coeff = 0.01;  // LAMB, as the next two
  double max_coeff = 10;
  bool eps_inside_sqrt = false;
  std::optional<double> muon_lr;  // Muon: of the matrices, instead of lr
  // Muon: the rate of parameters that AdamW updates, instead of lr; resolved to 3e-4 if neither is
  // given.
  std::optional<double> adam_lr;
  std::string ns_method = "gram";  // Muon

  /// Returns the learning rate; for Muon that of the matrices.
  [[nodiscard]] double rate() const noexcept { return muon_lr.value_or(lr); }
  /// Returns AdamW's learning rate under Muon, divided by rate().
  [[nodiscard]] double adam_lr_factor() const noexcept { return adam_lr.value_or(lr) / rate(); }
};

struct Fp16Config {
  bool enabled = false;
  bool auto_cast = false;
  double loss_scale = 0;  // 0: dynamic
  std::int64_t initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

struct Bf16Config {
  bool enabled = false;
  bool check_grad_overflow = true;
};

struct OffloadOptimizerConfig {
  std::string device = "none";  // none | cpu | nvme
  std::string nvme_path;
  bool pin_memory = true;
  double ratio = 1;  // share of the optimizer state that lives on the CPU
  bool super_offload = false;
  double cpuadam_cores_perc = 0.8;  // share of the usable cores for the CPU optimizer
};

struct OffloadParamConfig {
  std::string device = "none";  // none | cpu | nvme
  std::string nvme_path;
  std::int64_t max_in_cpu = 1'000'000'000;  // elements of a rank; with nvme
  bool pin_memory = true;
};

struct ZeroConfig {
  std::int64_t stage = 0;
  std::optional<bool> overlap_comm;  // resolved: given, or true for stage 3 only
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  std::int64_t reduce_bucket_size = 500'000'000;     // elements
  std::int64_t allgather_bucket_size = 500'000'000;  // elements
  std::int64_t sub_group_size = 1'000'000'000;       // elements
  std::int64_t prefetch_bucket_size = 50'000'000;    // elements; stage 3, as the next four
  std::int64_t param_persistence_threshold = 100'000;
  std::int64_t model_persistence_threshold = INT64_MAX;
  std::int64_t max_live_parameters = 1'000'000'000;
  std::int64_t max_reuse_distance = 1'000'000'000;
  bool gather_16bit_weights_on_model_save = false;
  OffloadOptimizerConfig offload_optimizer;
  OffloadParamConfig offload_param;
};

/// How state on NVMe is read and written.
struct AioConfig {
  std::int64_t block_size = 1 << 20;      // bytes of a call
  std::int64_t queue_depth = 8;           // calls under way
  std::int64_t intra_op_parallelism = 1;  // threads, without io_uring
};

enum class KeyStatus : std::uint8_t { kApplied, kNotApplicable, kRefused };
enum class KeyOrigin : std::uint8_t { kFile, kAuto, kFlag };

/// The use of one key that was given. Refused keys never get here: they are errors.
struct KeyReport {
  std::string path;   // "zero_optimization.stage"
  std::string value;  // resolved, as JSON
  KeyOrigin origin = KeyOrigin::kFile;
  KeyStatus status = KeyStatus::kApplied;
  std::string reason;     // why it is not applicable
  std::string from = {};  // what filled "auto": "--batch_size"; empty: the default did
};

struct Config {
  std::string origin;  // the file's name, for messages
  std::int64_t world_size = 1;
  std::int64_t sequence_parallel_size = 1;  // ranks that share each row; divides world_size

  BatchConfig batch;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  double gradient_clipping = 1.0;  // 0: off
  Fp16Config fp16;
  Bf16Config bf16;
  ZeroConfig zero;
  AioConfig aio;
  bool cpu_checkpointing = false;  // activation_checkpointing's
  bool prescale_gradients = false;
  double gradient_predivide_factor = 1;
  // Steps from one line of wall_clock_breakdown to the next; absent: 1, 0: no lines.
  std::optional<std::int64_t> steps_per_print;
  bool wall_clock_breakdown = false;
  bool dataloader_drop_last = false;
  bool decay_norms = true;  // false: no weight decay of norms and biases, as in the Trainer
  MonitorConfig monitors;
  CommsLoggerConfig comms_logger;
  FlopsProfilerConfig flops_profiler;

  std::vector<KeyReport> keys;  // every key given, in the table's order

  [[nodiscard]] Precision precision() const noexcept;
  /// Returns the number of ranks, or of groups of ranks that share rows.
  [[nodiscard]] std::int64_t data_ranks() const noexcept {
    return world_size / sequence_parallel_size;
  }
};

/// A flag that stands for a key: `{"zero_optimization.stage", "2", "--stage"}`. When the file says
/// something else (not "auto"), that is an error naming both.
struct KeyOverride {
  std::string path;
  std::string json;  // the value, as JSON
  std::string flag;
};

/// The value of "auto" for a key: `{"optimizer.params.lr", "1e-5", "--lr"}`.
struct KeyFill {
  std::string path;
  std::string json;
  std::string from;
};

struct ParseOptions {
  std::int64_t world_size = 1;
  bool batch_required = true;  // false: a file without batch keys is accepted
  std::vector<KeyOverride> overrides;
  std::vector<KeyFill> fills;
};

/// Parses the text of a DeepSpeed JSON. `origin` names it in messages. Throws user_error. Any
/// thread.
[[nodiscard]] Config parse_config(std::string_view text, std::string_view origin,
                                  const ParseOptions& options = {});
/// Reads the file and parses it.
[[nodiscard]] Config load_config(const std::string& path, const ParseOptions& options = {});

[[nodiscard]] inline Config parse_config(std::string_view text, std::string_view origin,
                                         std::int64_t world_size) {
  return parse_config(text, origin, ParseOptions{.world_size = world_size});
}
[[nodiscard]] inline Config load_config(const std::string& path, std::int64_t world_size) {
  return load_config(path, ParseOptions{.world_size = world_size});
}

/// The configuration as it will be used, defaults included: DeepSpeed's key names, indented JSON,
/// one newline at the end. Reading it back gives the same values.
[[nodiscard]] std::string resolved_json(const Config& config);

/// One line per key given: `zero_optimization.stage: 3  applied`, or
/// `zero_optimization.round_robin_gradients: true  not applicable: <reason>`; of a filled "auto",
/// `train_micro_batch_size_per_gpu: auto: 4, from --batch_size  applied`.
[[nodiscard]] std::vector<std::string> report_lines(const Config& config);

}  // namespace tandem
