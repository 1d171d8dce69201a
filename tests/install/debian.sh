#!/usr/bin/env bash
# Tries a fresh clone of this tree on a Debian release of its own: a chroot in which nothing but the base system is installed.
#
#   tests/install/debian.sh RELEASE FOLDER [COMMAND...]      RELEASE: bookworm (12), trixie (13), or later
#
# Makes the chroot in FOLDER by debootstrap (kept: a second call goes on with it), clones the last commit into it, and runs each
# COMMAND in the clone; without any: `./tandem train --steps 20` and `./tandem test --quick`. Prints a line with each command's exit
# status and time; its output lies in FOLDER.log. Exits with the first status that is not 0. Needs root, debootstrap and a network;
# mirror, pip's settings and certificates are this machine's.
set -euo pipefail

release=${1:?usage: debian.sh RELEASE FOLDER [COMMAND...]}
folder=$(realpath -m "${2:?usage: debian.sh RELEASE FOLDER [COMMAND...]}")
shift 2
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
commands=("$@")
[[ $# -gt 0 ]] || commands=("./tandem train --steps 20" "./tandem test --quick")

mirror=$({ sed -nE 's|^URIs: +(.*)|\1|p; s|^deb +(\[[^]]*\] +)?([^ ]+) .*|\2|p' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true; } |
  sed -n 1p)
mirror=${mirror:-http://deb.debian.org/debian}

make_chroot() {
  debootstrap --variant=minbase --include=ca-certificates "$release" "$folder" "$mirror" >"$folder.log" 2>&1 ||
    { tail -5 "$folder.log" >&2; exit 1; }
}

# Copies what the network asks of this machine: its name servers, its certificates, and the settings of apt and pip.
give_network() {
  local file
  cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/"
  [[ ! -f /etc/pip.conf ]] || cp /etc/pip.conf "$folder/etc/pip.conf"
  for file in /etc/apt/apt.conf.d/*; do
    if grep -qE 'Acquire' "$file"; then cp "$file" "$folder/etc/apt/apt.conf.d/"; fi
  done
}

run_inside() { # command
  env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
    ${PIP_CERT:+PIP_CERT=/etc/ssl/certs/ca-certificates.crt} \
    unshare --mount --pid --fork bash -c '
      mount -t proc proc "$1/proc"
      mount --rbind /sys "$1/sys"
      mount --rbind /dev "$1/dev"
      exec chroot "$1" bash -c "cd /tandem && $2"' inside "$folder" "$1"
}

[[ -x $folder/bin/bash ]] || make_chroot
give_network
rm -rf "$folder/tandem"
git clone -q --no-hardlinks "$root" "$folder/tandem"
status=0
for command in "${commands[@]}"; do
  began=$SECONDS
  run_inside "$command" >>"$folder.log" 2>&1 </dev/null || status=$?
  echo "debian $(cat "$folder/etc/debian_version"): $command: exit $status, $((SECONDS - began)) s"
  [[ $status == 0 ]] || break
done
exit "$status"
