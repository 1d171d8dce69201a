#!/usr/bin/env python3
"""The hang drill over hosts: ranks that die, stop, hang or are slow, and links that stall, in every phase of a run.

Hosts are network namespaces of this machine (as root); `tandem launch --hosts` starts the ranks there by the tests'
stand-in for ssh. In a cell one rank does something to itself at a known operation (TANDEM_FAULT, runtime/flight.hpp), or
its host's link stalls then. The run must end within the deadline and 5 s with the documented exit code, the launcher must
name the rank and its host, and no process may be left. A run that is to go on must end with the losses and the weights of
an undisturbed one.

    tests/drills/hang_hosts.py           60 cells, some ten minutes
    tests/drills/hang_hosts.py --quick   6 cells, whose time does not count

Where namespaces are not allowed it says so and ends with exit code 77. The last line of the output is the summary, one
JSON object; exit code 1 when a cell failed.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from drill import Hosts, Run, default_bin, demo_flags, losses, percentiles, scratch, weight_hashes

DEADLINE_S = 2.0
ENDS_AFTER_S = 5.0  # the deadline, at most
RENDEZVOUS_S = 15.0  # where a rank does not come; a busy machine takes its time to start otherwise
HEARTBEAT_S = 0.25
GRACE_S = 0.5  # for ranks that hang, between SIGTERM and SIGKILL
STEPS = 4
START_S = 90.0

PHASES = {
    "loading": "load:1",
    "evaluation": "all-gather:2",
    "forward": "all-gather:13",
    "backward": "all-gather:17",
    "reduce": "reduce-scatter:9",
    "step": "updates:2",
    "save": "save:1",
}
# The rank's action on itself, and the launcher's exit code.
ACTIONS = {
    "kill": ("kill", 128 + signal.SIGKILL),
    "terminate": ("term", 128 + signal.SIGTERM),
    "stop": ("stop", 4),
    "hang": ("sleep60", 4),
    "slow": ("sleep1.2", 0),
    "continue": ("stop", 0),
    # These befall the rank's host:
    "stalled link": ("sleep0.3", 4),
    "short stall": ("sleep0.3", 0),
    "dead host": ("sleep0.3", 4),
}


class Cell(NamedTuple):
    hosts: int
    per_host: int
    action: str
    rank: int
    phase: str

    @property
    def host(self):
        return self.rank // self.per_host

    def text(self):
        return f"{self.action}, rank {self.rank} of {self.hosts} x {self.per_host}, {self.phase}"


QUICK = [Cell(2, 2, "kill", 3, "reduce"), Cell(2, 2, "stop", 2, "forward"), Cell(4, 1, "hang", 1, "backward"),
         Cell(4, 1, "slow", 2, "step"), Cell(2, 2, "stalled link", 2, "forward"), Cell(2, 2, "stop", 3, "loading")]


def all_cells():
    cells = []
    for at, phase in enumerate(PHASES):
        for number, action in enumerate(("kill", "terminate", "stop", "hang", "slow", "continue")):
            hosts, per_host = ((2, 2), (4, 1))[(at + number) % 2]
            cells.append(Cell(hosts, per_host, action, (at + number) % 4, phase))
    cells += [Cell(hosts, per_host, action, rank, phase)
              for action, phases in (("stalled link", ("evaluation", "forward", "backward", "reduce")),
                                     ("short stall", ("forward", "reduce")), ("dead host", ("forward", "reduce", "step")))
              for rank, phase in zip((2, 3, 1, 2), phases) for hosts, per_host in ((2, 2), (4, 1))]
    return cells


def variables(fault=None, rendezvous_s=90.0, folder=""):
    found = {"TANDEM_COLLECTIVE_TIMEOUT_S": str(DEADLINE_S), "TANDEM_RENDEZVOUS_TIMEOUT_S": str(rendezvous_s),
             "TANDEM_HEARTBEAT_S": str(HEARTBEAT_S), "PATH": f"{folder}:{os.environ['PATH']}",
             "FAKE_SSH_CUT": f"{folder}/cut", "OMP_NUM_THREADS": "1"}
    if fault:
        found["TANDEM_FAULT"] = fault
    return found


def flags(output):
    return demo_flags(output, STEPS, ("--stage", 3, "--overlap", "comm", "--save_every", STEPS, "--eval_split", 0.05, "--eval_at_start",
                                      "--eval_batches", 1, "--compute_threads", 1, "--optimizer_threads", 1))


def result_of(output):
    return losses(output), weight_hashes(output)


class Scene:
    """Programs and the hosts that a run of a cell is on."""

    def __init__(self, programs, hosts, folder):
        self.programs, self.hosts, self.folder = programs, hosts, Path(folder)
        (self.folder / "ssh").symlink_to(programs / "fake_ssh")

    def name(self, cell, host):
        """As fake_ssh knows them: the connection to a dead host ends."""
        dies = cell.action == "dead host" and host == cell.host
        return f"{'cut-' if dies else ''}apart-{self.hosts.spaces[host]}"

    def start(self, cell, output, settings):
        (self.folder / "cut").unlink(missing_ok=True)
        where = ",".join(f"{self.name(cell, host)}:{cell.per_host}" for host in range(cell.hosts))
        return Run(self.programs, ["--hosts", where], flags(output), settings, grace_s=GRACE_S)

    def happen(self, run, cell):
        """Acts on the run from outside, once its rank has come to the operation."""
        if cell.action == "continue":
            time.sleep(DEADLINE_S / 2)
            run.send(cell.rank, signal.SIGCONT)
        if cell.action in ("stalled link", "short stall", "dead host"):
            self.hosts.stall(cell.host)
        if cell.action == "short stall":
            time.sleep(DEADLINE_S / 2)
            self.hosts.restore(cell.host)
        if cell.action == "dead host":
            (self.folder / "cut").touch()
            time.sleep(0.1)  # the connection goes first, and tells nothing of the ranks
            for rank in range(cell.host * cell.per_host, (cell.host + 1) * cell.per_host):
                run.send(rank, signal.SIGKILL)


def naming_faults(cell, host, text):
    """Whether the launcher's last word names the rank and its host."""
    said = [line for line in text.splitlines() if line.startswith("error: [launch] ")]
    if len(said) != 1:
        return [f"the launcher said {len(said)} times what failed"]
    world = cell.hosts * cell.per_host
    rank_there = re.escape(f"rank {cell.rank} of {world} (host {host})")
    of_host = rf"rank \d+ of {world} \(host {re.escape(host)}\)"
    wanted = {
        "kill": re.escape(f"host {host}: rank {cell.rank} of {world} was killed by signal 9"),
        "terminate": re.escape(f"host {host}: rank {cell.rank} of {world} ") + "(exited with code 143|was killed by signal 15)",
        "stop": f"{rank_there} is stopped",
        "hang": f"{rank_there} held the others up",
        # Either one of two hosts may be the one that is cut off.
        "stalled link": f"{of_host} (held the others up|and rank .* blame each other)|rank .* and {of_host} blame each other",
        "dead host": re.escape(f"the connection to host {host} ended"),
    }[cell.action]
    return [] if re.search(wanted, said[0]) else [f"the launcher said: {said[0]}"]


