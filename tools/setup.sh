# shellcheck shell=bash
# tools/setup.sh — what ./tandem setup does; sourced by it. Idempotent: looks first, installs only what is missing.
# Packages of the system come from tools/packages.txt, Python packages from requirements*.txt into .venv.
# A stamp of these lists' contents in .cache/ lets later commands skip the look.

: "${root:?tools/setup.sh is sourced by ./tandem}"
packages_file="$root/tools/packages.txt"
venv_python="$root/.venv/bin/python"
os_release=/etc/os-release
no_packages=no # yes: packages of the system are left to the user

system_name() { # debian-12; an unknown system: "unknown-"
  sed -nE 's/^(ID|VERSION_ID)="?([^"]*)"?$/\1=\2/p' "$os_release" 2>/dev/null |
    awk -F= '{ value[$1] = $2 } END { print (value["ID"] ? value["ID"] : "unknown") "-" value["VERSION_ID"] }'
}

is_known_system() { grep -qE "^system $(system_name)( |\$)" "$packages_file"; }

system_packages() { # the names on this system
  sed -e 's/#.*//' "$packages_file" | awk -v here="$(system_name)=" '
    NF == 0 || $1 == "system" { next }
    { name = $1; for (i = 2; i <= NF; ++i) if (index($i, here) == 1) name = substr($i, length(here) + 1); print name }'
}

missing_packages() {
  local package
  for package in $(system_packages); do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || echo "$package"
  done
}

# The lines of a requirements file that .venv does not meet. No network, nothing imported.
missing_requirements() {
  if [[ ! -x $venv_python ]]; then
    grep -Ev '^[[:space:]]*(#|$)' "$1" || true
    return
  fi
  "$venv_python" -I - "$1" <<'PYTHON'
import sys
from importlib import metadata
for line in open(sys.argv[1]):
    line = line.split("#")[0].strip()
    if not line:
        continue
    name, _, wanted = line.partition("==")
    try:
        found = metadata.version(name).split("+")[0]
    except metadata.PackageNotFoundError:
        found = None
    if found is None or (wanted and found != wanted):
        print(line)
PYTHON
}

# requirements.txt, or where TANDEM_TORCH_VERSION is set, a copy of it that asks for that torch.
run_requirements() {
  if [[ -z ${TANDEM_TORCH_VERSION:-} ]]; then
    echo "$root/requirements.txt"
    return
  fi
  mkdir -p "$root/.cache"
  sed "s/^torch==.*/torch==$TANDEM_TORCH_VERSION/" "$root/requirements.txt" >"$root/.cache/requirements.txt"
  echo "$root/.cache/requirements.txt"
}

requirement_files() { # run|prepare|test: each of them needs what those before it need
  run_requirements
  if [[ $1 != run ]]; then echo "$root/requirements-prepare.txt"; fi
  if [[ $1 == test ]]; then echo "$root/requirements-test.txt"; fi
}

setup_stamp() { # the content that a stamp must have to be good
  { cat "$packages_file" "$root"/requirements*.txt; echo "$root ${TANDEM_TORCH_VERSION:-}"; } | sha256sum
}

setup_is_done() { # run|prepare|test
  local stamp="$root/.cache/setup-$1"
  [[ -f $stamp && -x $venv_python && $(<"$stamp") == "$(setup_stamp)" && -z $(missing_programs) ]]
}

missing_programs() {
  local program
  for program in clang++-19 cmake ctest ninja; do
    command -v "$program" >/dev/null || echo "$program"
  done
}

# Runs a command with its output in a log, which is shown only when it fails.
quietly() { # log name, command...
  local log="$root/.cache/$1.log"
  shift
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 25 "$log" >&2
    echo "error: [setup] \`$*\` failed; the whole output is in $log" >&2
    return 1
  fi
}

install_packages() {
  local as_root=()
  if [[ $(id -u) != 0 ]]; then
    if ! command -v sudo >/dev/null; then
      die 1 "[setup] these packages are missing and there is no sudo; as root: apt-get install $*"
    fi
    as_root=(sudo)
  fi
  say "setup: installing packages: $*"
  # Lists and packages of two days may meet in between: then both are fetched again.
  twice fetch_packages "$@"
}

