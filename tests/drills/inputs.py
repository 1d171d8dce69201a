#!/usr/bin/env python3
"""Files that once broke something, and damaged copies of each, through the programs that read them.

    tests/drills/inputs.py [FOLDER] [--mutations N] [--seed S] [--keep FOLDER]

FOLDER (else TANDEM_FAULT_INPUTS, else ../shared/faults beside the checkout) holds tokenizers/, configs/, deepspeed/ and
pickles/. Each file must give the exit code of EXPECTED; it and N damaged copies must end in 20 s of processors' time and
4 GiB, without a crash, with a code that wrong input may have and one line without control characters. So must damaged
copies of a reference of `tandem parity`, which is in every clone. --keep: where to leave the copies that fail.
The last line is the summary, one JSON object; exit code 1 when something failed, 77 when FOLDER is not there.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from drill import ROOT, default_bin, scratch

sys.path.insert(0, str(ROOT / "tests/fuzz"))
from mutate import damaged  # noqa: E402

# By the processors' clock, which other work on the machine does not move; and for one that waits and computes nothing.
CPU_LIMIT_S = 20
WAIT_LIMIT_S = 180
MEMORY_BYTES = 4 << 30
# The exit code of each input; of damaged copies: those of wrong input (2), of what does not fit (3), of a good file (0).
EXPECTED = {
    "tokenizers/plain": 0, "tokenizers/k_in_subroutine": 2, "tokenizers/replace_bomb": 2,
    "tokenizers/near_match_limit": 2,
    "configs/gpt2_head_513.json": 2, "configs/llama_head_1024.json": 2, "configs/phi3_head_520.json": 2,
    "configs/dense_overflow.json": 3, "configs/moe_one_layer_overflow.json": 3, "configs/moe_too_many_experts.json": 2,
    "deepspeed/fp16_power40.json": 0, "deepspeed/fp16_power32_hysteresis6.json": 0,
    "pickles/name_with_newline_0.pkl": 2, "pickles/name_with_newline_1.pkl": 2, "pickles/name_with_newline_2.pkl": 2,
    "pickles/swelling": 2,
}
CRASHED = re.compile(r"check failed|terminate called|Sanitizer|broken promise")
TEXTS = [json.dumps(text).encode() for text in
         ("aaaa", "Hello wörld 123\n\n  don't \t日本語 a\u0301\u0323", ("a" * 24 + " ") * 800)]


def swelling():
    """A pickle of 20 MB that asks for 14 GB: one text, encoded seven hundred times."""
    text = b"a" * (20 << 20)
    return (b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", len(text)) + text + b"q\x01X\x06\x00\x00\x00latin1q\x02"
            + b"h\x00h\x01h\x02\x86R" * 700 + b".")


def limits():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 1))


def run(command, stdin=b"", variables=None):
    """(exit code or None, what it printed, what it complained about)"""
    try:
        done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, timeout=WAIT_LIMIT_S, check=False,
                              preexec_fn=limits, env={**os.environ, **(variables or {})})
    except subprocess.TimeoutExpired:
        return None, "", ""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return None, "", ""
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class Kind:
    """How a file of one kind is read: `put` lays it into a folder, `play` runs the programs there."""

    may_end_with = (0, 2, 3)

    def __init__(self, programs, model):
        self.programs = programs
        self.model = model  # a small one, for what is no model

    def put(self, data, folder):
        (folder / self.name).write_bytes(data)


class Tokenizer(Kind):
    name = "tokenizer.json"

    def play(self, folder):
        return run([self.programs / "tandem", "tokenize", "--model_name", folder], b"\n".join(TEXTS) + b"\n")


class Config(Kind):
    name = "config.json"

    def play(self, folder):
        """The plan; where that fits into little memory, the model is made and a step of it trained."""
        model = folder / "model"
        planned = run([self.programs / "tandem", "plan", "--model_name", folder, "--host_memory_gb", "0.5",
                       "--max_length", "16", "--batch_size", "1"])
        if planned[0] != 0:
            return planned
        made = make_model(self.programs, folder / self.name, model)
        return made if made[0] != 0 else train(self.programs, model, folder, 1)


class DeepSpeed(Kind):
    name = "ds.json"
    # A scale that never fits is a bad state.
    may_end_with = (0, 2, 3, 5)

    def play(self, folder):
        return train(self.programs, self.model, folder, 60, "--deepspeed_config", folder / self.name)


class Pickle(Kind):
    def put(self, data, folder):
        for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
            (folder / name).write_bytes(data)

    def play(self, folder):
        return run([sys.executable, ROOT / "tools/fetch.py", "dataset", "cifar10", "--from", folder],
                   variables={"TANDEM_CACHE": str(folder / "cache")})


class Reference(Kind):
    """A file beside a small checkpoint, by `tandem parity`; 1: a check of numbers that do not agree."""

    may_end_with = (0, 1, 2)
    whole = ROOT / "tests/data/references/small_gpt2"

    def __init__(self, programs, model, name):
        super().__init__(programs, model)
        self.name = name

    def put(self, data, folder):
        shutil.copytree(self.whole, folder, dirs_exist_ok=True)
        super().put(data, folder)

    def play(self, folder):
        return run([self.programs / "tandem", "parity", folder])


def make_model(programs, config, output):
    return run([programs / "make_model", "--config", config, "--tokenizer", ROOT / "examples/demo", "--output", output])


def train(programs, model, folder, steps, *more):
    return run([programs / "finetune_zero3", "--model_name", model, "--dataset_name",
                ROOT / "examples/demo/instructions.json", "--lr", "1e-3", "--batch_size", "1", "--max_length", "16",
                "--steps", steps, "--output_dir", folder / "run", "--progress", "off", "--no-tensorboard",
                "--no-samples", "--loss_on", "all", *more])


def fault_of(result, may_end_with):
    """Returns the fault in a program's end; None: it ended as it must."""
    code, said, complaint = result
    if code is None:
        return "hangs"
    if code < 0 or code >= 128 or CRASHED.search(said + complaint):
        return "crashes"
    if code not in may_end_with:
        return "wrong_codes"
    lines = complaint.split("\n")[:-1]
    errors = [line for line in lines if line.startswith("error: [")]
    checks_failed = code == 1 and " FAIL\n" in said  # of parity, on the standard output
    if len(errors) != (0 if code == 0 or checks_failed else 1) or (errors and lines[-1] != errors[0]):
        return "unclear_lines"
    return "unclear_lines" if re.search(r"[\x00-\x09\x0b-\x1f\x7f]", complaint) else None


