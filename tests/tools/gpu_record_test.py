#!/usr/bin/env python3
"""./tandem test --gpu in a tree of fake programs: with a fake GPU, without one, and with steps that fail, skip or hang."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDS_GPU = re.compile(r"(?<!define )REQUIRE_GPU\(\)|(?:gpus\(\)|why_no_cuda)[^{}]*\{\s*GTEST_SKIP|world < 2\) \{\s*GTEST_SKIP")
PASSED = 'echo "[  PASSED  ] 3 tests."'
SMI = """case "$*" in *--query-gpu*) echo "NVIDIA X100 80GB, 580.1, 81559 MiB, 9.0" ;; *) echo "CUDA Version: 13.0 " ;; esac"""
TANDEM = """case "$*" in
  build) echo "build: build/release/bin" ;;
  doctor) echo "gpu        0 NVIDIA X100"; echo "--device   auto is cuda" ;;
  "train --device cuda") echo "Summary of 800 steps"; echo "  throughput  1 tokens/s"; echo "artefacts in runs/x" ;;
  "bench step --device cuda"*) echo "cuda/qwen3_20m/8x256/bf16/full 12.5 ms" ;;
  "bench overlap --device cuda"*) echo "engine/full/1 9.5 ms efficiency=0.9"; echo noise ;;
  *) exit 2 ;;
