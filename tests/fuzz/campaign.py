#!/usr/bin/env python3
"""Runs every fuzz target and adds up its executions.

usage: campaign.py BIN [--runs N] [--seed S] [--jobs J] [--record FILE]

BIN is a folder with the programs and fuzz_targets.txt (build/fuzz/bin: with sanitizers). N executions in all, in
portions of equal time: a target that is quick gets more of them. Ctrl-C or SIGTERM ends it behind the portions under way. --record: what has been
run is written into FILE behind each portion, and what FILE has of the very same programs counts: a campaign of hours may be
made of several.
Prints one JSON object; exit 1 where a target crashed, was too slow or took too much memory.
"""

import argparse
import collections
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FIRST_RUNS = 2_000  # of a target whose rate is not known yet
PORTION_S = 60
LEAST_S = 0.1  # to what seconds are rounded
# A throw makes ASan clean the shadow of the whole stack, collect the frames kept to find uses after return, and malloc note
# where it was called from: the first and last as much as finds errors, at a multiple of the rate; uses after return are
# looked for by the tests under preset asan. Leaks are looked for at the end of each portion.
STACK_KIB = 1024
SANITIZERS = {"ASAN_OPTIONS": "detect_stack_use_after_return=0:malloc_context_size=4:quarantine_size_mb=64",
              "UBSAN_OPTIONS": "print_stacktrace=1"}


def run(program, runs, seed):
    """(its summary or None, the end of what it said)"""
    command = f'ulimit -s {STACK_KIB} && exec "$0" -detect_leaks=0 -runs={runs} -seed={seed}'
    done = subprocess.run(["bash", "-c", command, program], text=True, errors="replace", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, env={**os.environ, **SANITIZERS}, start_new_session=True, cwd=program.parent)
    lines = done.stdout.splitlines()
    summary = next((line for line in reversed(lines) if line.startswith('{"target"')), None)
    return json.loads(summary) if done.returncode == 0 and summary else None, "\n".join(lines[-15:])


class Campaign:
    """Portions for the threads that run them, the target with the least time first."""

    def __init__(self, folder, runs, seed, record):
        self.folder = folder
        self.seed = seed
        self.record = record
        self.targets = (folder / "fuzz_targets.txt").read_text(encoding="utf-8").split()
        self.programs = {target: hashlib.sha256(self.program(target).read_bytes()).hexdigest() for target in self.targets}
        self.seconds = dict.fromkeys(self.targets, 0.0)
        self.runs = collections.Counter()
        self.failed = {}  # target: what it said
        if record is not None and record.exists():
            for target, entry in json.loads(record.read_text(encoding="utf-8")).items():
                if entry["program"] == self.programs.get(target):
                    self.runs[target] = entry["runs"]
                    self.seconds[target] = entry["seconds"]
                    self.seed = max(self.seed, entry["seed"])
        self.left = runs - self.runs.total()
        self.lock = threading.Lock()
        self.ended = False

    def program(self, target):
        return self.folder / f"fuzz_{target}"

    def write_record(self):
        if self.record is not None:
            done = {target: {"runs": self.runs[target], "seconds": round(self.seconds[target], 1), "seed": self.seed,
                             "program": self.programs[target]} for target in self.targets if self.runs[target]}
            beside = self.record.with_suffix(".new")
            beside.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
            beside.replace(self.record)

    def take(self):
        """(target, runs, seed) or None"""
        with self.lock:
            ready = [target for target in self.targets if target not in self.failed]
            if self.ended or self.left <= 0 or not ready:
                return None
            target = min(ready, key=lambda some: self.seconds[some])
            rate = self.runs[target] / max(self.seconds[target], LEAST_S) if self.runs[target] else 0
            runs = min(self.left, max(int(PORTION_S * rate), FIRST_RUNS))
            self.left -= runs
            self.seconds[target] += runs / rate if rate else PORTION_S  # so that the next thread takes another one
            self.seed += 1
            return target, runs, self.seed, runs / rate if rate else PORTION_S

    def work(self):
        while (portion := self.take()) is not None:
            target, runs, seed, expected_s = portion
            summary, said = run(self.program(target), runs, seed)
            with self.lock:
                if summary is None:
                    self.failed[target] = said
                    self.runs[target] = 0  # the next campaign begins it anew
                else:
                    self.runs[target] += summary["runs"]
                    self.seconds[target] += summary["seconds"] - expected_s
                self.write_record()
            print(f"{self.runs.total():,} of {self.runs.total() + max(self.left, 0):,}: {target}", file=sys.stderr, flush=True)

    def end(self, *_):
        self.ended = True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=Path, help="where an input that fails is left, too")
    parser.add_argument("--runs", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=Path)
    flags = parser.parse_args()
    campaign = Campaign(flags.bin.resolve(), flags.runs, flags.seed, flags.record)
    signal.signal(signal.SIGTERM, campaign.end)
    signal.signal(signal.SIGINT, campaign.end)
    with ThreadPoolExecutor(flags.jobs) as pool:
        for work in [pool.submit(campaign.work) for _ in range(flags.jobs)]:
            work.result()
    for target, said in campaign.failed.items():
        print(f"{target}:\n{said}")
    print(json.dumps({"targets": len(campaign.targets), "executions": campaign.runs.total(),
                      "least": min(campaign.runs[target] for target in campaign.targets),
                      "seconds": round(sum(campaign.seconds.values())), "failed": sorted(campaign.failed)}))
    return 1 if campaign.failed else 0


if __name__ == "__main__":
    sys.exit(main())
