#!/usr/bin/env python3
"""A run whose updates run ahead of the verdict, a tenth of them forced to be taken back, beside one that waits.

    speculation.py BIN --steps N

Exit 1 if a loss, a norm or a bit of the saved weights differs, or nothing was taken back.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SAME = ["loss", "grad_norm", "lr", "loss_scale", "tokens"]


def train(program, folder, flags):
    done = subprocess.run([program, "--output_dir", folder, "--progress", "lines", *flags], text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)}: exit {done.returncode}\n{done.stderr}")
    steps = [json.loads(row) for row in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    weights = hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest()
    return [row for row in steps if "loss" in row], weights


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    flags = parser.parse_args()
    common = ["--steps", str(flags.steps), "--batch_size", "1", "--max_length", "32",
              "--recipe", "deepspeed_example"]
    with tempfile.TemporaryDirectory(prefix="tandem-speculation-") as name:
        folder = Path(name)
        waits, waits_weights = train(flags.bin / "finetune_zero3", folder / "waits", [*common, "--overlap", "off"])
        ahead, ahead_weights = train(flags.bin / "finetune_zero3", folder / "ahead",
                                     [*common, "--overlap", "full", "--speculate", "on",
                                      "--forced_misses", "0.1"])
    redone = sum(row["verdict"] == "rollback" for row in ahead)
    differ = [i for i, (a, b) in enumerate(zip(waits, ahead, strict=True), 1)
              if any(a.get(key) != b.get(key) for key in SAME)]
    print(f"{len(ahead)} steps, {redone} taken back and redone: {len(differ)} steps differ, weights "
          f"{'equal' if waits_weights == ahead_weights else 'NOT equal'}")
    return 1 if differ or waits_weights != ahead_weights or redone == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
