#!/usr/bin/env python3
"""Checkpoints of hosts with disks of their own: namespaces with a network, a name and a tmpfs each, all at one path.

In each cell a run over hosts is killed on all of them at a random moment, and goes on from the slices that lie on their
disks; then a host loses its newest slices, and an older step is taken; then the slices are gathered into one checkpoint,
and a run of one host goes on from it. Losses, gradient norms and saved weights must be those of a run that nothing
disturbs, to the last byte, and a run that could go on must not have begun anew. A host whose slices are all gone, and
one whose disk has no room, are named.

    tests/drills/disks.py            2 and 4 hosts x 1 and 2 ranks, stages 0-3, fp32 and bf16, 12 cells; some four minutes
    tests/drills/disks.py --quick    2 cells

As root, with `ip`, `unshare` and `mount`; where namespaces are not allowed it says so and ends with exit code 77. The
last line of the output is the summary, one JSON object; exit code 1 where something is wrong.
"""

import argparse
import contextlib
import itertools
import json
import random
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from drill import ROOT, Hosts, default_bin, digits, losses, scratch
from hosts import MODEL, Cell, finish, flags, start

STEPS = 9
SAVE_EVERY = 2
LIMIT_S = 120
QUICK = [Cell(2, 1, 3, "full", "fp32"), Cell(2, 2, 0, "off", "bf16", "Open MPI")]


def all_cells():
    types = itertools.cycle((("fp32", "torchrun"), ("bf16", "Slurm"), ("bf16", "Open MPI"), ("fp32", "Slurm"), ("bf16", "torchrun")))
    return [Cell(hosts, per_host, stage, "full", *next(types))
            for hosts, per_host in ((2, 1), (2, 2), (4, 1)) for stage in range(4)]


class Disks:
    """A tmpfs for each host; ranks see their host's at `place`."""

    def __init__(self, folder, count):
        self.place = folder / "disk"
        self.place.mkdir()
        self.folders = [folder / f"disk-{at}" for at in range(count)]
        for disk in self.folders:
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", disk], check=True)

    def clear(self):
        for disk in self.folders:
            for entry in disk.iterdir():
                shutil.rmtree(entry)

    def slices(self, host):
        return sorted(self.folders[host].glob("run/checkpoints/step-????????"))

    def sealed(self, hosts):
        """The saves that the disks of that many hosts have sealed, all of them."""
        saves = [{json.loads(file.read_text())["slices"]["save"] for file in disk.glob("run/checkpoints/step-*/manifest.json")
                  if ".tmp-old-" not in file.parent.name} for disk in self.folders[:hosts]]
        return set.intersection(*saves)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for disk in self.folders:
            subprocess.run(["umount", disk], check=False)


