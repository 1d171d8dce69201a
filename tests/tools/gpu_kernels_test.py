#!/usr/bin/env python3
"""tools/gpu_kernels.py compile: what ptxas prints becomes a file beside the object, and a kernel that spills has no object.

usage: gpu_kernels_test.py [NVCC]; without one a fake alone is asked
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/gpu_kernels.py"
NVCC = sys.argv.pop(1) if len(sys.argv) > 1 else ""
FAKE = """#!/bin/bash
case "$1" in --version) echo "Cuda compilation tools, release 13.7, V13.7.1"; exit ;; esac
while [ "$1" != -o ]; do shift; done
touch "$2"
while [ "$1" != --keep-dir ]; do shift; done
printf '.visible .entry _Z3sumPf(\\n)\\n{\\nfma.rn.f32 %%f1;\\n@%%p1 div.rn.f64 %%f2;\\nadd.s32 %%r1;\\n}\\n' > "$2/x.compute_90.ptx"
cat <<'LOG' >&2
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3sumPf' for 'sm_80'
ptxas info    : Function properties for _Z3sumPf
    48 bytes stack frame, STORES bytes spill stores, 4 bytes spill loads
ptxas info    : Used 33 registers, used 1 barriers, 568 bytes smem, 400 bytes cmem[0]
x.cu(3): warning: of the compiler
LOG
exit CODE
"""
SPILLING = """__global__ void __launch_bounds__(1024, 2) spilling(float* out, int n) {
  float values[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) { values[i] = out[i * n]; }
  for (int round = 0; round < n; ++round) {
#pragma unroll
    for (int i = 0; i < 64; ++i) { values[i] = values[i] * values[(i + 7) % 64] + 1.0F; }
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) { out[i * n] = values[i]; }
}
"""


class GpuKernels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def compile(self, nvcc, *flags):
        done = subprocess.run([sys.executable, TOOL, "compile", nvcc, *flags, "-c", "x.cu", "-o", "x.cu.o"], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def fake(self, stores="0", loads="0", code="0"):
        path = self.folder / "nvcc"
        path.write_text(FAKE.replace("STORES", stores).replace("4 bytes spill loads", f"{loads} bytes spill loads").replace("CODE", code),
                        encoding="utf-8")
        path.chmod(0o755)
        return self.compile(path)

    def there(self):
        return (self.folder / "x.cu.o").exists(), (self.folder / "x.cu.o.kernels.json").exists()

    def test_what_is_said_of_a_kernel_lies_beside_the_object(self):
        self.assertEqual(self.fake(), (0, "x.cu(3): warning: of the compiler\n"))
        report = json.loads((self.folder / "x.cu.o.kernels.json").read_text(encoding="utf-8"))
        self.assertEqual(report, {"nvcc": "13.7", "kernels": [{
            "kernel": "sum", "arch": "sm_80", "registers": 33, "stack": 48, "spilled": 0, "shared": 568, "flops": {"32": 2, "64": 1}}]})

    def test_a_spill_fails_and_leaves_no_object(self):
        for stores, loads in (("12", "4"), ("0", "4"), ("12", "0")):
            code, said = self.fake(stores, loads)
            self.assertEqual((code, self.there()), (1, (False, False)))
            self.assertIn(f"error: [kernel] sum for sm_80 spills {int(stores) + int(loads)} bytes at 33 registers, 0 are allowed", said)

    def test_a_failing_compiler_fails(self):
        self.assertEqual(self.fake(code="3")[0], 3)

    @unittest.skipUnless(os.access(NVCC, os.X_OK), "no nvcc here")
    def test_the_real_one(self):
        (self.folder / "x.cu").write_text(SPILLING, encoding="utf-8")
        code, said = self.compile(NVCC, "-arch=sm_90")
        self.assertEqual((code, self.there()), (1, (False, False)), said)
        self.assertRegex(said, r"error: \[kernel\] spilling for sm_90 spills \d+ bytes at 32 registers")
        (self.folder / "x.cu").write_text(SPILLING.replace("__launch_bounds__(1024, 2)", ""), encoding="utf-8")
        self.assertEqual(self.compile(NVCC, "-arch=sm_90"), (0, ""))
        self.assertEqual(self.there(), (True, True))


if __name__ == "__main__":
    unittest.main()
