#!/usr/bin/env python3
"""Measures the cost of monitors: two runs of the demo's model, one with all of them and one with none, that take turns.

    python3 tools/bench/monitors.py [--what all|none|trace|reports] [--steps 600] [--skip 20] [--rounds 3] [--turn_s .7]
        [-- FLAGS OF THE TRAINER]

Both runs are there at once, and one of them is stopped, with all its processes, while the other has the machine for a turn:
what else the machine does meets both alike. Where a kernel put the pages of a process makes it up to 10 % faster than its twin
for as long as both live, so that addresses are not random here (setarch -R). A step within which a run was stopped does not
count, nor do the first --skip of them: wandb's module takes a second of a CPU to start, which it gets from what training leaves,
over some hundred steps.
"All" is a config with tensorboard, csv_monitor and wandb (the module of this Python, or without one a process that reads and
drops), TensorBoard events, --trace and --status_socket, of which all three pages are asked for once a second. Ratios of
each round, all over none: of the median step and of the mean step. Losses of both are compared to the last digit. --what
trace: --trace alone over none. --what reports: comms_logger (verbose), flops_profiler and wall_clock_breakdown; what
flops_profiler measures the peak with lies between two steps. --what none: the control, nothing on either side.
"""

import argparse
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DROPS = "class Run:\n    def log(self, *_, **__): pass\n    def finish(self): pass\ndef init(**_): return Run()\n"


def scrape(path, ended):
    while not ended.wait(1):
        for page in ("/metrics", "/step", "/actors"):
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(path))
                    client.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
                    while client.recv(65536):
                        pass
            except OSError:
                pass  # not there yet, or no more


def command_of(args, folder, on):
    """(what to run, its environment), with what it reads in the folder"""
    config = {"train_batch_size": args.batch_size, "zero_optimization": {"stage": 3}}
    if on and args.what == "reports":
        config |= {"wall_clock_breakdown": True, "comms_logger": {"enabled": True, "verbose": True},
                   "flops_profiler": {"enabled": True, "profile_step": 30}}
    monitored = on and args.what == "all"
    if monitored:
        for block in ("tensorboard", "csv_monitor", "wandb"):
            config[block] = {"enabled": True}
    (folder / "ds.json").write_text(json.dumps(config))
    if importlib.util.find_spec("wandb") is None:
        (folder / "modules").mkdir(exist_ok=True)
        (folder / "modules/wandb.py").write_text(DROPS)
    run = folder / "run"
    command = ["setarch", "-R", args.build / "bin/finetune_zero3", "--deepspeed_config", folder / "ds.json", "--steps", args.steps,
               "--batch_size", args.batch_size, "--lr=1e-3", "--no-samples", "--progress=off", "--output_dir", folder / "run",
               *(["--trace"] if on and args.what in ("all", "trace") else []),
               *(["--status_socket=auto"] if monitored else ["--no-tensorboard"]), *args.flags]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return [str(part) for part in command], {**os.environ, "PYTHONPATH": str(folder / "modules"), "PATH": path}


def with_descendants(process):
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue  # it has ended
            children.setdefault(int(parent), []).append(int(entry.name))
    found = [process]
    for some in found:
        found += children.get(some, [])
    return found


class Run:
    """A run of the trainer that is stopped whenever it is not its turn."""

    def __init__(self, args, folder, on):
        self.folder = folder
        command, environment = command_of(args, folder, on)
        self.log = (folder / "log").open("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, env=environment)
        self.signal(signal.SIGSTOP)

    def signal(self, number):
        for process in with_descendants(self.process.pid):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass  # it has ended

    def turn(self, seconds):
        self.signal(signal.SIGCONT)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGSTOP)

    def lines(self):
        if self.process.returncode != 0:
            self.log.seek(0)
            sys.exit(f"exit code {self.process.returncode}\n{self.log.read()}")
        return [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]


def steps_of(lines, args):
    """Times of steps that no stop fell within: a stop lasts a turn."""
    return [line["step_time_s"] for line in lines[args.skip:] if line["step_time_s"] < args.turn_s]


def race(args, folder, number):
    """{on: its lines of metrics}"""
    for name in ("off", "on"):
        (folder / name).mkdir()
    runs = {on: Run(args, folder / ("on" if on else "off"), on) for on in (True, False)}
    ended = threading.Event()
    watcher = threading.Thread(target=scrape, args=(folder / "on/run/status.sock", ended))
    if args.what == "all":
        watcher.start()
    try:
        order = (True, False) if number % 2 else (False, True)
        while any(run.process.poll() is None for run in runs.values()):
            for on in order:
                runs[on].turn(args.turn_s)
            order = order[::-1]
    finally:
        ended.set()
        for run in runs.values():
            run.signal(signal.SIGKILL)
    return {on: run.lines() for on, run in runs.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--what", choices=("all", "none", "trace", "reports"), default="all")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--skip", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turn_s", type=float, default=.7)
    parser.add_argument("flags", nargs="*", help="of the trainer, for both sides")
    args = parser.parse_args()
    ratios = {"median": [], "mean": []}
    equal = 0
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            lines = race(args, Path(folder), number)
        losses = {on: [(line["loss"], line["grad_norm"]) for line in some] for on, some in lines.items()}
        equal += losses[True] == losses[False]
        times = {on: steps_of(some, args) for on, some in lines.items()}
        for name, function in (("median", statistics.median), ("mean", statistics.fmean)):
            ratios[name].append(function(times[True]) / function(times[False]))
        print(f"round {number + 1}: {len(times[True])} and {len(times[False])} steps, "
              + ", ".join(f"{name} {values[-1]:.4f}" for name, values in ratios.items()), flush=True)
    print(json.dumps({"wandb": importlib.util.find_spec("wandb") is not None, "rounds": args.rounds, "losses_equal": equal,
                      **{name: statistics.median(values) for name, values in ratios.items()}}))


if __name__ == "__main__":
    main()
