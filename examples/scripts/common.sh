# examples/scripts/common.sh — for every script here: the programs, and settings that the caller's flags replace.
# TANDEM_BIN: the folder of the programs; without it they are built.
set -euo pipefail
root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../.." && pwd)

find_programs() {
  bin=${TANDEM_BIN:-}
  if [[ -z $bin ]]; then
    "$root/tandem" build release
    bin=$root/build/release/bin
  fi
}

flags=()    # the caller's
settings=() # ours, but for those
setting() { # flag, maybe its values
  local given
  for given in "${flags[@]}"; do
    [[ $given != "$1" && $given != "$1="* ]] || return 0
  done
  settings+=("$@")
}
