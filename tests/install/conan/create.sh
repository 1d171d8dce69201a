#!/usr/bin/env bash
# Makes the runtime's Conan package out of this tree in WORK and builds and runs the test package against it.
#
#   tests/install/conan/create.sh CONAN COMPILER WORK
#
# Nothing outside WORK is touched, and no remote is asked: the package requires no other one.
set -euo pipefail
conan=$1 compiler=$2 work=$3
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../.." && pwd)
if [[ ! -x $conan ]]; then
  echo "skipped: no Conan at $conan; requirements-test.txt has it"
  exit 77
fi
rm -rf "$work"
mkdir -p "$work"
export CONAN_HOME=$work/home
arch=$(uname -m | sed s,aarch64,armv8,)
version=$("$compiler" -dumpversion)
case $("$compiler" --version) in *clang*) kind=clang ;; *) kind=gcc ;; esac
cat >"$work/profile" <<PROFILE
[settings]
os=Linux
arch=$arch
build_type=Release
compiler=$kind
compiler.version=${version%%.*}
compiler.libcxx=libstdc++11
compiler.cppstd=20
[conf]
tools.build:compiler_executables={"cpp": "$(command -v "$compiler")"}
tools.cmake.cmaketoolchain:generator=Ninja
PROFILE
# The build folder of the test package is beside its recipe otherwise.
cp -r "$root/tests/install" "$work/install"
exec "$conan" create "$root" --profile:all "$work/profile" --no-remote --test-folder "$work/install/conan"
