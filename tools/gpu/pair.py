#!/usr/bin/env python3
"""Runs commands in turns (A B A B ...) on one machine and prints medians and ratios as a markdown table.

    pair.py --rounds 3 --side 'tandem=bench_step ... --benchmark_format=json' --side 'eager=python3 torch_peer.py ...'

A side prints a peer's JSON line or Google Benchmark's JSON; several benchmarks in one report are several rows. Memory is measured
from outside, in the same way for every side. A side that fails or hangs becomes a line below the table and is not started
again; the other sides go on. Invariant: a command that once took longer than the budget that is left is not started.
--order 1,2,3,1 says which side follows which, instead of --rounds; the n-th run of a side belongs to round n.
Exit code 0 where each side gave a figure, 1 where one did not, 2 for wrong flags.
"""

import argparse
import dataclasses
import json
import shlex
import signal
import sys
import time
from pathlib import Path

import processes
from figures import figures, table


class Stopped(Exception):
    """SIGTERM asks for the table of the runs so far."""


def on_sigterm(*_):
    raise Stopped


@dataclasses.dataclass
class Comparison:
    """The rows so far and what fell short."""

    args: argparse.Namespace
    begin: float = dataclasses.field(default_factory=time.monotonic)
    rows: dict = dataclasses.field(default_factory=dict)  # row -> {round: figures}
    took: dict = dataclasses.field(default_factory=dict)  # side -> the most seconds
    fell: set = dataclasses.field(default_factory=set)
    notes: list = dataclasses.field(default_factory=list)

    def left(self):
        return self.args.budget - (time.monotonic() - self.begin)

    def turn(self, at, name, command):
        """One run of a side, where time is left for it."""
        if name in self.fell:
            return
        left = max(0.0, self.left())
        if left < max(self.args.least, self.took.get(name, 0)):
            self.notes.append(f"{name}, round {at + 1}: not run, {left:.0f} s left")
            return
        memory = processes.MemoryWatch()
        try:
            ended = processes.run(shlex.split(command), min(self.args.limit, left))
        finally:
            used = memory.stop()
        self.took[name] = max(self.took.get(name, 0), ended.seconds)
        found, errors = figures(ended.out, command)
        for suffix, figure in found:
            self.rows.setdefault(f"{name} {suffix}".strip(), {})[at] = figure | used
        if ended.code != 0 or errors or not found:
            self.fell.add(name)
            self.notes.append(f"{name}, round {at + 1}: {'; '.join(errors) or ended.why()}")
        shown = ", ".join(f"{figure['tokens_per_s']:,.0f} tokens/s" for _, figure in found) or f"no figure: {self.notes[-1]}"
        print(f"round {at + 1}: {name}: {shown} ({ended.seconds:.0f} s)", flush=True)
        self.keep({"side": name, "round": at + 1, "command": command, "code": ended.code, "seconds": round(ended.seconds, 1),
                   "figures": found, "errors": errors, "stderr_end": ended.err[-600:], **used})

    def keep(self, run):
        if self.args.raw:
            with self.args.raw.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"title": self.args.title, **run}) + "\n")

    def page(self):
        title = [f"### {self.args.title}"] if self.args.title else []
        commands = [f"- `{name}`: `{command}`" for name, command in self.args.side]
        return "\n".join([*title, *commands, "", *table(self.rows), *(f"- fell short: {note}" for note in self.notes)])

    def has_figure(self, name):
        return any(row == name or row.startswith(f"{name} ") for row in self.rows)


def side_of(text):
    name, _, command = text.partition("=")
    if not name or not command.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=COMMAND")
    return name, command


def turns_of(args):
    """[(round, (name, command))] in the order of their runs; ValueError where --order names no side."""
    count = len(args.side)
    order = [int(text) for text in args.order.split(",")] if args.order else [*range(1, count + 1)] * args.rounds
    if not all(1 <= which <= count for which in order):
        raise ValueError
    return [(order[:at].count(which), args.side[which - 1]) for at, which in enumerate(order)]


def parsed(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=side_of, action="append", required=True, metavar="NAME=COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--order", metavar="N,N,...", help="sides by number, instead of --rounds")
    parser.add_argument("--budget", type=float, default=540, metavar="S", help="for all runs together")
    parser.add_argument("--limit", type=float, default=300, metavar="S", help="for one command")
    parser.add_argument("--least", type=float, default=30, metavar="S", help="left in the budget for a command to begin")
    parser.add_argument("--title", help="heading of the table")
    parser.add_argument("--out", type=Path, help="append the table to this file")
    parser.add_argument("--raw", type=Path, help="append each run as a JSON line to this file")
    args = parser.parse_args(argv)
    if len(dict(args.side)) < len(args.side):
        parser.error("two sides have one name")
    try:
        return args, turns_of(args)
    except ValueError:
        parser.error(f"--order {args.order}: numbers from 1 to {len(args.side)} with commas")


def main(argv):
    args, turns = parsed(argv)
    comparison = Comparison(args)
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        for at, (name, command) in turns:
            comparison.turn(at, name, command)
    except Stopped:
        comparison.notes.append("ended from outside")
    page = comparison.page()
    print(page, flush=True)
    if args.out:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(page + "\n\n")
    return 0 if all(comparison.has_figure(name) for name, _ in args.side) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
