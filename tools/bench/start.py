#!/usr/bin/env python3
"""From the command to the end of the first step, in seconds, on this machine.

    ./tandem bench start [--model DIR ...] [--dataset alpaca_data.json[.xz]] [--rounds 5] [--against BUILD] [--record F.md]

Each run is finetune_zero3 in a process of its own; what counts begins with the command and ends when metrics.jsonl has a line,
whereupon the run is killed. The parts are those of the run's line `start`: the program and its libraries, the model's
configuration and tokenizer, the data, the plan, memory and weights; then the first step. Each model twice: tokens are made
(the cache of tokens is empty), tokens are kept from the run before. Without --model: 20 and 300 million parameters, random
weights in fp32, written first; the larger one with --tokenizer's folder (which may hold tokenizer.json.xz), left out without
it. Without --dataset: the demo's records. The files lie in the page cache; --cold
takes the weights out of it before each run. --against: another build in turns, such as
that of an earlier commit, whose whole times are printed beside. Medians; --record puts what is printed at the end of
a page.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "bench"))
from memory_plan import DEMO  # noqa: E402
from tokenizer_peers import record, unpacked  # noqa: E402

SIZES = {
    "20M": dict(hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, vocab_size=4096),
    "300M": dict(hidden_size=768, intermediate_size=2304, num_hidden_layers=26, num_attention_heads=12, num_key_value_heads=6, vocab_size=151936),
}
FLAGS = ["--lr=1e-5", "--dtype=fp32", "--batch_size=1", "--max_length=256", "--steps=1000", "--no-tensorboard", "--no-samples", "--progress=off"]
POLL_S = 0.002


def make_models(build, folder, tokenizer):
    """(name, folder) of each."""
    made = []
    for name, size in SIZES.items():
        source = DEMO if name == "20M" else tokenizer
        if source is None:
            continue
        here = folder / f"tokenizer-{name}"
        here.mkdir()
        (here / "tokenizer.json").write_bytes(unpacked(source / "tokenizer.json", here).read_bytes())
        (here / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
        config = json.loads((DEMO / "config.json").read_text()) | size | {"max_position_embeddings": 8192}
        (here / "config.json").write_text(json.dumps(config))
        subprocess.run([build / "bin/make_model", "--config", here / "config.json", "--tokenizer", here, "--output", folder / name],
                       check=True, stdout=subprocess.DEVNULL)
        made.append((name, folder / name))
    return made


def take_out_of_page_cache(model):
    for path in model.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(build, model, dataset, cache, folder):
    """{part: seconds, "first step": .., "whole": ..}"""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        metrics, log = Path(output) / "metrics.jsonl", folder / "log"
        command = [build / "bin/finetune_zero3", "--model_name", model, "--dataset_name", dataset, "--output_dir", output, *FLAGS]
        with log.open("w") as out:
            begin = time.monotonic()
            process = subprocess.Popen(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"TANDEM_CACHE": str(cache)})
            while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
                time.sleep(POLL_S)
            whole = time.monotonic() - begin
            process.kill()
            process.wait()
        said = log.read_text()
        if not metrics.exists() or not metrics.stat().st_size:
            sys.exit(f"error: [start] {' '.join(map(str, command))}\n{said}")
        step = json.loads(metrics.read_text().splitlines()[0])["step_time_s"]
    line = next((line for line in said.splitlines() if line.startswith("start ")), "")
    parts = {name: float(seconds) for name, seconds in re.findall(r"([a-z]+) ([0-9.]+)(?:,|$)", line.partition(":")[2])}
    return parts | {"first step": step, "whole": whole}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, nargs="+", default=[])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    lines = []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    builds = [args.build] + ([args.against] if args.against else [])
    with tempfile.TemporaryDirectory(prefix="tandem-start-") as name:
        folder = Path(name)
        models = [(model.name, model) for model in args.model] or make_models(args.build, folder, args.tokenizer)
        if args.dataset:
            dataset = unpacked(args.dataset, folder)
        else:
            dataset = DEMO / "instructions.json"
        say(f"{args.rounds} rounds, {dataset.stat().st_size / 1e6:.1f} MB of records; seconds, medians\n")
        columns = ["program", "model", "data", "plan", "weights", "rest", "first step", "whole"]
        say(f"| model | tokens | {' | '.join(columns)} |" + (" before | ratio |" if args.against else ""))
        say("|---" * (2 + len(columns) + (2 if args.against else 0)) + "|")
        for name, model in models:
            found = {"made": [[] for _ in builds], "kept": [[] for _ in builds]}
            for _ in range(args.rounds):
                for side, build in enumerate(builds):
                    with tempfile.TemporaryDirectory(dir=folder) as cache:
                        for runs in found.values():
                            if args.cold:
                                take_out_of_page_cache(model)
                            runs[side].append(run(build, model, dataset, cache, folder))
            for what, sides in found.items():
                row = [f"{statistics.median(one.get(column, float('nan')) for one in sides[0]):.2f}" for column in columns]
                if args.against:
                    ratios = sorted(theirs["whole"] / ours["whole"] for ours, theirs in zip(*sides))
                    row += [f"{statistics.median(one['whole'] for one in sides[1]):.2f}",
                            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"]
                say(f"| {name} | {what} | {' | '.join(row)} |")
    if args.record:
        record(args.record, "From the command to the first step", "./tandem bench start", lines)


if __name__ == "__main__":
    main()
