#!/usr/bin/env python3
"""The benchmark suites as their users meet them: --help lists a suite's own flags, a value that is wrong is one line and exit
code 2, a filter that matches nothing likewise, and a report as JSON says what made it.

    python3 tests/tools/bench_suites_test.py build/release/bin
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BIN = None
SUITES = ["adam", "checkpoint", "cifar", "collectives", "io", "load", "models", "net", "nvme", "overlap", "placement", "rollback",
          "runtime", "step", "tokenizer"]
FLAGS = {"adam": ["--elements", "--iterations", "--threads"], "checkpoint": ["--folder"], "load": ["--folder", "--gb"],
         "net": ["--rank", "--device"], "nvme": ["--state_mb"], "overlap": ["--device"], "rollback": ["--elements"],
         "runtime": ["--compare"], "tokenizer": ["--tokenizer", "--dataset", "--threads"],
         "step": ["--config", "--rows", "--length", "--device", "--steps", "--placement", "--stage", "--gather_slots",
                  "--inflight_buckets", "--micro_steps", "--document_length", "--lora_r", "--clip", "--forced_misses",
                  "--optimizer_state"]}
# The least that a suite can be asked to measure.
SMALLEST = {"adam": ["--elements=1000000", "--iterations=1", "--benchmark_filter=^adam/fp32"],
            "checkpoint": ["--benchmark_filter=^save/qwen3_20m/"],
            "load": ["--gb=0.01"],
            "net": ["--benchmark_filter=latency"],
            "nvme": ["--state_mb=4"],
            "overlap": ["--benchmark_filter=control/ready_to_adam/"],
            "placement": ["--benchmark_filter=^model/"],
            "rollback": ["--elements=10000"],
            "step": ["--rows=1", "--length=32", "--steps=1", "--benchmark_filter=bf16/full/iter"]}


def run(suite, *flags, timeout=300):
    return subprocess.run([str(BIN / f"bench_{suite}"), *flags], capture_output=True, text=True, timeout=timeout)


def literal(name):
    return re.sub(r"([.^$*+?()|\[\]{}\\])", r"\\\1", name)


class Suites(unittest.TestCase):
    def test_help_lists_the_suites_own_flags(self):
        for suite in SUITES:
            with self.subTest(suite):
                done = run(suite, "--help")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("--benchmark_filter", done.stdout)
                for flag in FLAGS.get(suite, []):
                    self.assertRegex(done.stdout, rf"(?m)^  {flag}\b")

    def test_the_page_has_every_flag(self):
        page = (Path(__file__).resolve().parents[2] / "docs/benchmarks.md").read_text(encoding="utf-8")
        for suite in SUITES:
            self.assertIn(f"| `{suite}` |", page)
            for flag in FLAGS.get(suite, []):
                self.assertIn(f"`{flag}`", page, suite)

    def test_a_wrong_value_is_one_line(self):
        wrong = [("step", "--rows=abc"), ("step", "--rows=-1"), ("step", "--length=1e3"), ("step", "--stage=4"),
                 ("step", "--clip=x"), ("step", "--forced_misses=1.5"), ("step", "--device=tpu"), ("step", "--optimizer_state="),
                 ("adam", "--elements=12"), ("adam", "--threads=99999"), ("nvme", "--state_mb=0"), ("load", "--gb=0"),
                 ("tokenizer", "--threads=two"), ("overlap", "--device="), ("rollback", "--elements= 20000"),
                 ("step", "--rows"), ("runtime", "--compares"), ("io", "--folder=/tmp"), ("adam", "extra")]
        for suite, flag in wrong:
            with self.subTest(f"{suite} {flag}"):
                done = run(suite, flag)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, rf"^\[bench\] bench_{suite}: [^\n]*{flag.split('=')[0]}[^\n]*\n$")

    def test_a_filter_that_matches_nothing_is_one_line(self):
        for suite in SUITES:
            with self.subTest(suite):
                done = run(suite, "--benchmark_filter=no_such_benchmark")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("--benchmark_list_tests=true", done.stderr.splitlines()[-1])

    def test_a_report_says_what_made_it(self):
        for suite in SUITES:
            with self.subTest(suite), tempfile.TemporaryDirectory() as name:
                flags = SMALLEST.get(suite, [])
                listed = run(suite, *flags, "--benchmark_list_tests=true").stdout.splitlines()
                page = Path(name) / "out.json"
                own = [flag for flag in flags if not flag.startswith("--benchmark_filter")]
                done = run(suite, *own, f"--benchmark_filter=^{literal(listed[0])}$", "--benchmark_min_time=0.01",
                           f"--benchmark_out={page}")
                self.assertEqual(done.returncode, 0, done.stderr)
                report = json.loads(page.read_text())
                for key in ("commit", "cpu", "usable_cpus", "load_avg", "date"):
                    self.assertIn(key, report["context"])
                if suite in ("step", "overlap", "models", "cifar", "placement", "checkpoint", "load"):
                    self.assertTrue({"simd", "libtorch", "torch_threads"} <= report["context"].keys())
                self.assertTrue(report["benchmarks"], listed[0])


if __name__ == "__main__":
    BIN = Path(sys.argv.pop(1)).resolve()
    unittest.main()