def inputs(folder, programs, model):
    """(name, kind, bytes)"""
    kinds = {"tokenizers": Tokenizer, "configs": Config, "deepspeed": DeepSpeed, "pickles": Pickle}
    for group, kind in kinds.items():
        for path in sorted((folder / group).iterdir()):
            file = path / "tokenizer.json" if path.is_dir() else path
            yield f"{group}/{path.name}", kind(programs, model), file.read_bytes()
    for file in sorted(Reference.whole.glob("*.*")):
        yield f"parity/{file.name}", Reference(programs, model, file.name), file.read_bytes()
    yield "pickles/swelling", Pickle(programs, model), swelling()


def damaged_copy(data, source):
    """Damages the beginning of a long file, which is read first, or its end."""
    window = 4096
    at = source.choice((0, max(0, len(data) - window)))
    return data[:at] + damaged(data[at:at + window], source) + data[at + window:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = ROOT / "../shared/faults"
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("TANDEM_FAULT_INPUTS", beside))
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--mutations", type=int, default=100, help="damaged copies of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="inputs whose name contains this")
    parser.add_argument("--keep", type=Path)
    flags = parser.parse_args()
    if not (flags.folder / "tokenizers").is_dir():
        print(f"[inputs] {flags.folder} is not there; name a folder of inputs, or set TANDEM_FAULT_INPUTS")
        return 77
    programs = flags.bin.resolve()
    counts = dict.fromkeys(("crashes", "hangs", "wrong_codes", "unclear_lines"), 0)
    failed = []

    def play(job):
        name, kind, data, number, scene = job
        folder = scene / f"{name.replace('/', '-')}-{number}"
        folder.mkdir()
        kind.put(data, folder)
        result = kind.play(folder)
        shutil.rmtree(folder, ignore_errors=True)
        must = (EXPECTED[name],) if number == 0 and name in EXPECTED else kind.may_end_with
        fault = fault_of(result, must)
        if fault:
            counts[fault] += 1
            failed.append(f"{name} {number}: {fault}, exit {result[0]}: {(result[2].splitlines() or [''])[-1][:200]}")
            print(failed[-1], flush=True)
            if flags.keep:
                flags.keep.mkdir(exist_ok=True)
                (flags.keep / folder.name).write_bytes(data)

    with scratch() as scene:
        model = Path(scene) / "model"
        make_model(programs, ROOT / "examples/demo/config.json", model)
        chosen = [one for one in inputs(flags.folder, programs, model) if flags.only in one[0]]
        jobs = []
        for name, kind, data in chosen:
            source = random.Random(f"{flags.seed} {name}")
            jobs += [(name, kind, damaged_copy(data, source) if number else data, number, Path(scene))
                     for number in range((0 if name == "pickles/swelling" else flags.mutations) + 1)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(play, jobs))
    print(json.dumps({"drill": "inputs", "inputs": len(chosen), "mutations": len(jobs) - len(chosen), **counts,
                      "failed": sorted(failed)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
