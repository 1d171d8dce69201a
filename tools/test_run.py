#!/usr/bin/env python3
"""Runs ctest so that its output can be read, and says at the end what came of it. Called by ./tandem test.

  test_run.py run --preset P --build DIR --state DIR [--beside-others] -- ctest flags...
      runs the tests of a build in a temporary folder of their own: one line with the counts; a failed test's own
      output in full, and then those tests once more, alone; progress on a terminal. Exit code: ctest's, or 1 where
      something outside of the build has changed.
  test_run.py step --state DIR --seconds S NAME
      notes the time of another step.
  test_run.py table --state DIR
      prints the closing table of all runs and steps, then ctest's own closing lines.

DIR/log/P.txt has the whole output. A run is noted as DIR/P.json, which `table` reads."""
import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

import outside

TREE = Path(__file__).resolve().parent.parent
RESULT = re.compile(r"^\s*(\d+)/(\d+) Test\s+#\d+: (\S+)")
START = re.compile(r"^\s*Start\s+\d+: ")
CLOSING = re.compile(r"^\d+% tests passed")
SKIPPED = re.compile(r"\[\s+SKIPPED \] (\S+)")
PASSED = re.compile(r"(\sPassed|\*\*\*Skipped)\s+[\d.]+ sec\s*$")


class Reader:
    """Takes ctest's lines: shows what failed, keeps the closing lines."""

    def __init__(self, preset, log):
        self.preset = preset
        self.log = log
        self.closing = []
        self.shows = False  # the lines are a failed test's
        self.on_terminal = sys.stderr.isatty()

    def take(self, line):
        self.log.write(line)
        if CLOSING.match(line) or self.closing:
            self.end_progress()
            self.closing.append(line.rstrip("\n"))
            return
        result = RESULT.match(line)
        if result or START.match(line):
            self.shows = bool(result) and not PASSED.search(line)
            if result and self.on_terminal:
                sys.stderr.write(f"\r\x1b[Ktest: {self.preset} {result[1]} of {result[2]}")
                sys.stderr.flush()
        if self.shows:
            self.end_progress()
            sys.stderr.write(line)

    def end_progress(self):
        if self.on_terminal:
            sys.stderr.write("\r\x1b[K")


def reason_of(text):
    """The line behind a GoogleTest skip, or the first line of a script that skips."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if line.endswith(": Skipped") and i + 1 < len(lines):
            return lines[i + 1]
    plain = [line for line in lines if not line.startswith(("[", "Note: Google Test", "Running main"))]
    return plain[-1] if plain else "no reason given"


def skips_of(text):
    """[(test, reason)] of the skips within one process of GoogleTest."""
    found = []
    reason = ""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.strip().endswith(": Skipped"):
            reason = lines[i + 1].strip() if i + 1 < len(lines) else ""
        match = SKIPPED.match(line.strip())
        if match and " (" in line:  # the line of its end; the list of names at the bottom has no time
            found.append((match[1], reason or "no reason given"))
            reason = ""
    return found


def results_of(report):
    """Counts, skips with reasons and times out of ctest's JUnit file."""
    counts = collections.Counter()
    skips, times = [], []
    for case in xml.parse(report).getroot().iter("testcase"):
        name, status = case.get("name"), case.get("status")
        text = case.findtext("system-out") or ""
        times.append((float(case.get("time") or 0), name))
        if case.find("skipped") is not None or status in ("notrun", "disabled"):
            counts["skipped"] += 1
            skips.append((name, reason_of(text)))
        elif status == "fail" or case.find("failure") is not None:
            counts["failed"] += 1
        else:
            counts["passed"] += 1
            skips += [(one, why) for one, why in skips_of(text)]
    return counts, skips, sorted(times, reverse=True)[:10]


def ctest(arguments, build, folder, log, preset, report):
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-label-summary",
               "--test-output-size-passed", "200000", "--test-output-size-failed", "2000000",
               "--output-junit", str(report), *arguments]
    reader = Reader(preset, log)
    with subprocess.Popen(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env=os.environ | {"TMPDIR": str(folder)}) as process:
        for line in process.stdout:
            reader.take(line)
    reader.end_progress()
    return process.returncode, reader.closing


def left_outside(before, folder, build, beside_others):
    """Returns lines for the files that the tests changed where they must not, or left in their temporary folder."""
    lines = outside.changes(before, outside.listing(TREE, [build, folder]))
    mine = [line for line in lines if not beside_others or outside.is_ours(line, TREE)]
    if len(mine) < len(lines):
        print(f"test: {len(lines) - len(mine)} files outside of the tree changed meanwhile, by their names by other programs",
              file=sys.stderr)
    return mine + [f"left     {entry}" for entry in sorted(folder.iterdir())]


