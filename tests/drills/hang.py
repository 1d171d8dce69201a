#!/usr/bin/env python3
"""The hang drill: ranks that die, stop, sleep, are slow or hang, in every phase of a run.

Each cell is one run in which one rank does something to itself at a known operation (TANDEM_FAULT, runtime/flight.hpp).
It must end within its limit with the documented exit code, the launcher must name that rank, and no process may be
left. A run that is to go on must end with the losses of an undisturbed one.

    tests/drills/hang.py            120 cells, some ten minutes
    tests/drills/hang.py --quick    9 cells
    tests/drills/hang.py --notice   how soon a kill and a stop are noticed, 10 busy loops beside the run

The last line of the output is the summary, one JSON object; exit code 1 when a cell failed.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from drill import Run, default_bin, demo_flags, losses, percentiles, scratch

DEADLINE_S = 2.0
RENDEZVOUS_S = 6.0  # where a rank does not come; a busy machine takes its time to start otherwise
HEARTBEAT_S = 0.25
STEPS = 6
# Allowances for a busy machine: until the fault happens, and for the end beside what a cell waits for by itself.
START_S = 90.0
SLACK_S = 20.0

PHASES = {
    "start": "meet:1",
    "loading": "load:1",
    "gather": "all-gather:20",
    "reduce": "reduce-scatter:20",
    "verdict": "norm:3",
    "update": "updates:3",
    "checkpoint": "checkpoint:1",
    "save": "save:1",
}
# The rank's action and the launcher's exit code; 0: the run goes on.
ACTIONS = {
    "kill": ("kill", 128 + signal.SIGKILL),
    "stop": ("stop", 4),
    "continue": ("stop", 0),
    "terminate": ("term", 128 + signal.SIGTERM),
    "suspend": ("stop", 0),
    "slow": ("sleep1.2", 0),
    "hang": ("sleep30", 4),
}
QUICK = [(2, "kill", 1, "gather"), (2, "kill", 0, "save"), (2, "stop", 1, "reduce"), (2, "stop", 0, "start"),
         (3, "stop", 2, "verdict"), (3, "hang", 1, "update"), (2, "suspend", 1, "gather"), (2, "slow", 0, "update"),
         (2, "terminate", 1, "loading")]


def all_cells():
    cells = [(2, action, rank, phase) for phase in PHASES for action in ACTIONS if action != "hang" for rank in (0, 1)]
    for index, phase in enumerate(PHASES):
        # Nobody knows which rank hangs before the ranks have met.
        third = "slow" if phase == "start" else "hang"
        cells += [(3, action, (index + at) % 3, phase) for at, action in enumerate(("kill", "stop", third))]
    return cells


def variables(fault=None, rendezvous_s=60):
    found = {"TANDEM_COLLECTIVE_TIMEOUT_S": str(DEADLINE_S), "TANDEM_RENDEZVOUS_TIMEOUT_S": str(rendezvous_s),
             "TANDEM_HEARTBEAT_S": str(HEARTBEAT_S)}
    if fault:
        found["TANDEM_FAULT"] = fault
    return found


def flags(output):
    return demo_flags(output, STEPS, ("--save_every", 3, "--keep", 2))


def steer(run, ranks, action, guilty):
    """Acts on the run from outside once the rank has stopped itself."""
    others = [rank for rank in range(ranks) if rank != guilty]
    if action == "continue":
        time.sleep(DEADLINE_S / 2)
        run.send(guilty, signal.SIGCONT)
    elif action == "suspend":
        for rank in others:
            run.send(rank, signal.SIGSTOP)
        time.sleep(1.5 * DEADLINE_S)
        for rank in others + [guilty]:
            run.send(rank, signal.SIGCONT)
            time.sleep(0.1)


def play(programs, cell, expected_losses, folder):
    """(faults of the cell, seconds from the fault to the end, whether the launcher named the rank)"""
    ranks, action, guilty, phase = cell
    plant, code = ACTIONS[action]
    output = Path(folder) / "-".join(map(str, cell))
    never_comes = action == "stop" and phase == "start"
    wait_s = RENDEZVOUS_S if never_comes else DEADLINE_S
    run = Run(programs, ranks, flags(output),
              variables(f"{guilty}:{plant}:{PHASES[phase]}", RENDEZVOUS_S if never_comes else 60))
    faults = []
    began = run.wait_line("[fault]", START_S)
    if began is None:
        faults.append("the fault did not happen")
        began = time.monotonic()
    else:
        steer(run, ranks, action, guilty)
    ended = run.finish(SLACK_S + (wait_s if action == "stop" else 0))
    took_s = time.monotonic() - began
    if ended is None:
        faults.append("it did not end in time")
    elif ended != code:
        faults.append(f"exit code {ended} instead of {code}")
    text = run.text()
    last = re.findall(r"^error: \[launch\] rank (\d+)( is stopped)?", text.replace(" of %d" % ranks, ""), re.MULTILINE)
    named = [int(number) for number, _ in last] == [guilty]
    if code != 0 and not named:
        faults.append("the launcher did not name the rank")
    if action == "stop" and named and not last[0][1]:
        faults.append("the launcher did not say that it is stopped")
    if action == "kill" and f"launch: of rank {guilty}, its last: {PHASES[phase].partition(':')[0]}" not in text:
        faults.append("the launcher did not show the rank's last operation")
    if action in ("slow", "hang") and "is stopped" in text:
        faults.append("a slow rank was taken for a stopped one")
    if code == 0 and losses(output) != expected_losses[ranks]:
        faults.append("other losses than an undisturbed run")
    left = run.left()
    if left:
        faults.append(f"processes left: {left}")
        run.end()
    if faults:
        print(text, flush=True)
    return faults, took_s, named or code == 0


def shared_memory():
    """Returns the files that carry a job's name; other programs of the project may have some there."""
    return {name for name in os.listdir("/dev/shm") if re.match("tandem-[0-9a-f]{32}", name)}


