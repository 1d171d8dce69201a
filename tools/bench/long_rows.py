#!/usr/bin/env python3
"""Tokens/s and memory of a step as rows get longer, beside PyTorch + transformers, and how both grow.

A 20 M Qwen3 from random weights; forward, backward, clipping at 1.0, AdamW. Each figure is a process of its own, so that its peak
of memory is its own; ours and theirs in turn, in the other order in the next round; ratios are taken round by round. "FLOPs" of a
step: 6 for each weight and token, and what lies below the diagonal of attention's two matmuls, three times; the slope is that of
the line through the logarithms of seconds a token over the length, beside that of FLOPs a token.

  .venv/bin/python tools/bench/long_rows.py [--lengths 256 1024 4096 8192] [--dtype fp32 bf16] [--rounds 3] [--under "chrt -f 1"]
      [--build build/release] [--json F]
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
TOKENS = 2048  # of a step at least
MIB = 1 << 20


def config_of(lengths):
    import step_peers

    return step_peers.config_of("qwen3") | {"max_position_embeddings": max(1024, *lengths)}


def rows_of(length):
    return max(1, TOKENS // length)


def flops_of(config, length):
    from scaling import weights_of

    width = config["num_attention_heads"] * config["head_dim"] * config["num_hidden_layers"]
    return 3 * (2 * weights_of(config)[1] + 2 * width * length)


def resident(field):
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field)).split()[1]) * 1024


def peer(checkpoint, length, dtype, threads):
    """A process of PyTorch's: prints what it measured."""
    import step_peers

    step_peers.STEPS = 3 if length <= TOKENS else 1
    case = step_peers.Case("qwen3", None, checkpoint, step_peers.VOCABULARY, rows_of(length), length)
    side = step_peers.Torch(case, dtype, threads, "cpu")
    print(json.dumps({"tokens_per_s": side.round(), "peak": resident("VmHWM"), "loss": side.losses[0]}))


def theirs(args, folder, length, dtype):
    command = [*args.under, sys.executable, __file__, "--peer", str(folder / "model"), "--lengths", str(length), "--dtype", dtype,
               "--threads", str(args.threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def ours(args, folder, length, dtype, checkpointing):
    rows = rows_of(length)
    name = f"step/qwen3/{rows}x{length}/{dtype}/full{'/checkpointing' if checkpointing else ''}"
    command = [*args.under, str(args.build / "bin/bench_step"), f"--config={folder / 'config.json'}", f"--rows={rows}",
               f"--length={length}", f"--benchmark_filter=^{name}/min_time", "--benchmark_format=json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    entry = report["benchmarks"][0]
    return {"tokens_per_s": entry["tokens_per_s"], "peak": entry["peak_MiB"] * MIB, "loss": entry["loss_1"]}


SIDES = {"tandem": lambda *a: ours(*a, False), "checkpointing": lambda *a: ours(*a, True), "torch": theirs}


def measure(args, folder):
    """{dtype/length/side: a list with what each round measured}"""
    found = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    for number in range(args.rounds):
        for dtype in args.dtype:
            for length in args.lengths:
                for side in list(SIDES) if number % 2 == 0 else reversed(SIDES):
                    values = found.setdefault(f"{dtype}/{length}/{side}", [])
                    if len(values) <= number:
                        values.append(SIDES[side](args, folder, length, dtype))
                        if args.json:
                            args.json.write_text(json.dumps(found))
    return found


def report(args, config, found):
    from scaling import slope

    for dtype in args.dtype:
        print(f"\n## A step as rows get longer, {dtype}\n`.venv/bin/python tools/bench/long_rows.py --dtype {dtype} --rounds {args.rounds}`\n\n"
              "| rows x length | MFLOP a token | tokens/s | PyTorch tokens/s | ratio | checkpointing tokens/s | GFLOP/s | PyTorch GFLOP/s | "
              "peak MiB | checkpointing peak MiB | PyTorch peak MiB |\n" + "|---" * 11 + "|")
        seconds = {side: [] for side in SIDES}
        for length in args.lengths:
            cells = {side: found[f"{dtype}/{length}/{side}"] for side in SIDES}
            rates = {side: [value["tokens_per_s"] for value in values] for side, values in cells.items()}
            rate = {side: statistics.median(values) for side, values in rates.items()}
            peak = {side: max(value["peak"] for value in values) / MIB for side, values in cells.items()}
            ratios = [a / b for a, b in zip(rates["tandem"], rates["torch"])]
            for side in SIDES:
                seconds[side].append(1 / rate[side])
            flops = flops_of(config, length)
            print(f"| {rows_of(length)} x {length} | {flops / 1e6:.1f} | {rate['tandem']:.0f} | {rate['torch']:.0f} | "
                  f"{statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}) | {rate['checkpointing']:.0f} | "
                  f"{rate['tandem'] * flops / 1e9:.0f} | {rate['torch'] * flops / 1e9:.0f} | {peak['tandem']:.0f} | "
                  f"{peak['checkpointing']:.0f} | {peak['torch']:.0f} |")
            losses = {side: values[0]["loss"] for side, values in cells.items()}
            if dtype == "fp32" and abs(losses["tandem"] - losses["torch"]) > 1e-4 or losses["tandem"] != losses["checkpointing"]:
                sys.exit(f"error: [long_rows] {dtype}, length {length}: the first losses differ: {losses}")
        if len(args.lengths) < 2:
            continue
        by_flops = slope(args.lengths, [flops_of(config, length) for length in args.lengths])
        slopes = ", ".join(f"{side} {slope(args.lengths, values):.2f}" for side, values in seconds.items())
        print(f"\nSeconds a token over the length, slope: {slopes}; FLOPs a token {by_flops:.2f}.", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096, 8192])
    parser.add_argument("--dtype", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--under", type=shlex.split, default=[], help="a command that each measured process runs under")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--json", type=Path, help="keeps what was measured, and goes on from there")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(args.peer, args.lengths[0], args.dtype[0], args.threads)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = config_of(args.lengths)
        (folder / "config.json").write_text(json.dumps(config))
        subprocess.run([args.build / "bin/make_model", "--config", folder / "config.json", "--seed", "0", "--output",
                        folder / "model"], check=True, stdout=subprocess.DEVNULL)
        report(args, config, measure(args, folder))


if __name__ == "__main__":
    main()
