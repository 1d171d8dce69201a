#!/usr/bin/env python3
"""Packed rows beside padded ones: tokens of the data per second of training, padding not counted.

    python3 tools/bench/packing.py --model DIR --dataset alpaca.json [--batch_size 4 8] [--rounds 3] [-- FLAGS OF THE TRAINER]

Both sides are finetune_zero3 on the same records, --max_length and rows per micro-batch, in turns, each in a process of its
own; --packing off pads a micro-batch to its longest record, as it does by itself, and takes four times the steps, which are
about as many tokens. A side's figure is the sum of its steps' tokens over the sum of their times, without the first one. What
counts is the ratio within one round; its median and range are printed, and one line of JSON. On a machine that has other
work, too, only the ratio of the processors' time means something: what a start and the first step take is subtracted.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 1


def train(args, packing, rows, steps, output):
    """The steps' lines of metrics.jsonl, and seconds of processors."""
    command = [args.build / "bin/finetune_zero3", "--model_name", args.model, "--dataset_name", args.dataset, "--lr=1e-5", f"--packing={packing}",
               f"--batch_size={rows}", f"--max_length={args.max_length}", f"--steps={steps}", "--progress=off",
               "--no-tensorboard", "--output_dir", output, *args.flags]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{packing}: exit code {done.returncode}\n{done.stderr}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return lines, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(args, packing, rows):
    """Tokens per second by the clock, per second of processors, and per step."""
    steps = args.steps * (4 if packing == "off" else 1)
    with tempfile.TemporaryDirectory() as folder:
        _, start = train(args, packing, rows, WARM_UP, Path(folder) / "start")
        lines, all_of_it = train(args, packing, rows, WARM_UP + steps, Path(folder) / "run")
    tokens = sum(line["tokens"] for line in lines[WARM_UP:])
    return {"clock": tokens / sum(line["step_time_s"] for line in lines[WARM_UP:]), "processors": tokens / (all_of_it - start), "step": tokens / steps}


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
        rounds = [{packing: measure(args, packing, rows) for packing in ("off", "bfd")} for _ in range(args.rounds)]
        figures[rows] = {}
        for what in ("clock", "processors"):
            ratios = sorted(both["bfd"][what] / both["off"][what] for both in rounds)
            off, bfd = (statistics.median(both[packing][what] for both in rounds) for packing in ("off", "bfd"))
            print(f"{rows} rows of up to {args.max_length}, by {what}: off {off:.0f} tokens/s ({rounds[0]['off']['step']:.0f} a step), bfd {bfd:.0f} "
                  f"({rounds[0]['bfd']['step']:.0f} a step), ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", flush=True)
            figures[rows][what] = {"off": off, "bfd": bfd, "ratio": statistics.median(ratios)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