def matrix(programs, cells):
    begun = time.monotonic()
    memory = shared_memory()
    failed = []
    named = 0
    seconds = {}
    with scratch() as folder:
        expected = {}
        for ranks in sorted({cell[0] for cell in cells}):
            output = Path(folder) / f"undisturbed-{ranks}"
            code = Run(programs, ranks, flags(output), variables()).finish(120)
            expected[ranks] = losses(output)
            if code != 0 or len(expected[ranks]) != STEPS:
                sys.exit(f"an undisturbed run of {ranks} ranks ended with {code}")
        for number, cell in enumerate(cells):
            faults, took_s, was_named = play(programs, cell, expected, folder)
            named += was_named
            seconds.setdefault(cell[1], []).append(took_s)
            name = "{1} rank {2} of {0} at {3}".format(*cell)
            print(f"{number + 1:3d}/{len(cells)} {name}: {'; '.join(faults) or 'ok'}, {took_s:.2f} s", flush=True)
            if faults:
                failed.append({"cell": name, "faults": faults})
    left = sorted(shared_memory() - memory)
    return {"drill": "hang", "cells": len(cells), "passed": len(cells) - len(failed), "named": named,
            "deadline_s": DEADLINE_S, "fault_to_end_s": {name: percentiles(all_s) for name, all_s in seconds.items()},
            "shared_memory_left": left, "failed": failed, "seconds": round(time.monotonic() - begun, 1)}


def busy_loops(count):
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


def notice(programs, trials, load):
    """From a signal to the launcher's line about it, and to the launcher's end, with `load` busy loops beside it."""
    found = {"kill_noticed_s": [], "kill_all_ended_s": [], "stop_noticed_s": [], "stop_noticed_by_peer_s": []}
    wrong = 0
    chance = random.Random(1)
    loops = []
    heartbeat_s = 1.0
    try:
        with scratch() as folder:
            for trial in range(trials):
                victim = trial % 2
                settings = dict(variables(), TANDEM_HEARTBEAT_S=str(heartbeat_s), TANDEM_COLLECTIVE_TIMEOUT_S="60",
                                TANDEM_RENDEZVOUS_TIMEOUT_S="60")
                output = Path(folder) / str(trial)
                run = Run(programs, 2, demo_flags(output, 1000000), settings)
                while len(losses(output)) < 3 and run.process.poll() is None:
                    time.sleep(0.05)
                loops = busy_loops(load)
                time.sleep(0.3 + chance.random())
                at = run.send(victim, signal.SIGSTOP)
                said = run.wait_line(f"launch: rank {victim} is stopped", 20)
                by_peer = run.wait_line(f"[collectives] rank {victim} is stopped", 20)
                run.send(victim, signal.SIGCONT)
                time.sleep(0.3 + chance.random())
                killed = run.send(victim, signal.SIGKILL)
                noticed = run.wait_line(f"launch: rank {victim} was killed", 20)
                code = run.finish(60)
                ended = time.monotonic()
                for loop in loops:
                    loop.kill()
                    loop.wait()
                loops = []
                if None in (said, by_peer, noticed) or code != 128 + signal.SIGKILL:
                    wrong += 1
                    print(run.text(), flush=True)
                    continue
                found["stop_noticed_s"].append(said - at)
                found["stop_noticed_by_peer_s"].append(by_peer - at)
                found["kill_noticed_s"].append(noticed - killed)
                found["kill_all_ended_s"].append(ended - killed)
    finally:
        for loop in loops:
            loop.kill()
    return {"drill": "notice", "trials": trials, "load": load, "heartbeat_s": heartbeat_s, "wrong": wrong,
            **{name: percentiles(values) for name, values in found.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="cells whose text contains this, as 'stop rank 1 of 2 at save'")
    parser.add_argument("--notice", action="store_true")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--load", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.notice:
        summary = notice(arguments.bin, arguments.trials, arguments.load)
        good = (summary["wrong"] == 0 and summary["kill_noticed_s"]["max"] <= 2 and
                summary["stop_noticed_by_peer_s"]["max"] <= 3 * summary["heartbeat_s"])
    else:
        cells = QUICK if arguments.quick else all_cells()
        if arguments.only:
            cells = [cell for cell in cells if arguments.only in "{1} rank {2} of {0} at {3}".format(*cell)]
        summary = matrix(arguments.bin, cells)
        good = summary["passed"] == summary["cells"] and not summary["shared_memory_left"]
    print(json.dumps(summary), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
