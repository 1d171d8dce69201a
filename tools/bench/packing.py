#!/usr/bin/env python3
"""Packed rows beside padded ones: tokens of the data per second of training, padding not counted.

    python3 tools/bench/packing.py --model DIR --dataset alpaca.json [--batch_size 4 8] [--rounds 3] [-- FLAGS OF THE TRAINER]

Both sides are finetune_zero3 on the same records, --max_length and rows per micro-batch, in turns, each in a process of its
own; --packing off pads a micro-batch to its longest record, as it does by itself, and takes four times the steps, which are
about as many tokens. A side's figure is the sum of its steps' tokens over the sum of their times, without the first one. What
counts is the ratio within one round; its median and range are printed, and one line of JSON.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 1


def measure(args, packing, rows, folder):
    output = Path(folder) / f"{packing}-{rows}"
    count = WARM_UP + args.steps * (4 if packing == "off" else 1)
    command = [args.build / "bin/finetune_zero3", "--model_name", args.model, "--dataset_name", args.dataset, "--lr=1e-5", f"--packing={packing}",
               f"--batch_size={rows}", f"--max_length={args.max_length}", f"--steps={count}", "--progress=off",
               "--no-tensorboard", "--output_dir", output, *args.flags]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{packing}: exit code {done.returncode}\n{done.stderr}")
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()][WARM_UP:]
    tokens = sum(step["tokens"] for step in steps)
    return tokens / sum(step["step_time_s"] for step in steps), tokens / len(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--batch_size", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("flags", nargs="*", help="of the trainer, for both sides")
    args = parser.parse_args()
    figures = {}
    for rows in args.batch_size:
        rounds = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append({packing: measure(args, packing, rows, folder) for packing in ("off", "bfd")})
        ratios = sorted(both["bfd"][0] / both["off"][0] for both in rounds)
        rates = {packing: statistics.median(both[packing][0] for both in rounds) for packing in ("off", "bfd")}
        print(f"{rows} rows of up to {args.max_length}: off {rates['off']:.0f} tokens/s ({rounds[0]['off'][1]:.0f} a step), bfd {rates['bfd']:.0f} "
              f"({rounds[0]['bfd'][1]:.0f} a step), ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)
        figures[rows] = {"off": rates["off"], "bfd": rates["bfd"], "ratio": statistics.median(ratios)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
