#!/usr/bin/env python3
"""./tandem test --gpu --queue: rehearsed from a bare copy of what tools/gpu/pack.py packed, with the programs of a build folder where
they are there and with fake ones; and the machines on which it has to stop before its first step."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/gpu"), str(ROOT / "tools")]
import figures  # noqa: E402 - of tools/gpu
import marks  # noqa: E402
from items import ITEMS, PROGRAMS  # noqa: E402

BUILT = Path(os.environ.get("TANDEM_QUEUE_BIN", ROOT / "build/release/bin"))
PYTHON = ROOT / ".venv/bin/python"
ENTRY = {"name": "step/qwen3/1x32/bf16/full/min_time:3.000/real_time", "run_type": "iteration", "real_time": 5.0, "time_unit": "ms",
         "tokens_per_s": 100.0, "loss_1": 6.6, "loss_2": 6.5, "predicted_ms": 5.5, "exposed_optimizer_ms": 1.0}
TESTED = 'echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 3 tests, listed below:"'
ANSWER = f"""echo '{json.dumps({"benchmarks": [ENTRY]})}'"""
FAKES = {
    "bench_step": 'case "$*" in *list_tests*) exit 0 ;; esac; ' + ANSWER,
    "bench_adam": "echo 'adam/bf16/real_time 1 ms'", "bench_overlap": "echo 'engine/full/1/real_time 1 ms'",
    "make_model": "echo '5 parameters in X'", "finetune_zero3": "echo 'throughput 1 tokens/s'", "tandem": "echo 'total 1 MiB'",
    **{name: TESTED for name in ("test_runtime", "test_actors", "test_engine", "test_models")},
}
SMI = """case "$*" in *name,*) echo "NVIDIA X100 80GB, 580.1, 81559 MiB, 9.0" ;; *memory.used*) echo {used} ;; *) echo "CUDA Version: 13.0" ;; esac"""


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


class Bare(unittest.TestCase):
    """A folder with a pack and a bare copy of it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.copy = self.folder / "copy"
        self.environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), "TMPDIR": str(self.folder)}
        (self.folder / "bin").mkdir()

    def run_it(self, *command, cwd=None):
        done = subprocess.run([str(part) for part in command], cwd=cwd or self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=900)
        return done.returncode, done.stdout + done.stderr

    def pack(self, programs, python, *flags):
        """Packs into a folder, and copies what is there to another."""
        packed = self.folder / "packed"
        code, printed = self.run_it(sys.executable, "-B", ROOT / "tools/gpu/pack.py", "--bin", programs, "--into", packed,
                                    "--python", python, *flags)
        if code == 0:
            shutil.copytree(packed, self.copy, dirs_exist_ok=True)
        return code, printed

    def queue(self, *flags):
        return self.run_it("./tandem", "test", "--gpu", *flags, cwd=self.copy)

    def record(self):
        return (self.copy / "gpu_out/record.md").read_text(encoding="utf-8")