class Drill:
    def __init__(self, programs, hosts, disks, folder):
        self.programs, self.hosts, self.disks, self.folder = programs, hosts, disks, folder
        self.model = folder / "model"
        self.references = {}
        self.went_on = 0
        subprocess.run([programs / "make_model", "--config", ROOT / "examples/demo/config.json", "--tokenizer",
                        ROOT / "examples/demo", "--seed", "1", "--output", self.model, *MODEL.split()], check=True,
                       stdout=subprocess.DEVNULL)

    def start(self, cell, output, more=()):
        """The ranks' processes; those of several hosts see their own disks."""
        program, *arguments = flags(cell, output, self.model, STEPS)
        return start(cell, [self.programs / program, *arguments, *more],
                     lambda host, command: self.hosts.command(host, command, self.disks.folders[host], self.disks.place))

    def train(self, cell, output, more=()):
        codes, said = finish(self.start(cell, output, more))
        if any(codes):
            raise RuntimeError(f"exit codes {codes}: {' '.join(said).strip()[-600:]}")

    def reference(self, cell):
        key = (cell.world, cell.dtype)
        if key not in self.references:
            output = self.folder / "-".join(map(str, key))
            self.train(Cell(1, cell.world, 3, "full", cell.dtype), output)
            self.references[key] = digits(output)
            assert len(set(self.references[key][0])) == STEPS, "it moves"
        return self.references[key]

    def saving(self, more=()):
        return ["--save_every", SAVE_EVERY, "--resume", "auto", *more]

    def goes_on(self, cell):
        """Trains to the end with --resume auto. A run that begins anew moves the metrics before it to earlier-N/."""
        run = self.disks.folders[0] / "run"
        could, begun = bool(self.disks.sealed(cell.hosts)), len(list(run.glob("earlier-*")))
        self.train(cell, self.disks.place / "run", self.saving())
        went_on = len(list(run.glob("earlier-*"))) == begun
        self.went_on += went_on
        if could and not went_on:
            yield "it began anew, and all disks have a save"

    def killed(self, cell, chance):
        """Trains until a random moment, and kills all ranks."""
        step, delay = chance.randrange(SAVE_EVERY + 1, STEPS - 1), chance.uniform(0, 0.05)
        ranks = self.start(cell, self.disks.place / "run", self.saving())
        end = time.monotonic() + LIMIT_S
        while (len(losses(self.disks.folders[0] / "run")) < step and time.monotonic() < end
               and all(process.poll() is None for process in ranks)):
            time.sleep(0.002)
        time.sleep(delay)
        for process in ranks:
            process.kill()
        finish(ranks)
        return step

    def faults(self, cell, chance):
        wanted = self.reference(cell)
        run = self.disks.folders[0] / "run"
        self.disks.clear()
        step = self.killed(cell, chance)
        yield from self.goes_on(cell)
        if digits(run) != wanted:
            yield f"killed after step {step}, it went on to {digits(run)}, not {wanted}"
        # Killed behind its last save, a run leaves what that one was to remove: no later one comes.
        if self.disks.slices(0)[-1].name != f"step-{STEPS:08}" or len(self.disks.slices(cell.hosts - 1)) not in (2, 3):
            yield f"the disks have {self.disks.slices(0)} and {self.disks.slices(cell.hosts - 1)}"
        # Gathered, one host goes on from it.
        gathered = self.folder / f"gathered-{secrets.token_hex(4)}"
        sources = [disk / "run" for disk in self.disks.folders[:cell.hosts]]
        for command in (["gather", *sources, "--output", gathered], ["verify", gathered], ["show", sources[-1]]):
            subprocess.run([self.programs / "tandem", "checkpoint", *command], check=True, stdout=subprocess.DEVNULL)
        # The last host loses its newest slices: those before are taken, and its ranks' share is sent to them.
        shutil.rmtree(self.disks.slices(cell.hosts - 1)[-1])
        yield from self.goes_on(cell)
        if digits(run) != wanted:
            yield f"without the last host's newest slices it came to {digits(run)}, not {wanted}"
        alone = gathered.with_name(gathered.name + "-alone")
        self.train(Cell(1, 1, 3, "full", cell.dtype), alone,
                   ["--resume", gathered, "--gradient_accumulation_steps", cell.world])
        if digits(alone)[1] != wanted[1]:
            yield "gathered, one rank has other weights"
        yield from self.refusals(cell)

    def refusals(self, cell):
        lost = self.hosts.name(cell.hosts - 1)
        if cell.stage > 0:
            for folder in self.disks.slices(cell.hosts - 1):
                shutil.rmtree(folder)
            codes, said = finish(self.start(cell, self.disks.place / "run", self.saving()))
            # All know it; one that is told that another has ended before it comes to that is a witness (4).
            named = [f"the slices of host {lost} are missing" in text for code, text in zip(codes, said) if code == 2]
            if not set(codes) <= {2, 4} or not named or not all(named):
                yield f"without {lost}'s slices: exit codes {codes}: {said}"
        room = self.disks.folders[cell.hosts - 1]
        self.disks.clear()
        subprocess.run(["fallocate", "-l", str(shutil.disk_usage(room).free - (64 << 10)), room / "full"], check=True)
        codes, said = finish(self.start(cell, self.disks.place / "run", self.saving()))
        (room / "full").unlink()
        if set(codes) != {3} or f"on host {lost}" not in said[0]:
            yield f"without room on {lost}: exit codes {codes}: {said}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=default_bin(), help="the folder of the programs")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="cells whose text contains this, as 'stage 3'")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    cells = [cell for cell in (QUICK if arguments.quick else all_cells())
             if not arguments.only or arguments.only in cell.text()]
    begun = time.monotonic()
    chance = random.Random(arguments.seed)
    failed = []
    count = max(cell.hosts for cell in cells)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        hosts = stack.enter_context(Hosts(count))
        if hosts.problem:
            print(f"skipped: no namespaces as hosts: {hosts.problem}")
            return 77
        try:
            disks = stack.enter_context(Disks(folder, count))
        except subprocess.CalledProcessError as error:
            print(f"skipped: {error}")
            return 77
        drill = Drill(arguments.bin.resolve(), hosts, disks, folder)
        for number, cell in enumerate(cells):
            cell_begun = time.monotonic()
            try:
                faults = list(drill.faults(cell, chance))
            except (RuntimeError, subprocess.CalledProcessError) as error:
                faults = [str(error)]
            print(f"{number + 1:3d}/{len(cells)} {cell.text()}: {'; '.join(faults) or 'equal'}, "
                  f"{time.monotonic() - cell_begun:.1f} s", flush=True)
            failed += [{"cell": cell.text(), "fault": fault} for fault in faults[:1]]
    print(json.dumps({"drill": "disks", "cells": len(cells), "equal": len(cells) - len(failed), "went_on": drill.went_on,
                      "failed": failed, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