esac"""


class GpuRecord(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = Path(folder.name).resolve() / "tree"
        (self.tree / "tools").mkdir(parents=True)
        for name in ("gpu_record.py", "trust.py", "trust_campaigns.py", "setup.sh"):
            shutil.copy(ROOT / "tools" / name, self.tree / "tools")
        self.program("bin/nvidia-smi", SMI)
        self.program("bin/compute-sanitizer", 'echo "========= ERROR SUMMARY: 0 errors"; while [ "$1" != 1 ]; do shift; done; shift; exec "$@"')
        self.program("tandem", TANDEM)
        for name in ("runtime", "actors", "engine", "models"):
            self.program(f"build/release/bin/test_{name}", PASSED)
        self.program(".venv/bin/python", 'echo "qwen3     fp32  tandem full : 900 tokens/s, ratio 1.5"')

    def program(self, name, text):
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        path.chmod(0o755)

    def run_with(self, *flags):
        return self.run_it(sys.executable, "tools/gpu_record.py", *flags)

    def run_it(self, *command):
        environment = {"PATH": f"{self.tree}/bin:/usr/bin:/bin", "HOME": str(self.tree)}
        done = subprocess.run(command or [sys.executable, "tools/gpu_record.py"], cwd=self.tree, env=environment, capture_output=True,
                              text=True, timeout=120)
        written = list((self.tree / "bench/results").glob("*"))
        return done.returncode, done.stdout + done.stderr, [path.read_text(encoding="utf-8") for path in written], written

    def files(self):
        return sorted(path.relative_to(self.tree) for path in self.tree.rglob("*"))

    def test_one_record_of_all_steps(self):
        code, printed, records, paths = self.run_it()
        self.assertEqual((code, len(records)), (0, 1), printed)
        self.assertRegex(paths[0].name, r"^\d{4}-\d\d-\d\d_gpu_nvidia_x100_80gb\.md$")
        for words in ("NVIDIA X100 80GB, 580.1", "CUDA 13.0 by the driver", "3 tests passed", "engine/full/1 9.5 ms efficiency=0.9",
                      "cuda/qwen3_20m/8x256/bf16/full 12.5 ms", "ratio 1.5", "0 errors", "throughput  1 tokens/s", "auto is cuda",
                      "build/release/bin/test_engine --gtest_filter='*.Real*'"):
            self.assertIn(words, records[0])
        self.assertNotIn("noise", records[0])
        self.assertNotIn(str(self.tree), records[0])
        self.assertEqual(records[0].count("| passed |"), 17)
        self.assertTrue(printed.endswith(": all passed\n"), printed)
        self.assertEqual(len(self.run_it()[2]), 2)  # a second one replaces none

    def test_a_failing_step_stops_no_other_one(self):
        self.program("build/release/bin/test_runtime", 'echo "[  PASSED  ] 2 tests."; echo "[  FAILED  ] CudaDevice.RealX"; echo why; exit 1')
        self.program("build/release/bin/test_engine", "kill -SEGV $$")
        code, printed, records, _ = self.run_it()
        self.assertEqual(code, 1)
        for words in ("| test_runtime: tests on the GPU | **FAILED** |", "[  FAILED  ] CudaDevice.RealX\n", "why\n", "exit -11",
                      "| memcheck_test_engine: the same under compute-sanitizer | **FAILED** |", "ratio 1.5"):
            self.assertIn(words, records[0])
        self.assertIn("FAILED: test_runtime, test_engine, memcheck_test_runtime, memcheck_test_engine\n", printed)

    def test_tests_that_are_all_skipped_have_not_passed(self):
        self.program("build/release/bin/test_engine", 'printf "a_test.cpp:9: Skipped\\nneeds --device cuda: why\\n"; echo "[  PASSED  ] 0 tests."')
        code, _, records, _ = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("no test ran: 0 tests passed; needs --device cuda: why", records[0])

    def test_a_step_that_does_not_end_is_ended(self):
        self.program("build/release/bin/test_actors", "sleep 1000")
        tool = self.tree / "tools/gpu_record.py"
        tool.write_text(tool.read_text(encoding="utf-8").replace("{minutes}m", "{minutes / 60}s"), encoding="utf-8")
        code, _, records, _ = self.run_it()
        self.assertEqual(code, 1)
        self.assertIn("exit 124", records[0])
        self.assertIn("ratio 1.5", records[0])

    def test_built_programs_as_they_are(self):
        (self.tree / "tandem").unlink()
        for name, text in (("tandem", 'echo "gpu        0 NVIDIA X100, by itself"'),
                           ("finetune_zero3", '[[ $* == "--device cuda" ]] && echo "Summary of 800 steps"'),
                           ("bench_step", '[[ $* == "--device cuda" ]] && echo "cuda/qwen3_20m 12.5 ms"'),
                           ("bench_overlap", '[[ $* == "--device cuda" ]] && echo "engine/full/1 9.5 ms"')):
            self.program(f"build/release/bin/{name}", text)
        code, printed, records, _ = self.run_with("--built")
        self.assertEqual((code, len(records)), (0, 1), printed)
        for words in ("NVIDIA X100, by itself", "Summary of 800 steps", "cuda/qwen3_20m 12.5 ms", "engine/full/1 9.5 ms", "Commit unknown.",
                      "nothing was built", "`./tandem test --gpu --built`"):
            self.assertIn(words, records[0])
        self.assertNotIn("./tandem build", records[0])
        self.assertEqual(records[0].count("| passed |"), 16)

    def test_a_few_steps(self):
        code, printed, records, _ = self.run_with("--only", "test_engine", "step", "--quick")
        self.assertEqual((code, len(records)), (0, 1), printed)
        self.assertIn("`./tandem test --gpu --only test_engine step --quick`", records[0])
        self.assertRegex(records[0], r"Left out as asked: doctor, test_runtime, .*, memcheck_test_engine, .*, adam_peers\.")
        self.assertEqual(re.findall(r"^\| (\w+): ", records[0], re.MULTILINE), ["build", "test_engine", "step"])
        self.assertRegex(records[0], r"`timeout .* \./tandem bench step --device cuda --benchmark_filter='bf16/\(off\|full\)/iterations'`")

    def test_all_steps_but_a_few(self):
        code, _, records, _ = self.run_with("--skip", "overlap", "racecheck_test_actors")
        self.assertEqual((code, records[0].count("| passed |")), (0, 15))
        self.assertIn("Left out as asked: racecheck_test_actors, overlap.", records[0])

    def test_an_unknown_step_is_refused(self):
        for flag in ("--only", "--skip"):
            for name in ("nonsense", "build"):
                code, printed, _, written = self.run_with(flag, "train", name)
                self.assertEqual((code, written), (2, []))
                self.assertRegex(printed, rf"^error: \[test\] unknown step {name}; the steps are doctor, test_runtime, .*\n$")

    def test_without_the_sanitizer(self):
        if shutil.which("compute-sanitizer", path="/usr/bin:/bin:/usr/local/cuda/bin"):
            self.skipTest("compute-sanitizer is installed here")
        (self.tree / "bin/compute-sanitizer").unlink()
        code, _, records, _ = self.run_it()
        self.assertEqual(code, 0)
        self.assertIn("compute-sanitizer is not installed: left out.", records[0])
        self.assertEqual(records[0].count("| passed |"), 11)
        code, printed, records, _ = self.run_with("--built", "--only", "racecheck_test_actors")
        self.assertEqual((code, len(records)), (1, 1))
        self.assertEqual(printed, "test: compute-sanitizer is not installed: nothing was run, nothing written\n")

    def test_without_a_gpu(self):
        shutil.copy(ROOT / "tandem", self.tree)
        for smi, why in (("echo No devices were found; exit 6", "No devices were found"), ("exit 0", "nvidia-smi lists none")):
            self.program("bin/nvidia-smi", smi)
            before = self.files()
            code, printed, _, _ = self.run_it("./tandem", "test", "--gpu")
            self.assertEqual((code, printed), (0, f"test: no GPU here ({why}): nothing built, nothing written\n"))
            self.assertEqual(self.files(), before)

    def test_every_test_that_needs_a_gpu_is_named_real(self):
        """By that name --gpu finds them."""
        found = 0
        for path in (ROOT / "tests").rglob("*_test.cpp"):
            parts = re.split(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            for suite, name, body in zip(parts[1::3], parts[2::3], parts[3::3]):
                if NEEDS_GPU.search(body):
                    found += 1
                    self.assertTrue(name.startswith("Real"), f"{path}: {suite}.{name}")
                    self.assertIn(path.relative_to(ROOT).parts[1], ("runtime", "actors", "engine", "models"))
        self.assertGreaterEqual(found, 10)


if __name__ == "__main__":
    unittest.main()
