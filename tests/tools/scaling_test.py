#!/usr/bin/env python3
"""`./tandem bench scaling`: the figures on docs/scaling.md are the program's, and one rank stands for all.

    python3 tests/tools/scaling_test.py build/release/bin [--update]

A table of the page stands behind a comment with its command, `<!-- bench_scaling FLAGS -->`. The test runs each command for the
first model and its first ranks and looks for the rows on the page; --update runs all of it and writes the tables.
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/scaling.md"
TABLE = re.compile(r"(?<=<!-- bench_scaling )(?P<flags>[^>]*) -->\n\n(?P<table>(?:\|.*\n)+)")
BIN = None


def simulate(*flags):
    return subprocess.run([str(BIN / "bench_scaling"), "--simulate", *flags], capture_output=True, text=True)


def update():
    def table_of(found):
        done = simulate(*found["flags"].split())
        sys.stderr.write(done.stderr)
        return f"{found['flags']} -->\n\n{done.stdout}"
    PAGE.write_text(TABLE.sub(table_of, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


class Simulated(unittest.TestCase):
    def test_page_has_the_programs_figures(self):
        tables = list(TABLE.finditer(PAGE.read_text(encoding="utf-8")))
        self.assertGreaterEqual(len(tables), 2)
        for found in tables:
            flags = re.sub(r"(--model \S+)( (?!--)\S+)*", r"\1", found["flags"])
            flags = re.sub(r"(--ranks \d+)( \d+)*", r"\1", flags)
            done = simulate(*flags.split())
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = done.stdout.splitlines()
            self.assertGreater(len(rows), 2)
            for row in rows:
                self.assertIn(row, found["table"].splitlines(), f"of bench_scaling {flags}; --update writes the tables")

    def test_the_same_seed_gives_the_same_figures_and_more_rows_better_ones(self):
        def step_and_efficiency(*flags):
            cells = simulate("--model", "7b", "--ranks", "16", *flags).stdout.splitlines()[-1].split(" | ")
            return float(cells[3]), float(cells[5].rstrip(" %"))
        once = step_and_efficiency()
        self.assertEqual(once, step_and_efficiency())
        more = step_and_efficiency("--rows", "4")
        self.assertGreater(more[0], once[0])
        self.assertGreaterEqual(more[1], once[1])
        self.assertLess(step_and_efficiency("--length", "256")[1], once[1])

    def test_one_rank_stands_for_all(self):
        done = simulate("--model", "7b", "--ranks", "8", "16", "--full", "--within", "1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), 4)

    def test_wrong_flags_are_said(self):
        for flags, said in ((["--ranks", "12"], "--ranks has 12"), (["--machine", "abacus"], "dgx-h100, dgx-a100"),
                            (["--stage", "0"], "--stage has 0"), (["--model", "/none"], "/none")):
            done = simulate(*flags)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


class OnThisMachine(unittest.TestCase):
    def test_two_axes_at_tiny_sizes(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            done = subprocess.run(
                [sys.executable, str(ROOT / "tools/bench/scaling.py"), "--build", str(BIN.parent), "--tiny", "--steps", "6", "--axes",
                 "parameters", "experts", "--plot", str(folder / "plot.svg"), "--json", str(folder / "found.json")],
                capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("| **slope** |"), 2)
            found = json.loads((folder / "found.json").read_text())
            self.assertEqual([len(found[axis]["points"]) for axis in ("parameters", "experts")], [2, 2])
            by_parameters = found["parameters"]["slopes"]["step"]["predicted"]
            self.assertTrue(0.5 < by_parameters < 1.5, by_parameters)
            # A token meets two experts however many there are.
            self.assertLess(found["experts"]["slopes"]["step"]["predicted"], 0.1)
            self.assertGreater(found["experts"]["slopes"]["exposed"]["predicted"], 0.3)
            for axis in found.values():
                for point in axis["points"]:
                    self.assertGreater(point["step"], 0)
                    self.assertGreater(point["memory"], 0)
            xml.etree.ElementTree.parse(folder / "plot.svg")


if __name__ == "__main__":
    BIN = Path(sys.argv.pop(1)).resolve()
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main()
