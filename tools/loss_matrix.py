#!/usr/bin/env python3
"""The losses of many short runs, to the last bit: loss_matrix.py BIN_DIR --model DIR --dataset FILE > before.txt

Trains `finetune_zero3` at every combination of type, stage, ranks and overlap, the demo and the CIFAR-10 net, and prints a
line per run: its setting, a hash of all losses and gradient norms, and the last loss. Two builds whose lines are equal
compute the same bits, so `diff` of two outputs shows what a change did to them.
"""

import argparse
import hashlib
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def digest(folder):
    """Hash of what the steps of a run computed, and the last loss."""
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [[step[key] for key in ("step", "loss", "lr", "grad_norm") if key in step] for step in steps]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16], told[-1][1], len(steps)


def run(name, command):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        done = subprocess.run([*command, "--output_dir", str(out)], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"{name}: exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            return False
        print(name, *digest(out), flush=True)
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--steps", default="6")
    args = parser.parse_args()
    trainer = str(args.bin / "finetune_zero3")
    recipe = ["--recipe", "deepspeed_example"]  # its bits stay, whatever the defaults become
    common = [*recipe, "--model_name", args.model, "--dataset_name", args.dataset, "--steps", args.steps, "--batch_size", "2",
              "--max_length", "64", "--lr", "1e-3", "--gradient_clipping", "0.5", "--progress", "off", "--no-tensorboard"]
    fine = run("demo", [trainer, *recipe, "--progress", "off", "--no-tensorboard", "--steps", "60"])
    for dtype, ranks, stage, overlap in itertools.product(["fp32", "bf16"], [1, 2], range(4), ["off", "full"]):
        launch = [str(args.bin / "tandem"), "launch", "-n", str(ranks), "--"] if ranks > 1 else []
        fine &= run(f"finetune {dtype} ranks {ranks} stage {stage} overlap {overlap}",
                    [*launch, trainer, *common, "--dtype", dtype, "--stage", str(stage), "--overlap", overlap,
                     *(["--speculate", "on"] if overlap == "full" else [])])
    fine &= run("cifar10", [str(args.bin / "cifar10"), "--dtype", "fp32", "--epochs", "1", "--steps", "100"])
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
