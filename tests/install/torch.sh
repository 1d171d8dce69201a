#!/usr/bin/env bash
# Builds engine, models and the trainer against another LibTorch and compares it with this tree's own build.
#
#   tests/install/torch.sh VERSION FOLDER
#
# Installs that torch into FOLDER (without the libraries of a GPU), builds into FOLDER/build, runs the parity of all families there,
# and trains the demo's model in fp32 and bf16 with both builds. Prints a line for each: tests passed, and which losses are equal to
# the last bit. Exits with 1 if a test fails or a loss in fp32 differs. Needs build/release, .venv and a network.
set -euo pipefail
version=${1:?usage: torch.sh VERSION FOLDER}
folder=$(realpath -m "${2:?usage: torch.sh VERSION FOLDER}")
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
ours=$root/build/release

mkdir -p "$folder"
if [[ ! -d $folder/torch ]]; then
  "$root/.venv/bin/python" -m pip install -q --no-deps --target "$folder/site" "torch==$version"
  mv "$folder/site/torch" "$folder/torch"
fi
cmake --preset release -S "$root" -B "$folder/build" -DTANDEM_TORCH_DIR="$folder/torch" -DTANDEM_BENCH=OFF >"$folder/log"
cmake --build "$folder/build" --target finetune_zero3 test_models >>"$folder/log"
status=0

parity='Models/Parity.*:Families/References.*:Models/ExpertsReference.*'
passed=$("$folder/build/bin/test_models" --gtest_filter="$parity" 2>>"$folder/log" | tee -a "$folder/log" |
  sed -nE 's/^\[  PASSED  \] ([0-9]+ tests?)\.$/\1/p') || status=1
echo "torch $version: parity of the families: ${passed:-none} passed$([[ $status == 0 ]] || echo ', some failed')"

# Trains the demo's model with a build; prints a hash of the losses and gradient norms of its steps.
losses() { # build folder, type
  "$root/.venv/bin/python" - "$root/tools" "$1/bin/finetune_zero3" "$2" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import loss_matrix
fine = loss_matrix.run("demo", [sys.argv[2], "--recipe", "deepspeed_example", "--progress", "off", "--no-tensorboard", "--steps", "60",
                                "--dtype", sys.argv[3]])
sys.exit(0 if fine else 1)
PYTHON
}
for type in fp32 bf16; do
  before=$(losses "$ours" "$type")
  after=$(losses "$folder/build" "$type")
  if [[ $before == "$after" ]]; then
    echo "torch $version: losses in $type: equal to the last bit ($after)"
  else
    echo "torch $version: losses in $type: $after, here $before"
    if [[ $type == fp32 ]]; then status=1; fi
  fi
done
exit "$status"
