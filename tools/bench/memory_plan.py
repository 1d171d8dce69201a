#!/usr/bin/env python3
"""The memory plan against what runs really hold: finetune_zero3 in many configurations, predicted beside measured.

Each run trains a few steps of a model with random weights on records that fill --max_length, on as many processes as the
row says, and leaves its figures in summary.json: host memory (private, with the libraries' pages; the highest point) and,
between ranks, shared memory. "engine" is the part of the host's memory that came after the program had started and read its
data, so that the libraries' constant share does not flatter the comparison.

  python3 tools/bench/memory_plan.py [--build build/release] [--only SUBSTRING] [--steps 3] [--long]
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "examples" / "demo"
MIB = 1 << 20

SHAPES = {
    "small": dict(vocab=4096, hidden=512, layers=8, heads=8, kv_heads=4, head_dim=64, intermediate=1408),
    "middle": dict(vocab=8192, hidden=768, layers=10, heads=12, kv_heads=4, head_dim=64, intermediate=2048),
    "windows": dict(vocab=4096, hidden=128, layers=2, heads=2, kv_heads=2, head_dim=32, intermediate=512),
    "attends": dict(vocab=4096, hidden=64, layers=2, heads=2, kv_heads=2, head_dim=16, intermediate=256),
    "wide": dict(vocab=32768, hidden=768, layers=3, heads=12, kv_heads=12, head_dim=64, intermediate=3072),
}

# model, ranks, stage, dtype, overlap, micro-batch, length, accumulation, checkpointing
RUNS = [
    ("small", 1, 3, "fp32", "full", 4, 256, 1, False),
    ("small", 1, 3, "fp32", "offload", 4, 256, 1, True),
    ("small", 1, 0, "fp32", "off", 2, 128, 1, False),
    ("small", 1, 3, "bf16", "offload", 8, 256, 1, False),
    ("small", 1, 2, "fp16", "comm", 2, 128, 2, False),
    ("middle", 1, 3, "fp32", "offload", 1, 128, 1, False),
    ("middle", 1, 3, "bf16", "offload", 2, 512, 1, False),
    ("middle", 1, 3, "bf16", "full", 2, 512, 1, True),
    ("middle", 1, 1, "bf16", "comm", 1, 128, 4, False),
    ("wide", 1, 3, "fp32", "offload", 2, 256, 1, False),
    ("wide", 1, 3, "bf16", "offload", 2, 256, 1, True),
    ("small", 2, 3, "fp32", "full", 2, 256, 1, False),
    ("small", 2, 0, "fp32", "comm", 2, 128, 1, False),
    ("middle", 2, 3, "bf16", "offload", 1, 256, 1, False),
    ("middle", 2, 2, "fp32", "offload", 1, 128, 2, True),
    ("small", 4, 3, "bf16", "full", 1, 128, 1, False),
]


# One row that gets longer, with --long: of a model whose keys have a window, and of one so small that full attention takes minutes.
WINDOW = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 512}
LONG_RUNS = [(model, 1, 3, dtype, "offload", 1, length, 1, True)
             for model in ("windows", "attends") for dtype in ("fp32", "bf16") for length in (16384, 32768, 65536, 131072)]


def make_model(build, output, shape, positions, config):
    """Makes a model of the demo's config with the members of `config` in place of its own."""
    changed = output.with_name("config.json")
    changed.write_text(json.dumps(json.loads((DEMO / "config.json").read_text()) | config))
    flags = [f"--{key}={value}" for key, value in shape.items()]
    subprocess.run([build / "bin/make_model", "--config", changed, "--tokenizer", DEMO, "--output", output, f"--positions={positions}",
                    *flags], check=True, stdout=subprocess.DEVNULL)


def make_models(build, folder, needed):
    for name in needed:
        positions = 1 << 17 if name in ("windows", "attends") else 1024
        make_model(build, folder / name, SHAPES[name], positions, WINDOW if name == "windows" else {})


