// models/io/adapter_keys.hpp — lists the fields of PEFT's LoraConfig: read, harmless or refused.
//
// A field that changes the adapters' effect on the base is read, or else refused by name unless its
// value means nothing (null, false, empty). A field in no list, of a later PEFT, is treated as a
// refused one. tests/models/lora/peft_fields.py compares the lists with PEFT's.
#pragma once

#include <array>
#include <string_view>

namespace tandem {

/// The beginning of all tensors' names in the file.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
/// The adapter's name, which tensors' names have in a state_dict in memory; PEFT reads files of
/// both forms.
inline constexpr std::string_view kDefaultName = ".default";

// These fields say how tensors are read, by which factor they count, or which modules have
// adapters.
inline constexpr std::array<std::string_view, 18> kReadAdapterKeys = {"peft_type",
                                                                      "base_model_name_or_path",
                                                                      "r",
                                                                      "lora_alpha",
                                                                      "lora_dropout",
                                                                      "use_rslora",
                                                                      "modules_to_save",
                                                                      "bias",
                                                                      "use_dora",
                                                                      "ensure_weight_tying",
                                                                      "rank_pattern",
                                                                      "alpha_pattern",
                                                                      "lora_bias",
                                                                      "init_lora_weights",
                                                                      "target_modules",
                                                                      "exclude_modules",
                                                                      "layers_to_transform",
                                                                      "layers_pattern"};

// These fields change no merged weight.
inline constexpr std::array<std::string_view, 12> kHarmlessAdapterKeys = {
    "auto_mapping",    "fan_in_fan_out", "inference_mode",    "megatron_core",
    "megatron_config", "peft_version",   "qalora_group_size", "revision",
    "task_type",       "runtime_config", "loftq_config",      "eva_config"};

// These fields ask for another sum than W + s B A, or for another place of it.
inline constexpr std::array<std::string_view, 12> kRefusedAdapterKeys = {
    "alora_invocation_tokens", "arrow_config",   "corda_config",      "kasa_config",
    "layer_replication",       "lora_ga_config", "monteclora_config", "target_parameters",
    "trainable_token_indices", "use_bdlora",     "use_qalora",        "velora_config"};

}  // namespace tandem
