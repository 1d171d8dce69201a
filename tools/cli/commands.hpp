// tools/cli/commands.hpp — the subcommands of `tandem`, each in a file of its own. argv[0] is the
// subcommand's name. They throw Error; main turns that into one line and an exit code.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

int run_checkpoint(int argc, char** argv);
int run_config(int argc, char** argv);
int run_convert(int argc, char** argv);
int run_doctor(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_launch(int argc, char** argv);
int run_logits(int argc, char** argv);
int run_merge(int argc, char** argv);
int run_parity(int argc, char** argv);
int run_plan(int argc, char** argv);
int run_report(int argc, char** argv);
int run_schedule(int argc, char** argv);
int run_tokenize(int argc, char** argv);
int run_top(int argc, char** argv);

/// For `shell`, bash or zsh; the commands, with blanks between.
[[nodiscard]] std::string completion_script(std::string_view shell, std::string_view commands);

}  // namespace tandem
