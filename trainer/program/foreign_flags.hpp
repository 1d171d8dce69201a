// trainer/program/foreign_flags.hpp — hints for flags of Transformers, TRL, LLaMA-Factory and
// DeepSpeed's example that have another name here, or none.
//
// A flag that means the same here is an alias where it is added (--learning_rate) and is not in
// this table.
#pragma once

#include <string_view>

namespace tandem {

/// Returns the end of the message "unknown flag --x; ...", such as "here it is --lora_r"; empty for
/// any other name.
[[nodiscard]] std::string_view foreign_flag_hint(std::string_view flag);
/// Returns a hint for a value that only another trainer's flag of the same name takes; empty for
/// any other value.
[[nodiscard]] std::string_view foreign_value_hint(std::string_view flag, std::string_view value);

}  // namespace tandem
