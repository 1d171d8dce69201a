#!/usr/bin/env python3
"""Rows that 1, 2 and 4 ranks share: tokens/s, the memory of a rank, and which bits are equal.

finetune_zero3 on a small model from random weights and one long record; the ranks divide this machine's CPUs, so tokens/s say what
sharing costs here and not what more CPUs would give. Variants run in turn, in the other order in the next round; ratios are taken
round by round. With --record, a file, a measurement may be made of several runs, each adding its rounds. With --fit, of a model whose keys have a window: a limit between the plans of one rank and of a rank of two. One rank is
refused with the smallest change; two, with that limit for each, train, and what the first held is printed beside it.

  python3 tools/bench/shared_rows.py [--length 8192] [--rounds 3] [--steps 4] [--build build/release] [--record FILE]
  python3 tools/bench/shared_rows.py --fit [--length 65536] [--steps 6]
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from memory_plan import MIB, ROOT, SHAPES, WINDOW, make_model, write_data

SHAPE = dict(vocab=4096, hidden=256, layers=4, heads=4, kv_heads=4, head_dim=64, intermediate=1024)
BLOCKS = 4
VARIANTS = [(1, 0), (1, BLOCKS), (2, 0), (2, BLOCKS), (4, 0), (4, BLOCKS)]


def command(args, folder, ranks, more):
    trainer = [args.build / "bin/finetune_zero3", "--model_name", folder / "model", "--dataset_name", folder / "data.json",
               "--recipe=deepspeed_example", "--lr=1e-3", "--batch_size=1", f"--max_length={args.length}", f"--steps={args.steps}",
               "--stage=3", "--dtype=fp32", "--overlap=offload", "--activation_checkpointing", "--progress=off", "--no-tensorboard",
               f"--sequence_parallel={ranks}", "--output_dir", folder / "out", *more]
    return [str(part) for part in ([] if ranks == 1 else [args.build / "bin/tandem", "launch", "-n", ranks, "--"]) + trainer]


def results(folder):
    """metrics of the steps, the summary, a hash of the saved weights"""
    steps = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "loss" in step]
    weights = hashlib.sha256()
    for file in sorted((folder / "out/model").glob("*.safetensors")):
        weights.update(file.read_bytes())
    return steps, json.loads((folder / "out/summary.json").read_text()), weights.hexdigest()[:16]


def one_run(args, folder, ranks, blocks):
    subprocess.run(command(args, folder, ranks, [f"--sequence_blocks={blocks}"]), check=True, capture_output=True)
    steps, summary, weights = results(folder)
    return {"ranks": ranks, "blocks": blocks, "rate": args.length / statistics.median(step["step_time_s"] for step in steps[1:]),
            "losses": [step["loss"] for step in steps], "weights": weights,
            "memory": [sum(kind[figure] for name, kind in summary["memory"].items() if name in ("host", "shared"))
                       for figure in ("predicted_bytes", "actual_bytes")]}


def ratios(rounds, ranks, blocks, base):
    """of tokens/s to those of the variant `base`: the median, the least, the most"""
    rates = [{(one["ranks"], one["blocks"]): one["rate"] for one in done} for done in rounds]
    each = [of[ranks, blocks] / of[base] for of in rates]
    return f"{statistics.median(each):.3f} ({min(each):.3f} .. {max(each):.3f})"


def compare(args, folder):
    asked = {"length": args.length, "steps": args.steps}
    record = json.loads(args.record.read_text()) if args.record and args.record.exists() else asked | {"rounds": []}
    if any(record[key] != asked[key] for key in asked):
        sys.exit(f"{args.record} has rounds of length {record['length']} and {record['steps']} steps; give another file")
    rounds = record["rounds"]
    for _ in range(args.rounds):
        order = VARIANTS if len(rounds) % 2 == 0 else reversed(VARIANTS)
        rounds.append([one_run(args, folder, ranks, blocks) for ranks, blocks in order])
        if args.record:
            args.record.write_text(json.dumps(record))
    print("| ranks that share a row | sequence_blocks | tokens/s | of one rank without | of as many without | MiB of rank 0, predicted | "
          "measured | error | last loss | weights |\n" + "|---" * 10 + "|")
    for ranks, blocks in VARIANTS:
        found = [one for done in rounds for one in done if (one["ranks"], one["blocks"]) == (ranks, blocks)]
        planned_bytes, held = found[0]["memory"]
        print(f"| {ranks} | {blocks} | {statistics.median(one['rate'] for one in found):.0f} | {ratios(rounds, ranks, blocks, (1, 0))} | "
              f"{ratios(rounds, ranks, blocks, (ranks, 0))} | {planned_bytes / MIB:.0f} | {held / MIB:.0f} | {planned_bytes / held - 1:+.1%} | "
              f"{found[0]['losses'][-1]!r} | {found[0]['weights']} |")
    with_blocks = {(one["weights"], tuple(one["losses"])) for done in rounds for one in done if one["blocks"]}
    print(f"\n{len(rounds)} rounds; weights and losses of all runs with blocks: {'equal, byte for byte' if len(with_blocks) == 1 else 'NOT EQUAL'}")
    return len(with_blocks) == 1


def planned(args, folder, ranks):
    flags = ["--model_name", folder / "model", "--device=cpu", "--dtype=fp32", "--overlap=offload", "--batch_size=1", f"--max_length={args.length}",
             "--activation_checkpointing", f"--world_size={ranks}", f"--sequence_parallel={ranks}", "--host_memory_gb=1000", "--json"]
    done = subprocess.run([str(part) for part in [args.build / "bin/tandem", "plan", *flags]], check=True, capture_output=True, text=True)
    rank = json.loads(done.stdout)["rank"]
    return sum(rank[kind]["total"] for kind in ("host", "shared") if kind in rank)


def fit(args, folder):
    one, two = planned(args, folder, 1), planned(args, folder, 2)
    limit = (one + two) / 2
    print(f"{args.length} tokens, planned: one rank {one / MIB:.0f} MiB, each of two {two / MIB:.0f} MiB; allowed for a rank {limit / MIB:.0f} MiB")
    refused = subprocess.run(command(args, folder, 1, [f"--host_memory_gb={limit / (1 << 30):.4f}"]), capture_output=True, text=True)
    said = refused.stderr.strip().splitlines()
    print(f"one rank: exit code {refused.returncode}: {next((line for line in said if 'error' in line), '')}\n{said[-1] if said else ''}")
    subprocess.run(command(args, folder, 2, [f"--host_memory_gb={2 * limit / (1 << 30):.4f}"]), check=True, capture_output=True)
    steps, summary, _ = results(folder)
    held = sum(kind["actual_bytes"] for name, kind in summary["memory"].items() if name in ("host", "shared"))
    print(f"two ranks: losses {' '.join(str(round(step['loss'], 4)) for step in steps)}; rank 0 held {held / MIB:.0f} MiB "
          f"of {limit / MIB:.0f}; {args.length / statistics.median(step['step_time_s'] for step in steps[1:]):.0f} tokens/s")
    return refused.returncode == 3 and held < limit and steps[-1]["loss"] < steps[0]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--length", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    args.length = args.length or (65536 if args.fit else 8192)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = SHAPES["windows"] | {"layers": 4} if args.fit else SHAPE
        make_model(args.build, folder / "model", shape, args.length, {"tie_word_embeddings": False} | (WINDOW if args.fit else {}))
        write_data(folder, args.length, 2)
        sys.exit(0 if (fit if args.fit else compare)(args, folder) else 1)


if __name__ == "__main__":
    main()
