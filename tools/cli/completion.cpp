// Completion of commands and flags. Flags are asked of `COMMAND --help` when they are completed, so
// that nothing is written down twice; what completes is the program that was typed, a path or not.
#include <string>
#include <string_view>

#include "tools/cli/commands.hpp"

namespace tandem {
namespace {

constexpr std::string_view kBash =
    R"sh(# eval "$(tandem completion bash)", also in ~/.bashrc
_tandem() {
  local current=${COMP_WORDS[COMP_CWORD]} flags
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current"))
  elif [[ $current == -* ]]; then
    flags=$("${COMP_WORDS[0]/#\~/$HOME}" "${COMP_WORDS[1]}" --help 2>/dev/null </dev/null |
      grep -oE '^ +-[^ ]*' | grep -oE -- '--[A-Za-z0-9_-]+' | sort -u)
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _tandem tandem ./tandem
)sh";

constexpr std::string_view kZsh =
    R"sh(#compdef tandem
# eval "$(tandem completion zsh)" behind compinit
_tandem() {
  local current=${words[CURRENT]}
  if ((CURRENT == 2)); then
    compadd -- @COMMANDS@
  elif [[ $current == -* ]]; then
    compadd -- $("${words[1]/#\~/$HOME}" "${words[2]}" --help 2>/dev/null </dev/null |
      grep -oE '^ +-[^ ]*' | grep -oE -- '--[A-Za-z0-9_-]+' | sort -u)
  else
    _files
  fi
}
compdef _tandem tandem ./tandem
)sh";

}  // namespace

std::string completion_script(std::string_view shell, std::string_view commands) {
  constexpr std::string_view kPlace = "@COMMANDS@";
  std::string text(shell == "bash" ? kBash : kZsh);
  return text.replace(text.find(kPlace), kPlace.size(), commands);
}

}  // namespace tandem
