#!/usr/bin/env python3
"""Runs the campaigns of tools/trust_campaigns.py and writes their figures into docs/trust.md.

    ./tandem trust [--quick] [--only NAME,...] [--list] [--render]

Each campaign is one command; its figure is read out of what that prints, and it holds where the command ends with 0.
The page is made of docs/trust.json, where a campaign keeps its last figure with command, commit and date: a figure of
--quick never replaces one of the whole campaign. Exit 1 if a campaign does not hold.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from trust_campaigns import CAMPAIGNS, SKIPPED, Campaign, FallsShort, NoFigure

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs/trust.json"
PAGE = ROOT / "docs/trust.md"

HEAD = """\
# Trust, in figures

Each figure was printed by the command beside it; `./tandem trust` runs them all and writes this
page, `./tandem trust --quick` runs shorter ones, most of which belong to `./tandem test`, too.
Commands run in the root of the tree with `BIN=build/release/bin`. Figures that need a GPU, or that
no run has printed yet, say so.

"""


@dataclasses.dataclass
class Result:
    """A campaign's last run."""

    figure: str
    holds: bool
    whole: bool  # not --quick
    command: str
    seconds: int
    commit: str
    date: str
    machine: str


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False).stdout.strip()


def machine():
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} CPUs, {model.group(1) if model else platform.machine()}"


def commit():
    """A copy of the tree may have come without its history."""
    try:
        head = output_of("git", "rev-parse", "--short", "HEAD")
        changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", ":!docs/trust.*")
    except OSError:
        head = ""
    return head + (" and changes" if changed else "") if head else "unknown"


def to_stderr(text):
    print(text, file=sys.stderr)


def run(campaign: Campaign, whole: bool, tell=to_stderr) -> Result | None:
    """None: what the command needs is not here, and it has said so. `tell` gets the end of what one printed that does not
    hold."""
    command = campaign.command if whole else campaign.quick
    environment = os.environ | {"BIN": "build/release/bin", "PYTHON": sys.executable}
    begin = time.monotonic()
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, text=True, errors="replace", env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode == SKIPPED:
        print(f"{campaign.name}: left out: {done.stdout.strip()}", flush=True)
        return None
    holds = done.returncode == 0
    try:
        figure = campaign.figure(done.stdout)
    except FallsShort as short:
        holds = False
        figure = str(short)
    except NoFigure as missing:
        holds = False
        figure = f"no figure ({missing}; exit {done.returncode})"
    if not holds:
        tell("\n".join(done.stdout.splitlines()[-20:]))
    return Result(figure, holds, whole, command, round(time.monotonic() - begin), commit(),
                  datetime.date.today().isoformat(), machine())


def read_record():
    if not RECORD.exists():
        return {}
    return {name: Result(**fields) for name, fields in json.loads(RECORD.read_text(encoding="utf-8")).items()}


def write_record(record):
    fields = {name: dataclasses.asdict(record[name]) for name in sorted(record)}
    RECORD.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def cell(text):
    return text.replace("|", "\\|")


def page(record):
    rows = ["| what is tried | bar | figure | command |", "|---|---|---|---|"]
    runs = set()
    for campaign in CAMPAIGNS:
        result = record.get(campaign.name)
        if result is None:
            figure, command = campaign.absent or "not run yet", campaign.command
        else:
            figure, command = result.figure, result.command
            figure += "" if result.holds else " (**does not hold**)"
            figure += "" if result.whole or campaign.quick == campaign.command else " (quick)"
            runs.add(f"{result.date}, commit {result.commit}, {result.machine}")
        rows.append(f"| {cell(campaign.what)} | {cell(campaign.bar)} | {cell(figure)} | `{cell(command)}` |")
    return HEAD + "\n".join(rows) + "\n\nRuns:\n\n" + "".join(f"- {run}\n" for run in sorted(runs))


def parsed(argv):
    parser = argparse.ArgumentParser(prog="./tandem trust", description="Runs the campaigns and writes docs/trust.md.")
    parser.add_argument("--quick", action="store_true", help="shorter campaigns: minutes")
    parser.add_argument("--only", metavar="NAME,...", help="these campaigns alone")
    parser.add_argument("--list", action="store_true", help="names and commands, and run nothing")
    parser.add_argument("--render", action="store_true", help="the page from docs/trust.json, and run nothing")
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is not that of docs/trust.json")
    flags = parser.parse_args(argv)
    known = [campaign.name for campaign in CAMPAIGNS]
    for name in flags.only.split(",") if flags.only else []:
        if name not in known:
            parser.error(f"[trust] unknown campaign {name}; the campaigns are {', '.join(known)}")
    return flags


def main(argv):
    flags = parsed(argv)
    record = read_record()
    if flags.check:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page(record)
        if not same:
            print("docs/trust.md is not what docs/trust.json says; ./tandem trust --render writes it")
        return 0 if same else 1
    chosen = [c for c in CAMPAIGNS if not flags.only or c.name in flags.only.split(",")]
    failed = []
    for campaign in [] if flags.render else chosen:
        command = campaign.quick if flags.quick else campaign.command
        if flags.list:
            print(f"{campaign.name}: {command or campaign.absent}")
            continue
        if not command or campaign.absent:
            continue
        result = run(campaign, not flags.quick)
        if result is None:
            continue
        verdict = "" if result.holds else " DOES NOT HOLD"
        print(f"{campaign.name}: {result.figure}{verdict} ({result.seconds} s)", flush=True)
        if not result.holds:
            failed.append(campaign.name)
        record = read_record()  # another process may have written it meanwhile
        older = record.get(campaign.name)
        if result.whole or older is None or not older.whole:
            record[campaign.name] = result
            write_record(record)
    if not flags.list:
        PAGE.write_text(page(record), encoding="utf-8")
    if failed:
        print(f"trust: {', '.join(failed)} of {len(chosen)} campaigns do not hold", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