class WithFakes(Bare):
    def setUp(self):
        super().setUp()
        for name, text in FAKES.items():
            script(self.folder / "programs" / name, text)
        torch = self.folder / "python/torch"
        torch.mkdir(parents=True)
        (torch / "__init__.py").write_text("raise ImportError('a fake')\n", encoding="utf-8")
        (torch / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", encoding="utf-8")
        self.environment["PYTHONPATH"] = str(torch.parent)
        script(self.folder / "bin/g++", "exit 1")  # compiles in seconds what only the real programs need
        self.assertEqual(self.pack(self.folder / "programs", sys.executable)[0], 0)

    def smi(self, used):
        script(self.folder / "bin/nvidia-smi", SMI.format(used=used))

    def stops(self, expected, words, *flags):
        code, printed = self.queue(*flags)
        self.assertEqual(code, expected, printed)
        self.assertEqual(printed.count("\n"), 1, printed)
        self.assertIn(words, printed)
        self.assertFalse((self.copy / "gpu_out").exists())

    def test_all_items_are_rehearsed(self):
        code, printed = self.queue("--rehearse")
        self.assertEqual(code, 0, printed)
        record = self.record()
        self.assertIn("no figure is a measurement", record)
        for name, item in ITEMS.items():
            self.assertIn(f"## {name} {item.title}\n", record)
            self.assertIn(f"Passes: {item.passes}\n", record)
        self.assertRegex(record, r"\| tandem auto step/qwen3/1x32/bf16/full \| 1 \| 100 \| 5.0 \| 1.00 \|")
        self.assertRegex(record, r"\| SuperOffload, no clipping \(stand-in\) \| 1 \| 1 \| [\d,.]+ \| - \|")
        self.assertIn("0 hazards (stand-in)", record)
        self.assertNotIn("FAILED", record)
        self.assertNotIn(str(self.folder), record)
        self.assertTrue(printed.endswith("all passed\n"), printed)

    def test_a_step_that_fails_stops_no_other_one(self):
        script(self.folder / "programs/test_actors", "echo '[  PASSED  ] 1 tests.'; echo why; exit 1")
        self.assertEqual(self.pack(self.folder / "programs", sys.executable)[0], 0)
        code, printed = self.queue("--queue", "Q1", "--rehearse")
        self.assertEqual(code, 1, printed)
        self.assertTrue(printed.endswith("FAILED: test_actors *.Real*\n"), printed)
        self.assertRegex(self.record(), r"\| test_engine \*\.Real\* \| passed \|")

    def test_no_time_is_no_step(self):
        code, printed = self.queue("--queue=Q5", "--rehearse", "--seconds", "1")
        self.assertEqual(code, 0, printed)
        self.assertIn("left out: 1 s left", self.record())

    def test_a_comparison_ends_in_time_to_print_what_it_has(self):
        script(self.folder / "programs/bench_step", "case \"$*\" in *list_tests*) exit 0 ;; *state=bf16*) sleep 60 ;; esac; " + ANSWER)
        self.assertEqual(self.pack(self.folder / "programs", sys.executable)[0], 0)
        code, printed = self.queue("--queue", "Q5", "--rehearse", "--seconds", "20")
        self.assertEqual(code, 1, printed)
        self.assertIn("| exact step/qwen3/1x32/bf16/full | 1 | 100 |", self.record())
        self.assertRegex(self.record(), "fell short: moments in bf16, round 1: ended by its limit")

    def test_a_real_run_takes_the_sizes_of_the_item(self):
        self.smi(0)
        self.queue("--queue", "q4", "--model", "qwen3_1.7b", "--rows", "2")
        table = (self.copy / "gpu_out/table.md").read_text(encoding="utf-8")
        self.assertIn("bench_step --device=cuda --config=tools/gpu/configs/qwen3_1.7b.json --rows=2 --length=4096 --steps=5", table)
        self.assertIn("- mark: tandem qwen3_1.7b: at least 5,500 tokens/s: **MISSED**", self.record())

    def test_a_whole_tree_has_its_pack_in_a_folder(self):
        tree = self.folder / "tree"
        shutil.copytree(self.copy, tree, ignore=shutil.ignore_patterns("*.tar.gz", "wheels", "packed.json"))
        self.copy.rename(tree / ".gpu")
        self.copy = tree
        code, printed = self.queue("--queue", "Q5", "--rehearse")
        self.assertEqual(code, 0, printed)
        self.assertIn("| exact step", self.record())

    def test_without_a_gpu_nothing_is_run(self):
        self.stops(3, "no GPU here: nvidia-smi not found", "--queue", "Q1")

    def test_a_gpu_that_others_use_is_left_alone(self):
        self.smi(5000)
        self.stops(3, "5000 MiB of the GPU are in use by others", "--queue", "Q1")

    def test_a_program_that_is_absent_has_its_name_in_the_line(self):
        (self.folder / "programs/test_engine").unlink()
        code, printed = self.pack(self.folder / "programs", sys.executable)
        self.assertEqual((code, (self.folder / "packed").exists()), (1, False))
        self.assertIn("test_engine not in", printed)
        (self.copy / "programs.tar.gz").unlink()
        self.run_it("tar", "-C", self.folder, "-czf", self.copy / "programs.tar.gz", "--transform", "s/^programs/bin/", "programs")
        self.stops(4, "test_engine is not in", "--queue", "Q1", "--rehearse")

    def test_a_library_that_is_absent_has_its_name_in_the_line(self):
        script(self.folder / "bin/ldd", 'case "$*" in *bench_step) echo "	libfmt.so.9 => not found" ;; esac')
        self.stops(4, "bench_step lacks libfmt.so.9", "--queue", "Q1", "--rehearse")

    def test_another_torch_is_refused(self):
        version = self.folder / "python/torch/version.py"
        version.write_text(version.read_text(encoding="utf-8").replace("2.11.0", "2.12.0"), encoding="utf-8")
        self.stops(4, "torch is 2.12.0+cu130, and the programs were linked with 2.11.0+cu130", "--queue", "Q1", "--rehearse")

    def test_wrong_flags_end_with_2(self):
        self.assertEqual(self.queue("--queue", "Q8")[0], 2)
        self.assertEqual(self.queue("--queue")[0], 2)
        code, printed = self.queue("--queue", "--help")
        self.assertEqual(code, 0)
        self.assertIn("Q7   360 s  other shapes", printed)
        self.assertEqual(self.queue("--queue", "Q1", "--model", "none")[0], 2)

    def test_what_is_too_large_is_not_left_behind(self):
        code, printed = self.pack(self.folder / "programs", sys.executable, "--most-mib", "0.01")
        self.assertEqual((code, (self.folder / "packed").exists()), (1, False))
        self.assertRegex(printed, r"MiB are more than the 0\.01 that travel")

    def test_a_folder_with_other_files_stays(self):
        shutil.rmtree(self.folder / "packed")
        script(self.folder / "packed/own", "")
        self.assertEqual(self.pack(self.folder / "programs", sys.executable)[0], 1)
        self.assertTrue((self.folder / "packed/own").is_file())


@unittest.skipUnless(PYTHON.exists() and all((BUILT / name).exists() for name in PROGRAMS), "the programs are not built here")
class WithPrograms(Bare):
    def test_all_items_are_rehearsed(self):
        code, printed = self.pack(BUILT, PYTHON)
        self.assertEqual(code, 0, printed)
        size = re.search(r"packed: ([\d.]+) MiB of the 60 that travel", printed)
        self.assertLess(float(size[1]), 60)
        code, rehearsed = self.queue("--rehearse")
        self.assertEqual(code, 0, rehearsed)
        self.assertIn(f"Pack: {size[1]} MiB of the 60 that travel", rehearsed)
        print(printed, rehearsed.splitlines()[-1])
        for words in ("| tandem cpu ", "| as it is ", "| tandem, overlap off ", "| tandem qwen3_8b ", "| moments in bf16 ", "| packed rows "):
            self.assertIn(words, self.record())


MADE_UP = """#include "tools/gpu/trace_report.hpp"
using namespace tandem::gpu_trace;
int main() {
  Collected all{.activities = {{0, 1'000'000, 50'000'000, 0, 7, Kind::kCopy}, {500'000, 2'000'000, 0, 1, 1, Kind::kKernel},
                               {2'030'000, 3'000'000, 0, 2, 1, Kind::kKernel}, {3'005'000, 4'000'000, 0, 2, 2, Kind::kKernel}},
                .names = {"host to device (pinned)", "_ZN2at6native12_GLOBAL__N_11fEv", "g"}, .lost = 1};
  print(stdout, all, {});
  print(stdout, all, {.last_ms = 2});
}
"""


@unittest.skipUnless(shutil.which("g++"), "no g++")
class Trace(unittest.TestCase):
    def test_the_sums_of_made_up_activities(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "made_up"
            subprocess.run(["g++", "-std=c++20", f"-I{ROOT}", "-x", "c++", "-", "-o", program], input=MADE_UP, text=True, check=True)
            text = subprocess.run([program], capture_output=True, text=True, check=True).stdout
        for words in ("the last 4.0 of 4.0 ms: 4 activities, 1 lost", "runs for 3.465 ms (86.6 %)", "a copy for 1.000 ms, for 0.500 of them beside",
                      "1.500  37.50        1   1500.00   1500.00  f()", "0.050     50.00  host to device (pinned)",
                      "more than 20 us: 1 times, 0.030 ms (0.8 %)", "after f(), before g", "the last 2.0 of 4.0 ms: 2 activities"):
            self.assertIn(words, text)


class Figures(unittest.TestCase):
    def test_marks_without_figures_are_neither_met_nor_missed(self):
        rows = {"a": [{"tokens_per_s": 30.0}], "b": [{"tokens_per_s": 20.0}]}
        held = [marks.at_least("a", factor, "b", "c") for factor in (1.5, 1.6)] + [marks.at_least("a", 1, "c")]
        self.assertEqual([mark.met(rows) for mark in held], [True, False, None])

    def test_an_error_of_a_peer_is_no_figure(self):
        found, errors = figures.figures('warning\n{"peer": "torch", "tokens_per_s": 1, "error": "why"}\n', "x")
        self.assertEqual((found, errors), ([], ["why"]))


if __name__ == "__main__":
    unittest.main()
