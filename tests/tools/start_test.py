#!/usr/bin/env python3
"""The benchmarks of the start and the tokenizer print a row for each case, and write the page that is asked for.

    python3 tests/tools/start_test.py build/release/bin
"""

import importlib.util
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/demo"
BIN = None


def run(tool, *flags):
    return subprocess.run([sys.executable, str(ROOT / "tools/bench" / tool), "--build", str(BIN.parent), *map(str, flags)],
                          capture_output=True, text=True)


def rows(text, first):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith(f"| {first} |")]


class Tools(unittest.TestCase):
    def test_the_parts_of_a_start_make_its_whole(self):
        with tempfile.TemporaryDirectory() as name:
            page = Path(name) / "page.md"
            done = run("start.py", "--rounds", 1, "--against", BIN.parent, "--record", page)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = rows(done.stdout, "20M")
            self.assertEqual([row[1] for row in found], ["made", "kept"])
            for row in found:
                *parts, whole, before = (float(cell) for cell in row[2:11])
                self.assertGreater(before, 0)
                self.assertTrue(0 < sum(parts) < whole + 0.1, row)
            self.assertEqual(rows(page.read_text(), "20M"), found)

    @unittest.skipUnless(importlib.util.find_spec("tokenizers"), "this Python has no tokenizers")
    def test_ids_are_compared_and_throughput_is_a_row(self):
        done = run("tokenizer_peers.py", "--tokenizer", DEMO, "--dataset", DEMO / "instructions.json", "--threads", 1, "--rounds", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the same on both sides", done.stdout)
        [row] = rows(done.stdout, "demo")
        self.assertTrue(float(row[2]) > 0 and float(row[3]) > 0, row)


if __name__ == "__main__":
    BIN = Path(sys.argv.pop(1)).resolve()
    unittest.main()
