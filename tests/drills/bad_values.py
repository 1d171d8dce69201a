#!/usr/bin/env python3
"""A value of a run's memory becomes not finite, as by a flipped bit; a checkpoint from before must remain.

A run that saves often is resumed from a checkpoint and stopped in its first step. One element of one array that the
checkpoint holds (a weight, a first or a second moment, drawn by seed) becomes a NaN or an infinity at every place of the
process's memory that has the array; then the run goes on to its end. Afterwards the newest checkpoint whose arrays are all finite must be one from before the change
or later, and `--resume auto` must take just that one and end with finite weights.

    tests/drills/bad_values.py [--runs 100] [--seed 1] [--bin BIN]

The last line of the output is the summary, one JSON object; exit code 1 where a run lost its finite checkpoints. Where a
process may not write to another one's memory, one line says so and the exit code is 77.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
from array import array
from pathlib import Path

from drill import ROOT, default_bin, demo_flags, scratch

DEMO = ROOT / "examples/demo"
KINDS = ("master", "exp_avg", "exp_avg_sq")
SAVE_EVERY, STEPS, MORE_STEPS = 3, 12, 3
LIMIT_S = 240
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 768, "hidden_size": 64,
          "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
          "max_position_embeddings": 512, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "tie_word_embeddings": False, "eos_token_id": 767, "initializer_range": 0.05, "torch_dtype": "float32"}


def tensors(file):
    """{name: bytes} of a safetensors file of float32."""
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + size])
    return {name: content[8 + size + one["data_offsets"][0]:8 + size + one["data_offsets"][1]]
            for name, one in header.items() if name != "__metadata__"}


def is_finite(checkpoint):
    """Whether the checkpoint is whole and none of its values is a NaN or an infinity."""
    if not (checkpoint / "manifest.json").exists():
        return False
    return all(math.isfinite(sum(map(abs, array("f", values)))) for kind in KINDS
               for file in checkpoint.glob(f"{kind}-*.safetensors") for values in tensors(file).values())


def checkpoints(output):
    """The newest one first."""
    return sorted((output / "checkpoints").glob("step-*"), reverse=True)


def overwrite(process, values, element, value):
    """Writes `value` into that element at each place in the process's memory that has `values`. The number of places."""
    key = values[:4096]
    places = 0
    with open(f"/proc/{process}/mem", "r+b", 0) as memory, open(f"/proc/{process}/maps", encoding="utf-8") as maps:
        for line in maps:
            span, rights = line.split()[:2]
            begin, end = (int(part, 16) for part in span.split("-"))
            if not rights.startswith("rw") or end - begin > 1 << 30:
                continue
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except (OSError, OverflowError, ValueError):
                continue
            at = content.find(key)
            while at >= 0:
                if content[at:at + len(values)] == values:
                    memory.seek(begin + at + 4 * element)
                    memory.write(struct.pack("<f", value))
                    places += 1
                at = content.find(key, at + 4)
    return places


class Trial:
    """One run, drawn by seed: it trains, is resumed, and is changed in the first step from then on."""

    def __init__(self, options, folder, number):
        drawn = random.Random(f"{options.seed}/{number}")
        self.drawn = drawn
        self.output = folder / f"run{number}"
        self.kind = drawn.choice(KINDS)
        self.value = drawn.choice([math.nan, math.inf, -math.inf])
        self.dtype = drawn.choice(["fp32", "bf16"])
        self.after = drawn.randint(1, STEPS - SAVE_EVERY)
        self.name = ""
        self.code = 0  # of the run that was changed
        self.command = [str(part) for part in (
            options.bin / "finetune_zero3", *demo_flags(self.output, self.after, (
                "--model_name", folder / "model", "--dataset_name", DEMO / "instructions.json", "--lr", "1e-3", "--dtype", self.dtype,
                "--save_every", SAVE_EVERY, "--keep", 2, "--gradient_accumulation_steps", 8, "--stage", drawn.randint(0, 3),
                "--overlap", drawn.choice(["off", "full"]))))]

    def run(self):
        """The problem; None where all went as it must."""
        first = subprocess.run(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if first.returncode != 0:
            return f"exit {first.returncode} before the change: {first.stderr.strip()[-200:]}"
        with subprocess.Popen(self.resumed(STEPS), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            while not (line := process.stdout.readline()).startswith("start "):
                if not line:
                    return "the run could not be resumed"
            places = self.change(process)
            try:
                process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return f"the run did not end within {LIMIT_S} s"
        self.code = process.returncode
        if places == 0:
            return "the array is not in the process's memory"
        finite = [one for one in checkpoints(self.output) if is_finite(one)]
        if not finite:
            return f"exit {self.code}: no finite checkpoint is left"
        return self.resume(finite[0])

    def resumed(self, steps):
        command = [*self.command, "--resume", "auto"]
        command[command.index("--steps") + 1] = str(steps)
        return command

    def change(self, process):
        """In how many places of its memory the array was found and changed."""
        process.send_signal(signal.SIGSTOP)
        try:
            held = tensors(next(checkpoints(self.output)[0].glob(f"{self.kind}-*.safetensors")))
            self.name = self.drawn.choice(sorted(held))
            values = held[self.name]
            return overwrite(process.pid, values, self.drawn.randrange(len(values) // 4), self.value)
        finally:
            process.send_signal(signal.SIGCONT)

    def resume(self, expected):
        try:
            done = subprocess.run(self.resumed(STEPS + MORE_STEPS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"--resume auto did not end within {LIMIT_S} s"
        taken = re.search(r"^resume +after step \d+, from (\S+)$", done.stdout, re.MULTILINE)
        if not taken or Path(taken[1]).name != expected.name:
            return f"--resume auto took {taken[1] if taken else 'none'}, not {expected.name}: {done.stderr.strip()[-200:]}"
        if done.returncode != 0 or not is_finite(checkpoints(self.output)[0]):
            return f"resumed from {expected.name}: exit {done.returncode}, {done.stderr.strip()[-200:]}"
        return None


def may_write_memory():
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with open(f"/proc/{process.pid}/mem", "r+b", 0):
                return True
        except OSError:
            return False
        finally:
            process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bin", type=Path, default=default_bin())
    options = parser.parse_args()
    if not may_write_memory():
        print("skipped: this user may not write to the memory of a process")
        return 77
    lost, seen = [], 0
    with scratch() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        subprocess.run([options.bin / "make_model", "--config", folder / "config.json", "--tokenizer", DEMO, "--output",
                        folder / "model"], check=True, stdout=subprocess.DEVNULL)
        for number in range(1, options.runs + 1):
            trial = Trial(options, folder, number)
            problem = trial.run()
            seen += trial.code != 0
            if problem:
                lost.append(f"run {number}: {trial.dtype}, after step {trial.after}, {trial.kind} of {trial.name} became "
                            f"{trial.value}: {problem}")
                print(lost[-1], flush=True)
            shutil.rmtree(trial.output, ignore_errors=True)
    print(json.dumps({"runs": options.runs, "ended_by_it": seen, "lost": len(lost)}))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
