#!/usr/bin/env bash
# Builds this tree for 64-bit Arm on a machine of another kind, and runs its programs under QEMU.
#
#   tests/install/arm64.sh FOLDER [TEST_PROGRAM...]      without any: test_runtime test_actors test_model
#
# Unpacks Debian's arm64 packages into FOLDER/sysroot and LibTorch's arm64 wheel into FOLDER/site; nothing is installed. clang 19
# compiles, mold links, and qemu-aarch64-static runs the test programs. The kernels' tests run once more with vectors of 128, 256
# and 512 bits (SVE). At last the trainer makes five steps of the demo, whose losses stand beside those of build/release, where
# that is built. A second call goes on with FOLDER. Prints a line for each program; exits with 1 if one has failed. Needs apt,
# clang 19, mold, .venv, and at the first call a network.
set -euo pipefail

folder=$(realpath -m "${1:?usage: arm64.sh FOLDER [TEST_PROGRAM...]}")
shift
programs=("$@")
[[ $# -gt 0 ]] || programs=(test_runtime test_actors test_model)
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
sysroot=$folder/sysroot
# The libraries of the table, and a C++ library to compile against.
mapfile -t packages < <(sed -nE 's/^(z?lib[a-z0-9+-]*-dev).*/\1/p' "$root/tools/packages.txt" | grep -v clang)
packages+=(libc6-dev libstdc++-12-dev libgcc-12-dev)

# An apt of its own, which knows arm64 alone: this machine's packages and lists stay as they are.
apt_of_arm64() { # command...
  local own=$folder/apt
  mkdir -p "$own"/etc/apt/{apt.conf.d,preferences.d} "$own"/var/lib/{apt/lists/partial,dpkg} "$own/var/cache/apt/archives/partial"
  : >>"$own/var/lib/dpkg/status"
  cp -r /etc/apt/sources.list* "$own/etc/apt/"
  cp /etc/apt/apt.conf.d/* "$own/etc/apt/apt.conf.d/"
  apt-get -qq -o Dir="$own" -o Dir::State::status="$own/var/lib/dpkg/status" -o Dir::Etc::trustedparts=/etc/apt/trusted.gpg.d \
    -o Dir::Bin::methods=/usr/lib/apt/methods -o APT::Architecture=arm64 -o APT::Architectures=arm64 \
    -o APT::Sandbox::User=root "$@"
}

unpack_sysroot() {
  local package
  apt_of_arm64 update
  apt_of_arm64 -y --no-install-recommends --download-only install "${packages[@]}" >"$folder/packages.log"
  for package in "$folder"/apt/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  # Links by a whole path would lead out of the sysroot.
  find "$sysroot" -type l -lname '/*' | while read -r link; do
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot$(readlink "$link")")" "$link"
  done
}

# The wheel of the pinned torch, and the two libraries of CUDA that its CPU part is linked with.
unpack_torch() {
  local version wheel
  version=$(sed -n 's/^torch==//p' "$root/requirements.txt")
  "$root/.venv/bin/python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 -d "$folder/wheels" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 --platform manylinux_2_17_aarch64 \
    "torch==$version" "nvidia-cuda-cupti==13.*" "nvidia-cuda-runtime==13.*"
  for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
  cp "$folder"/site/nvidia/*/lib/lib{cupti,cudart}.so.13 "$folder/site/torch/lib/"
}

find_qemu() {
  command -v qemu-aarch64-static && return
  if [[ ! -x $folder/qemu/usr/bin/qemu-aarch64-static ]]; then
    (cd "$folder" && apt-get -qq -o APT::Sandbox::User=root download qemu-user-static &&
      dpkg-deb -x qemu-user-static_*.deb qemu) >&2
  fi
  echo "$folder/qemu/usr/bin/qemu-aarch64-static"
}

configure() {
  local kind settings=()
  for kind in LIBRARY INCLUDE PACKAGE; do settings+=(-DCMAKE_FIND_ROOT_PATH_MODE_$kind=ONLY); done
  for kind in EXE MODULE SHARED; do settings+=(-DCMAKE_${kind}_LINKER_FLAGS=-fuse-ld=mold); done
  PKG_CONFIG_LIBDIR=$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig:$sysroot/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$sysroot \
    cmake -S "$root" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_SYSTEM_NAME=Linux \
    -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu -DCMAKE_CXX_COMPILER=clang++-19 \
    -DCMAKE_CXX_COMPILER_TARGET=aarch64-linux-gnu -DCMAKE_SYSROOT="$sysroot" "-DCMAKE_FIND_ROOT_PATH=$sysroot;$folder/site" \
    -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER "${settings[@]}" "-DCMAKE_CROSSCOMPILING_EMULATOR=$qemu;-L;$sysroot" \
    -DTANDEM_TORCH_DIR="$folder/site/torch" -DTANDEM_BENCH=OFF -DTANDEM_CUDA=OFF -DTANDEM_UNITY=ON
}

status=0
run_program() { # title, processor, program, argument...
  local title=$1 processor=$2 program=$3 began=$SECONDS code=0
  shift 3
  "$qemu" -L "$sysroot" -cpu "$processor" "$folder/build/bin/$program" "$@" >"$folder/$title.log" 2>&1 || code=$?
  echo "arm64: $title: exit $code, $(grep -cE '^\[       OK \]' "$folder/$title.log" || true) passed," \
    "$(grep -cE '^\[  FAILED  \] .*ms\)$' "$folder/$title.log" || true) failed, $((SECONDS - began)) s"
  [[ $code == 0 ]] || status=1
}

# Prints the losses of five steps of the demo. The command runs the trainer.
demo_losses() { # name, command...
  local out=$folder/demo_$1
  shift
  "$@" --steps 5 --dtype fp32 --progress off --no-tensorboard --output_dir "$out" >"$out.log" 2>&1
  sed -nE 's/.*"loss": ?([0-9.]+).*/\1/p' "$out/metrics.jsonl" | paste -sd' '
}

mkdir -p "$folder"
[[ -d $sysroot/usr ]] || unpack_sysroot
[[ -d $folder/site/torch ]] || unpack_torch
qemu=$(find_qemu)
configure >"$folder/configure.log" 2>&1 || { tail -5 "$folder/configure.log" >&2; exit 1; }
ninja -C "$folder/build" "${programs[@]}" finetune_zero3 >"$folder/build.log" 2>&1 ||
  { grep -m5 -E 'error:|FAILED' "$folder/build.log" >&2; exit 1; }
# A death test starts its program anew, which without binfmt_misc is not run under QEMU.
for program in "${programs[@]}"; do run_program "$program" max "$program" --gtest_filter='-*Death*'; done
if [[ " ${programs[*]} " == *" test_actors "* ]]; then
  for quads in 1 2 4; do
    run_program "kernels_$((128 * quads))_bits" "max,sve-max-vq=$quads" test_actors \
      --gtest_filter='*Kernel*:*Rounding*:*SplitMaster*:*Reduce*'
  done
fi
echo "arm64: losses of the demo: $(demo_losses arm64 "$qemu" -L "$sysroot" -cpu max "$folder/build/bin/finetune_zero3")" || status=1
if [[ -x $root/build/release/bin/finetune_zero3 ]]; then
  echo "$(uname -m): losses of the demo: $(demo_losses here "$root/build/release/bin/finetune_zero3")"
fi
exit "$status"
