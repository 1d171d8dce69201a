#!/usr/bin/env python3
"""Runs damaged copies of given inputs through the fuzz target of their kind.

usage: mutate.py BIN TARGET FILE... [--mutations N] [--seed S] [--prefix TEXT]

BIN is a folder with the programs (build/fuzz/bin). TARGET reads each FILE itself and N copies with a few changes each, by
its limits of time and memory. Prints one JSON object; exit 1 where one of them crashes or takes too long.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

TELLING = b'{}[]",:0123456789-eE.\\nul \xff\x00'


def damaged(data, source):
    changed = bytearray(data)
    for _ in range(source.randint(1, 4)):
        if not changed:
            break
        at, kind = source.randrange(len(changed)), source.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << source.randrange(8)
        elif kind in (1, 2):
            changed[at] = source.choice(TELLING)
        elif kind == 3:
            del changed[at:at + source.randint(1, 8)]
        elif kind == 4:
            start = source.randrange(len(changed))
            changed[at:at] = changed[start:start + source.randrange(16)]
        else:
            del changed[at:]
    return bytes(changed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    parser.add_argument("target")
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--mutations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prefix", default="", help="put in front of each: the kind's letter, where a target has kinds")
    flags = parser.parse_args()
    source = random.Random(flags.seed)
    failed = []
    for file in flags.files:
        data = file.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            for number in range(flags.mutations + 1):
                copy = damaged(data, source) if number else data
                (Path(folder) / f"{number:05}").write_bytes(flags.prefix.encode() + copy)
            run = subprocess.run([flags.programs / f"fuzz_{flags.target}", *sorted(Path(folder).iterdir())], text=True,
                                 errors="replace", capture_output=True)
        if run.returncode != 0:
            failed.append(str(file))
            print("\n".join(run.stderr.splitlines()[-20:]), file=sys.stderr)
    print(json.dumps({"target": flags.target, "inputs": len(flags.files), "copies": flags.mutations * len(flags.files),
                      "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