fetch_packages() { # packages...; as_root is the caller's
  quietly apt-update "${as_root[@]}" apt-get update -qq -o Acquire::Retries=3 || return 1
  quietly apt-install "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq -o Acquire::Retries=3 --no-install-recommends "$@"
}

# What asks a network fails at times for reasons that are gone a moment later.
twice() { # command...
  "$@" && return
  say "setup: once more, in 15 s"
  sleep 15
  "$@"
}

make_venv() {
  if [[ -x $venv_python ]]; then
    return
  fi
  say "setup: making .venv"
  if ! quietly venv python3 -I -m venv "$root/.venv"; then
    rm -rf "$root/.venv"
    die 1 "[setup] python3 -m venv failed; it needs the package python3-venv (apt-get install python3-venv)"
  fi
}

pip_install() { quietly pip "$venv_python" -I -m pip install --disable-pip-version-check --no-input --retries 10 "$@"; }

install_requirements() { # requirements file
  local torch
  make_venv
  torch=$(missing_requirements "$1" | grep '^torch==' || true)
  say "setup: installing into .venv: $(missing_requirements "$1" | tr '\n' ' ')${torch:+(torch is a large download, once)}"
  twice pip_install -r "$1"
}

check_setup() { # run|prepare|test: reports, changes nothing
  local missing=0 packages file lines
  if command -v dpkg-query >/dev/null; then
    packages=$(missing_packages)
  else
    packages=""
    echo "packages: no dpkg here; tools/packages.txt has their names on Debian"
  fi
  if [[ -n $packages ]]; then
    echo "packages: missing: ${packages//$'\n'/ }"
    missing=1
  else
    echo "packages: nothing missing"
  fi
  while IFS= read -r file; do
    lines=$(missing_requirements "$file")
    if [[ -z $lines ]]; then
      echo "$(basename "$file"): nothing missing"
    elif [[ $file == *-prepare.txt && $1 == run ]]; then
      echo "$(basename "$file"): missing, installed with the first prepare: ${lines//$'\n'/ }"
    elif [[ $file == *-test.txt && $1 != test ]]; then
      echo "$(basename "$file"): missing, needed for test and bench only: ${lines//$'\n'/ }"
    else
      echo "$(basename "$file"): missing: ${lines//$'\n'/ }"
      missing=1
    fi
  done < <(requirement_files test)
  lines=$(missing_programs)
  if [[ -n $lines ]]; then
    echo "not in PATH: ${lines//$'\n'/ }"
    missing=1
  fi
  return $missing
}

# Installs the packages that are missing; on a system that the table does not have, names them and ends.
setup_packages() {
  local packages
  if [[ $no_packages == yes ]]; then
    say "setup: the packages of the system are left to you (tools/packages.txt)"
    return
  fi
  if command -v dpkg-query >/dev/null; then packages=$(missing_packages); else packages=$(system_packages); fi
  if [[ -z $packages ]]; then
    return
  fi
  if ! is_known_system; then
    die 1 "[setup] $(system_name) is not a system of tools/packages.txt; install what Debian calls ${packages//$'\n'/ }; then run ./tandem setup --no-packages"
  fi
  if grep -qE "^system $(system_name) untried" "$packages_file"; then
    say "setup: $(system_name) is untried: the packages have Debian's names"
  fi
  # shellcheck disable=SC2086  # a list of names
  install_packages $packages || exit 1
}

setup() { # run|prepare|test
  local file kind
  if setup_is_done "$1"; then
    return
  fi
  mkdir -p "$root/.cache"
  setup_packages
  while IFS= read -r file; do
    if [[ -n $(missing_requirements "$file") ]]; then
      install_requirements "$file" || exit 1
    fi
  done < <(requirement_files "$1")
  for kind in run prepare test; do
    setup_stamp >"$root/.cache/setup-$kind"
    if [[ $kind == "$1" ]]; then break; fi
  done
}
