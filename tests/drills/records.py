#!/usr/bin/env python3
"""Records, tokenizer files, and with --bin config.json and adapter folders, with one member added, removed, renamed, nulled
or retyped, beside Transformers and PEFT.

usage: records.py [--runs N] [--minutes M] [--seed S] [--first N] [--only KIND] [--bin FOLDER]

Every outcome is the reference's value, a note that names the member, or a refusal that names it; all else is a silent
difference. The last line is one JSON object; exit 1 where there was a difference. Skips where transformers is missing.
"""

import argparse
import collections
import importlib.util
import itertools
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

SKIPPED = 77
ROOT = Path(__file__).resolve().parents[2]
SHARES = {"records": 40, "tokenizers": 10, "configs": 1, "adapters": 1}  # of the runs; the last two start the program
MOST_SHOWN = 12

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "tools" / "prepare")]


class Counts:
    def __init__(self):
        self.outcomes = collections.Counter()
        self.differences = collections.Counter()
        self.shown = []

    def add(self, kind, outcome, mutation, detail):
        self.outcomes[f"{kind}: {outcome}"] += 1
        if outcome == "DIFFERENCE":
            self.differences[f"{kind}: {mutation}"] += 1
            if len(self.shown) < MOST_SHOWN:
                self.shown.append(f"{kind}: {mutation}: {detail}")


def kinds_of(flags, folder):
    """name -> a function of a random.Random that gives (outcome, mutation, detail)."""
    import folder_kinds
    import record_kinds

    found = {"records": record_kinds.Records, "tokenizers": lambda: record_kinds.Tokenizers(folder)}
    if flags.bin is not None:
        program = Path(flags.bin).resolve() / "tandem"
        found |= {"configs": lambda: folder_kinds.Configs(program, folder / "configs"), "adapters": lambda: folder_kinds.Adapters(program, folder / "adapters")}
    return {name: make() for name, make in found.items() if flags.only in (None, name)}


def main():
    parser = argparse.ArgumentParser(description="Records and tokenizer files with one member changed, beside Transformers.")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end earlier, after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run: to try again what an earlier call has shown")
    parser.add_argument("--only", choices=sorted(SHARES))
    parser.add_argument("--bin", help="the folder with the program `tandem`")
    flags = parser.parse_args()
    missing = [name for name in ("transformers", "tokenizers", *(("torch", "peft") if flags.bin else ())) if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} missing; requirements-test.txt lists it")
        return SKIPPED
    counts = Counts()
    with tempfile.TemporaryDirectory(prefix="tandem-records-") as folder:
        kinds = kinds_of(flags, Path(folder))
        order = [name for name in kinds for _ in range(SHARES[name])]
        end = time.monotonic() + 60 * flags.minutes
        for number in itertools.takewhile(lambda _: time.monotonic() < end, range(flags.first, flags.first + flags.runs)):
            draw = random.Random(f"{flags.seed}:{number}")
            name = draw.choice(order)
            outcome, mutation, detail = kinds[name](draw)
            counts.add(name, outcome, mutation, f"run {number}: {detail}")
    silent = sum(counts.differences.values())
    print("\n".join(counts.shown), file=sys.stderr, flush=True)
    print(json.dumps({"runs": sum(counts.outcomes.values()), "outcomes": dict(sorted(counts.outcomes.items())), "silent_differences": silent,
                      "of": dict(counts.differences.most_common(40))}))
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
