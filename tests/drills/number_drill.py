"""The drill numbers.py: numbers of whole runs against DeepSpeed's schedulers, and against torch and Transformers, drawn by seed.

    tests/drills/numbers.py --bin BIN [--runs N] [--seed S] [--deepspeed PYTHON] [--only schedules|runs] [--grid least]

- Schedulers: `tandem schedule` over the grid of schedule_grid.py beside DeepSpeed's classes, where PYTHON has deepspeed;
  without it beside what these gave for the least values of every count (tests/data/schedules/least_values.json).
- Runs: each draws a family, a shape, rows, masks (ends without labels, a record without any), ranks, stage, accumulation,
  clipping, optimizer, decay, warm-up and what the loss is the mean of (number_runs.py). Some are resumed on other ranks at
  another stage, and must then have every bit of the uninterrupted run. Loss, norm and weights are held to Transformers and
  torch in float64.

The bound is derived: the same training runs twice more in float64 with each operation, of forward, backward and optimizer,
off by NOISE = 4 times a draw of what float32 may lose there (tools/rounding.py). A figure may be as far from the truth as
FACTOR = 2 times the farther of these two, that is 8 deviations of an error in float32, and 4 u = 2^-22 of rounding what is
written. Where rounding could change a token's experts the run says nothing, and another seed is drawn.
The last line is a summary in JSON. Exit 1 if a case differs, 77 where torch or transformers is missing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import schedule_grid
from drill import ROOT, default_bin

SKIPPED = 77
RECORDED = ROOT / "tests/data/schedules/least_values.json"
CLOSE = 1e-12  # of a rate: libm and the order of operations
DEEPSPEED = "import json, sys; sys.path.insert(0, sys.argv[1]); import schedule_grid as g; " \
            "print(g.recorded(getattr(g, sys.argv[2])()))"


def expected_rates(python, grid):
    """The cases with DeepSpeed's rates: computed by `python`, or as they were recorded."""
    if python is None:
        return json.loads(RECORDED.read_text(encoding="utf-8"))
    done = subprocess.run([python, "-c", DEEPSPEED, Path(__file__).parent, grid], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=dict(os.environ, DS_ACCELERATOR="cpu"), check=False)
    if done.returncode:
        sys.exit(f"[numbers] {python} has no deepspeed that answers: {done.stderr.splitlines()[-1:]}")
    return json.loads(done.stdout[done.stdout.index("[\n"):])


def rates_of(programs, folder, case):
    """Tandem's rates, or what it says."""
    config = folder / "schedule.json"
    config.write_text(json.dumps({"train_batch_size": 1, "optimizer": {"type": "AdamW", "params": {"lr": case["optimizer_lr"]}},
                                  "scheduler": {"type": case["type"], "params": case["params"]}}))
    done = subprocess.run([programs / "tandem", "schedule", config, "--steps", str(schedule_grid.STEPS)], text=True,
                          capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def same(theirs, ours):
    if isinstance(theirs, str) or isinstance(ours, str):  # an error: both refuse
        return isinstance(theirs, str) and isinstance(ours, str)
    return all(abs(a - b) <= CLOSE * abs(a) for a, b in zip(theirs, ours, strict=True))


def compare_schedules(programs, folder, python, grid):
    """(cases, those that differ)"""
    cases = expected_rates(python, grid)
    apart = []
    for case in cases:
        ours = rates_of(programs, folder, case)
        if not same(case["lr"], ours):
            apart.append(f"{case['type']} {json.dumps(case['params'])}: DeepSpeed {case['lr']}, Tandem {ours}")
            print(apart[-1], flush=True)
    return len(cases), apart


def compare_runs(programs, folder, seed, count):
    """The figures of `count` drawn runs."""
    from number_runs import try_run

    found = {"runs": 0, "resumed": 0, "beyond": [], "without_labels": 0, "unsure": 0, "farthest": 0.0}
    while found["runs"] < count:
        result = try_run(programs, folder, seed)
        seed += 1
        if result is None:
            found["unsure"] += 1
            continue
        found["runs"] += 1
        found["resumed"] += result.resumed
        found["without_labels"] += result.without_labels
        found["farthest"] = max(found["farthest"], result.share)
        print(result.text, flush=True)
        if not result.holds:
            found["beyond"].append(result.seed)
    return {**found, "farthest": round(found["farthest"], 3)}


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each further one has the next")
    parser.add_argument("--only", choices=["schedules", "runs"])
    parser.add_argument("--grid", choices=["whole", "least"], default="whole", help="of schedulers, where deepspeed is there")
    parser.add_argument("--deepspeed", help="an interpreter that has deepspeed", default=os.environ.get("DEEPSPEED_PYTHON"))
    return parser.parse_args()


def main():
    flags = parsed()
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"[numbers] {missing}; requirements-test.txt lists it")
        return SKIPPED
    summary, wrong = {}, []
    with tempfile.TemporaryDirectory(prefix="tandem-numbers-") as name:
        folder = Path(name)
        if flags.only != "runs":
            cases, wrong = compare_schedules(flags.bin, folder, flags.deepspeed,
                                             {"whole": "whole", "least": "least_values"}[flags.grid])
            summary = {"schedules": cases, "schedules_apart": len(wrong)}
        if flags.only != "schedules":
            summary |= compare_runs(flags.bin, folder, flags.seed, flags.runs)
            wrong += summary["beyond"]
    print(json.dumps(summary))
    return 1 if wrong else 0