def run(arguments):
    state, build = Path(arguments.state).resolve(), Path(arguments.build).resolve()
    (state / "log").mkdir(parents=True, exist_ok=True)
    log_path = state / "log" / f"{arguments.preset}.txt"
    report = state / "log" / f"{arguments.preset}.xml"
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))
    folder.chmod(0o755)
    before = outside.listing(TREE, [build, folder])
    began = time.monotonic()
    try:
        with open(log_path, "w", buffering=1) as log:
            code, closing = ctest(arguments.flags, build, folder, log, arguments.preset, report)
            if not report.exists():  # no test matched, or a wrong flag
                print("\n".join(closing) or log_path.read_text().strip(), file=sys.stderr)
                return code
            counts, skips, slowest = results_of(report)
            if code == 8:  # whether they fail alone, too, is worth knowing; it stays a failure
                print(f"test: {arguments.preset}: those that failed, once more", file=sys.stderr)
                again = [flag for flag in arguments.flags if not flag.startswith("--parallel")]
                _, alone = ctest([*again, "--rerun-failed"], build, folder, log, arguments.preset, state / "log" / "again.xml")
                print("\n".join(alone), file=sys.stderr)
            changed = left_outside(before, folder, build, arguments.beside_others)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    unnamed = [case.get("name") for case in xml.parse(report).getroot().iter("testcase") if "-byte object <" in case.get("name")]
    (state / f"{arguments.preset}.json").write_text(json.dumps(
        {"counts": counts, "skips": skips, "slowest": slowest, "closing": closing, "seconds": seconds, "changed": changed}))
    print(f"test: {arguments.preset}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped in "
          f"{seconds:.0f} s", file=sys.stderr)
    for line in changed:
        print(f"error: [test] outside of the build: {line}", file=sys.stderr)
    for name in unnamed:
        print(f"error: [test] a parameter has no words in {name}; give it a PrintTo, or the suite a name for each", file=sys.stderr)
    return code or (1 if changed or unnamed else 0)


def table(arguments):
    state = Path(arguments.state)
    runs = {path.stem: json.loads(path.read_text()) for path in sorted(state.glob("*.json"), key=lambda one: one.stat().st_mtime)}
    steps = [line.split("\t") for line in (state / "steps.tsv").read_text().splitlines()] if (state / "steps.tsv").exists() else []
    print(f"\n{'preset':10} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}")
    for preset, one in runs.items():
        counts = one["counts"]
        print(f"{preset:10} {counts.get('passed', 0):7} {counts.get('failed', 0):7} {counts.get('skipped', 0):8} {one['seconds']:8.0f}")
    reasons = collections.defaultdict(list)
    for preset, one in runs.items():
        for name, why in one["skips"]:
            reasons[why].append(f"{preset} {name}")
    if reasons:
        print("\nskipped, by reason")
        for why, names in sorted(reasons.items(), key=lambda item: -len(item[1]))[:20]:
            print(f"  {len(names):4}  {why[:150]}: {names[0]}{' and others' if len(names) > 1 else ''}")
    print("\nslowest tests and steps, in seconds")
    slowest = [(float(seconds), name) for seconds, name in steps]
    slowest += [(seconds, f"{preset} {name}") for preset, one in runs.items() for seconds, name in one["slowest"]]
    for seconds, name in sorted(slowest, reverse=True)[:10]:
        print(f"  {seconds:7.1f}  {name}")
    print(f"\nthe whole output: {state / 'log'}")
    for preset, one in runs.items():
        print(f"\n{preset}")
        print("\n".join(line for line in one["closing"] if line.strip() and "tests did not run" not in line
                        and not re.match(r"^\s*\d+ - .*\((Skipped|Disabled)\)", line)))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_run = commands.add_parser("run")
    of_run.add_argument("--preset", required=True)
    of_run.add_argument("--build", required=True)
    of_run.add_argument("--beside-others", action="store_true")
    of_run.add_argument("flags", nargs="*")
    of_step = commands.add_parser("step")
    of_step.add_argument("--seconds", required=True)
    of_step.add_argument("name")
    of_table = commands.add_parser("table")
    for one in (of_run, of_step, of_table):
        one.add_argument("--state", required=True)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return run(arguments)
    if arguments.command == "table":
        return table(arguments)
    Path(arguments.state).mkdir(parents=True, exist_ok=True)
    with open(Path(arguments.state) / "steps.tsv", "a") as steps:
        steps.write(f"{arguments.seconds}\t{arguments.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
