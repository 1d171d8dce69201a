#!/usr/bin/env python3
"""The soak: one long run of two ranks with a fault every so often, started again each time it ends.

    tests/drills/soak.py --minutes 30

First the same steps without a fault, whose resident memory is watched; then with faults in turn: a rank killed, a rank
stopped and continued, a rank stopped past the deadline, the disk full for some seconds (as root, on a tmpfs of its
own; else left out), the reader of the output gone. Each time the launcher ends, it is started again with --resume auto.
The weights must come out equal. The last line is the summary, one JSON object; exit code 1 where something is wrong.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from drill import Run, default_bin, demo_flags, losses, scratch

DEADLINE_S = 3.0
SETTINGS = {"TANDEM_COLLECTIVE_TIMEOUT_S": str(DEADLINE_S), "TANDEM_RENDEZVOUS_TIMEOUT_S": "10",
            "TANDEM_HEARTBEAT_S": "0.3"}
START_LIMIT_S = 60
RANKS = 2


def flags(output, steps, save_every):
    return demo_flags(output, steps, ("--save_every", save_every, "--keep", 2, "--resume", "auto"),
                      progress="lines")


def hash_of(output):
    try:
        return hashlib.sha256((Path(output) / "model/model.safetensors").read_bytes()).hexdigest()
    except OSError:
        return None


def steps_done(output):
    return len(losses(output))


def resident_bytes(process):
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def step_rate(programs, folder):
    """Steps per second once it runs."""
    run = Run(programs, RANKS, flags(folder / "rate", 1000000, 1000), SETTINGS)
    end = time.monotonic() + START_LIMIT_S
    while steps_done(folder / "rate") < 20 and time.monotonic() < end:
        time.sleep(0.1)
    before, begun = steps_done(folder / "rate"), time.monotonic()
    time.sleep(4)
    rate = (steps_done(folder / "rate") - before) / (time.monotonic() - begun)
    run.end()
    return rate


def undisturbed(programs, output, steps, save_every):
    """(seconds, relative growth of each rank's resident memory after the first minute or third of the run)"""
    run = Run(programs, RANKS, flags(output, steps, save_every), SETTINGS)
    samples = {rank: [] for rank in range(RANKS)}
    processes = {}
    while run.process.poll() is None:
        for rank in samples:
            processes[rank] = processes.get(rank) or run.rank_process(rank)
            size = resident_bytes(processes[rank]) if processes[rank] else None
            if size:
                samples[rank].append((time.monotonic() - run.begun, size))
        time.sleep(0.5)
    code = run.finish(10)
    if code != 0:
        sys.exit(f"the undisturbed run ended with {code}:\n{run.text()}")
    seconds = time.monotonic() - run.begun
    begin = min(60, seconds / 3)
    drifts = []
    for taken in samples.values():
        # Saving model/ at the end is no part of the stretch.
        stretch = [size for at, size in taken if begin <= at <= seconds - 2]
        tenth = max(1, len(stretch) // 10)
        if stretch:
            first, last = statistics.median(stretch[:tenth]), statistics.median(stretch[-tenth:])
            drifts.append((last - first) / first)
    return seconds, drifts


class Disk:
    """A small tmpfs, where this process may mount one."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.is_own = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", folder], stderr=subprocess.DEVNULL).returncode == 0

    def fill(self):
        filler = self.folder / "filler"
        try:
            with open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
        except OSError:
            pass

    def empty(self):
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self):
        if self.is_own:
            subprocess.run(["umount", "-l", self.folder], check=False)


def disturb(fault, run, disk, victim):
    if fault == "kill":
        run.send(victim, signal.SIGKILL)
    elif fault == "continue":
        run.send(victim, signal.SIGSTOP)
        time.sleep(DEADLINE_S / 3)
        run.send(victim, signal.SIGCONT)
    elif fault == "stop":
        run.send(victim, signal.SIGSTOP)
    elif fault == "full disk":
        disk.fill()
        time.sleep(4)
        disk.empty()
    elif fault == "closed pipe":
        run.is_deaf = True


def disturbed(programs, disk, steps, save_every, every_s, limit_s):
    output = disk.folder / "run"
    faults = ["kill", "continue", "stop", "full disk", "closed pipe"]
    if not disk.is_own:
        faults.remove("full disk")
    chance = random.Random(7)
    done = {fault: 0 for fault in faults}
    ends = []
    begun = time.monotonic()
    next_fault = begun + every_s
    number = 0
    run = Run(programs, RANKS, flags(output, steps, save_every), SETTINGS)
    while True:
        if run.process.poll() is not None:
            code = run.finish(10)
            ends.append(code)
            text = run.text()
            if run.left():
                run.end()
                return done, ends, "processes were left behind"
            if code == 0:
                return done, ends, None
            # 1: a full disk; 4: a stopped rank; 137: a kill.
            if code not in (1, 4, 137) or time.monotonic() - begun > limit_s:
                print(text, flush=True)
                return done, ends, f"it ended with {code}"
            print(f"{time.monotonic() - begun:6.1f} s  ended with {code} at step {steps_done(output)}; again", flush=True)
            run = Run(programs, RANKS, flags(output, steps, save_every), SETTINGS)
        if time.monotonic() >= next_fault:
            next_fault = time.monotonic() + every_s
            fault = faults[number % len(faults)]
            number += 1
            print(f"{time.monotonic() - begun:6.1f} s  {fault} at step {steps_done(output)}", flush=True)
            disturb(fault, run, disk, chance.randrange(RANKS))
            done[fault] += 1
        if time.monotonic() - begun > limit_s:
            run.end()
            return done, ends, f"it did not end within {limit_s:.0f} s"
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--every_s", type=float, default=20, help="between two faults")
    arguments = parser.parse_args()
    with scratch() as name:
        folder = Path(name)
        steps = max(50, int(step_rate(arguments.bin, folder) * 60 * arguments.minutes))
        save_every = max(1, steps // max(10, int(20 * arguments.minutes)))
        seconds, drifts = undisturbed(arguments.bin, folder / "undisturbed", steps, save_every)
        print(f"undisturbed: {steps} steps in {seconds:.1f} s, a checkpoint every {save_every}", flush=True)
        disk = Disk(folder / "disk")
        try:
            done, ends, wrong = disturbed(arguments.bin, disk, steps, save_every, arguments.every_s,
                                          10 * seconds + 600)
            equal = hash_of(folder / "undisturbed") == hash_of(disk.folder / "run") is not None
        finally:
            disk.close()
    # The drift of a short run is noise: it is printed, and does not decide.
    long_enough = arguments.minutes >= 5
    good = wrong is None and equal and (not long_enough or max(drifts, default=0) < 0.01)
    print(json.dumps({"drill": "soak", "minutes": arguments.minutes, "steps": steps, "save_every": save_every,
                      "faults": done, "ends": ends, "weights_equal": equal, "wrong": wrong,
                      "rss_drift": [round(drift, 5) for drift in drifts], "rss_counts": long_enough, "passed": good}),
          flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