def write_data(folder, words_of_record=800, count=64):
    """Records much longer than any --max_length, of the demo's own words."""
    words = " ".join(record["output"] for record in json.loads((DEMO / "instructions.json").read_text())).split()
    draw = random.Random(1)
    records = [{"instruction": " ".join(draw.choices(words, k=words_of_record)), "input": "", "output": "yes"} for _ in range(count)]
    (folder / "data.json").write_text(json.dumps(records))


def run(build, folder, row, steps):
    model, ranks, stage, dtype, overlap, rows, length, accumulation, checkpointing = row
    output = folder / "out"
    command = [build / "bin/finetune_zero3", "--model_name", folder / model, "--dataset_name", folder / "data.json",
               "--recipe=deepspeed_example", "--lr=1e-4", f"--batch_size={rows}", f"--max_length={length}", f"--steps={steps}", f"--stage={stage}",
               f"--dtype={dtype}", f"--overlap={overlap}", f"--gradient_accumulation_steps={accumulation}",
               "--progress=off", "--no-tensorboard", "--output_dir", output]
    if checkpointing:
        command.append("--activation_checkpointing")
    if ranks > 1:
        command = [build / "bin/tandem", "launch", "-n", str(ranks), "--", *command]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{row}: exit code {done.returncode}\n{done.stderr}")
    memory = json.loads((output / "summary.json").read_text())["memory"]
    planned = json.loads((output / "memory_plan.json").read_text())["rank"]["host"]
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return memory, planned["process"], [step["step_time_s"] for step in steps if "loss" in step][-1]


def growth(lengths):
    """bytes for each further 16,384 tokens, from one length to the next"""
    return [(b[1] - a[1]) / (b[0] - a[0]) * 16384 for a, b in zip(lengths, lengths[1:])]


def print_growth(long):
    print("\nMiB for each further 16,384 tokens, from one length to the next:")
    for name, lengths in long.items():
        figures = [", ".join(f"{bytes / MIB:.1f}" for bytes in growth([(length, each[i]) for length, each in lengths])) for i in (0, 1)]
        print(f"- {name}: {figures[0]} predicted, {figures[1]} measured")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--only", default="", help="rows whose text contains this")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--long", action="store_true", help="a row that gets longer, instead")
    options = parser.parse_args()
    rows = [row for row in (LONG_RUNS if options.long else RUNS) if options.only in " ".join(map(str, row))]
    print("| model | ranks | stage | dtype | overlap | batch | accumulation | checkpointing | host predicted | measured | "
          "error | engine's part | error | shared predicted | measured | error | s a step |")
    print("|---" * 17 + "|")
    errors, long = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(options.build, folder, sorted({row[0] for row in rows}))
        write_data(folder, *((max(row[6] for row in rows), 2) if options.long else ()))
        for row in rows:
            memory, process, seconds = run(options.build, folder, row, options.steps)
            host, shared = memory["host"], memory.get("shared")
            off = host["predicted_bytes"] / host["actual_bytes"] - 1
            part = (host["predicted_bytes"] - process) / (host["actual_bytes"] - process) - 1
            errors.append(off)
            cells = list(row[:5]) + [f"{row[5]} x {row[6]}", row[7], "yes" if row[8] else "no",
                                     f"{host['predicted_bytes'] / MIB:.0f}", f"{host['actual_bytes'] / MIB:.0f}",
                                     f"{off:+.1%}", f"{(host['actual_bytes'] - process) / MIB:.0f}", f"{part:+.1%}"]
            if shared:
                cells += [f"{shared['predicted_bytes'] / MIB:.0f}", f"{shared['actual_bytes'] / MIB:.0f}",
                          f"{shared['predicted_bytes'] / shared['actual_bytes'] - 1:+.1%}"]
                errors.append(shared["predicted_bytes"] / shared["actual_bytes"] - 1)
            print("| " + " | ".join(map(str, cells + ["-"] * (16 - len(cells)) + [f"{seconds:.2f}"])) + " |", flush=True)
            long.setdefault(f"{row[0]}, {row[3]}", []).append((row[6], (host["predicted_bytes"], host["actual_bytes"])))
    print(f"\nlargest error {max(map(abs, errors)):.1%} over {len(rows)} runs (MiB)")
    if options.long:
        print_growth(long)


if __name__ == "__main__":
    main()
