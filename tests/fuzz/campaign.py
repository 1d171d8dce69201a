#!/usr/bin/env python3
"""Runs every fuzz target and adds up its executions.

usage: campaign.py BIN [--runs N] [--seed S] [--jobs J]

BIN is a folder with the programs and fuzz_targets.txt (build/fuzz/bin: with sanitizers). N executions go to each
target. Prints one JSON object; exit 1 where a target crashed, was too slow or took too much memory.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def run(program, runs, seed):
    """(its summary or None, the end of what it said)"""
    done = subprocess.run([program, f"-runs={runs}", f"-seed={seed}"], text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    lines = done.stdout.splitlines()
    summary = next((line for line in reversed(lines) if line.startswith('{"target"')), None)
    return json.loads(summary) if done.returncode == 0 and summary else None, "\n".join(lines[-15:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    targets = (flags.bin / "fuzz_targets.txt").read_text(encoding="utf-8").split()
    with ThreadPoolExecutor(flags.jobs) as pool:
        ends = list(pool.map(lambda target: run(flags.bin / f"fuzz_{target}", flags.runs, flags.seed), targets))
    failed = [target for target, (summary, _) in zip(targets, ends, strict=True) if summary is None]
    for target, (summary, said) in zip(targets, ends, strict=True):
        if summary is None:
            print(f"{target}:\n{said}")
    print(json.dumps({"targets": len(targets), "executions": sum(summary["runs"] for summary, _ in ends if summary),
                      "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
