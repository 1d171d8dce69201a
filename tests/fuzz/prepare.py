#!/usr/bin/env python3
"""Runs ./tandem prepare on damaged data, templates and tokenizer files of every kind that it reads.

usage: prepare.py [--runs N] [--seed S] [--only NUMBER] [--keep DIR]

Run NUMBER of a seed has the same input each time. Success, or exit code 1 or 2 with one line without control characters
and no file left behind, is right; all else is a failure: a signal, a backtrace, two lines, more time or memory than the
bounds below, an error that prepare itself calls its own fault. Prints one JSON object; exit 1 where a run failed.
"""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import prepare_inputs

SKIPPED = 77
PORTION = 100  # inputs that lie on the disk at a time
MOST_CPU_S = 40
MOST_S = 900  # a machine may be busy
MOST_BYTES = 4 << 30
# In the place of prepare's own bounds, so that a campaign does not wait.
TEMPLATE_S = 2.0
TEMPLATE_BYTES = 1 << 28
FREE_UNPACKED_BYTES = 1 << 19

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads do not live through fork()
sys.path.insert(0, str(prepare_inputs.ROOT / "tools"))
try:
    import transformers.utils.chat_template_utils  # noqa: F401 - once, for all runs

    from prepare import bounds, command
except ImportError as missing:
    print(f"skipped: {missing}; ./tandem setup installs requirements-prepare.txt with the first prepare or test")
    sys.exit(SKIPPED)


def run_child(input, folder):
    """Never returns. Its standard output and error are files beside the data."""
    code = 99
    try:
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        bounds.TEMPLATE_S = TEMPLATE_S
        bounds.TEMPLATE_BYTES = TEMPLATE_BYTES
        bounds.FREE_UNPACKED_BYTES = FREE_UNPACKED_BYTES
        data = input.data.replace("{folder}", str(folder)) if "{folder}" in input.data else str(folder / input.data)
        flags = [str(folder / word) if word in input.files else word for word in input.flags]
        code = command.main(["--model_name", str(model_of(input, folder)), "--dataset_name", data, "--output", str(folder / "x.tokens"), *flags])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def model_of(input, folder):
    """The demo's folder, or a copy with the files that the input has in the place of its own."""
    others = [name for name in input.files if name in (*prepare_inputs.MODEL_FILES, "adapter_config.json")]
    if not others:
        return prepare_inputs.DEMO
    model = folder / "model"
    base = model / "base" if "adapter_config.json" in others else model
    base.mkdir(parents=True)
    for name in prepare_inputs.MODEL_FILES:
        if (prepare_inputs.DEMO / name).is_file() and not ("chat_template.jinja" == name and "tokenizer_config.json" in others):
            shutil.copy(prepare_inputs.DEMO / name, base)
    for name in others:
        (model / name).write_bytes(input.files[name])
    return model


def fault_of(status, folder):
    """(exit code, what is wrong or None)"""
    code = os.waitstatus_to_exitcode(status)
    err = (folder / "err").read_bytes().decode(errors="backslashreplace")
    left = [path.name for path in folder.iterdir() if "x.tokens" in path.name]
    if code not in (0, 1, 2):
        return code, f"ended with {code}: {err[-600:]}"
    if code == 0:
        out = (folder / "out").read_text(errors="backslashreplace")
        right = left == ["x.tokens"] and not err and all(line.isprintable() for line in out.splitlines())
        return code, None if right else f"success with {left}, said {err[-300:]!r}"
    if err.count("\n") != 1 or not err.startswith("error: [") or not err[:-1].isprintable():
        return code, f"not one line: {err[-600:]!r}"
    if left:
        return code, f"leaves {left} behind"
    return code, err if "this is a fault of tandem" in err else None


def wait(child):
    """Its status; after MOST_S it is killed."""
    end = time.monotonic() + MOST_S
    pause = 0.002
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


class Runs:
    def __init__(self, flags):
        self.flags = flags
        self.codes = collections.Counter()
        self.kinds = collections.Counter()
        self.failed = {}
        self.slowest = (0.0, -1)  # seconds, run

    def input_of(self, number):
        return prepare_inputs.made(random.Random(f"{self.flags.seed}:{number}"))

    def run(self, folder):
        """All inputs of a folder that make() filled: one process each."""
        for at in sorted(folder.iterdir(), key=lambda path: int(path.name)):
            input = self.input_of(int(at.name))
            begin = time.monotonic()
            child = os.fork()
            if child == 0:
                run_child(input, at)
            code, fault = fault_of(wait(child), at)
            self.slowest = max(self.slowest, (round(time.monotonic() - begin, 1), int(at.name)))
            self.codes[code] += 1
            self.kinds[input.kind] += 1
            if fault:
                self.failed[int(at.name)] = f"{input.kind}: {fault}"
                print(f"run {at.name}: {input.kind}: {fault}", file=sys.stderr, flush=True)
                if self.flags.keep:
                    shutil.copytree(at, self.flags.keep / at.name, dirs_exist_ok=True)
            shutil.rmtree(at)


def write(runs, numbers, folder):
    """The files of some runs; in a process of its own, since threads of the writing libraries do not live through fork()."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for number in numbers:
                (folder / str(number)).mkdir()
                for name, data in runs.input_of(number).files.items():
                    (folder / str(number) / name).write_bytes(data)
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"the inputs of runs {numbers[0]} to {numbers[-1]} cannot be made")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this run alone")
    parser.add_argument("--keep", type=Path, help="a folder for the files of runs that failed")
    flags = parser.parse_args()
    runs, begin = Runs(flags), time.monotonic()
    numbers = [flags.only] if flags.only is not None else list(range(flags.runs))
    for at in range(0, len(numbers), PORTION):
        with tempfile.TemporaryDirectory() as folder:
            write(runs, numbers[at : at + PORTION], Path(folder))
            runs.run(Path(folder))
    print(json.dumps({"runs": len(numbers), "seed": flags.seed, "codes": dict(sorted(runs.codes.items())), "kinds": dict(sorted(runs.kinds.items())),
                      "seconds": round(time.monotonic() - begin), "slowest": runs.slowest, "failed": sorted(runs.failed)}))
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