def play(scene, cell, wanted, timed):
    """(faults of the cell, seconds from the fault to the end)"""
    plant, code = ACTIONS[cell.action]
    output = scene.folder / re.sub(r"\W+", "-", cell.text())
    never_comes = cell.phase == "loading" and code == 4
    wait_s = RENDEZVOUS_S if never_comes else DEADLINE_S
    run = scene.start(cell, output, variables(f"{cell.rank}:{plant}:{PHASES[cell.phase]}",
                                              RENDEZVOUS_S if never_comes else 90.0, scene.folder))
    faults = []
    began = run.wait_line("[fault]", START_S)
    if began is None:
        faults.append("the fault did not happen")
        began = time.monotonic()
    else:
        scene.happen(run, cell)
    limit_s = wait_s + ENDS_AFTER_S
    ended = run.finish(60 + limit_s)
    took_s = time.monotonic() - began
    if ended is None:
        faults.append("it did not end")
    elif ended != code:
        faults.append(f"exit code {ended} instead of {code}")
    if timed and code != 0 and took_s > limit_s:
        faults.append(f"it ended after {took_s:.2f} s, the limit is {limit_s} s")
    if code != 0:
        faults += naming_faults(cell, scene.name(cell, cell.host), run.text())
    elif result_of(output) != wanted:
        faults.append("other losses or weights than an undisturbed run")
    end = time.monotonic() + 2
    while run.left() and time.monotonic() < end:  # a process that was killed takes a moment to be gone
        time.sleep(0.05)
    if left := run.left():
        faults.append(f"processes left: {left}")
        run.end()
    scene.hosts.restore(cell.host)
    if faults:
        print(run.text(), flush=True)
    return faults, took_s


def matrix(scene, cells, timed):
    begun = time.monotonic()
    failed = []
    seconds = {}
    undisturbed = Cell(2, 2, "none", 0, "none")
    run = scene.start(undisturbed, scene.folder / "undisturbed", variables(folder=scene.folder))
    code = run.finish(180)
    wanted = result_of(scene.folder / "undisturbed")
    if code != 0 or len(wanted[0]) != STEPS or not wanted[1]:
        sys.exit(f"an undisturbed run ended with {code}\n{run.text()}")
    for number, cell in enumerate(cells):
        faults, took_s = play(scene, cell, wanted, timed)
        seconds.setdefault(cell.action, []).append(took_s)
        print(f"{number + 1:3d}/{len(cells)} {cell.text()}: {'; '.join(faults) or 'ok'}, {took_s:.2f} s", flush=True)
        if faults:
            failed.append({"cell": cell.text(), "faults": faults})
    return {"drill": "hang_hosts", "cells": len(cells), "passed": len(cells) - len(failed), "timed": timed,
            "deadline_s": DEADLINE_S, "fault_to_end_s": {name: percentiles(all_s) for name, all_s in seconds.items()},
            "failed": failed, "seconds": round(time.monotonic() - begun, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="cells whose text contains this, as 'stop, rank 1 of 2 x 2, save'")
    arguments = parser.parse_args()
    cells = [cell for cell in (QUICK if arguments.quick else all_cells())
             if not arguments.only or arguments.only in cell.text()]
    with Hosts(4) as hosts, scratch() as folder:
        if hosts.problem:
            print(f"skipped: no namespaces as hosts: {hosts.problem}")
            return 77
        summary = matrix(Scene(arguments.bin.resolve(), hosts, folder), cells, timed=not arguments.quick)
    print(json.dumps(summary), flush=True)
    return 0 if summary["passed"] == summary["cells"] else 1


if __name__ == "__main__":
    sys.exit(main())
