#!/usr/bin/env python3
"""The test suite on other machines: the same tests under restrictions that other machines have.

A restriction is a limit, a setting or a rate, and is put on ctest from outside. The tests must pass as they pass without
it; where the restriction forbids what a test needs, the test skips with a line that says so.

    tests/drills/machines.py             the release tests without the long ones as the machine is, those of them that took
                                         at most three seconds under several restrictions at once, group by group, and all
                                         tests of plans under 36 rates; about 40 minutes on two cores. A test that passes in
                                         a group passes under each of its restrictions
    tests/drills/machines.py --apart     a run for each restriction instead
    tests/drills/machines.py --longest 1000     all of them under each restriction
    tests/drills/machines.py --times build/test/log/release.xml     a test run has told already how long each test takes,
                                         and that it passes as the machine is
    tests/drills/machines.py --quick     a few suites of each layer under each restriction, and plans under five rates
    tests/drills/machines.py --only avx2 umask
    tests/drills/machines.py --together avx2,umask sse4,256     these groups and no others, without the plans
    tests/drills/machines.py --rates 1e9 5e9 1e10     all tests, the long ones too, at the first of these rates of every key;
                                         those of them that read a rate at each of the others, too

Some restrictions need root (a /dev/shm of 64 MiB, another user); they are named where they cannot be had. The table goes
to standard error; the last line of the output is the summary, one JSON object; exit code 1 where a test fails.
"""

import argparse
import ctypes
import dataclasses
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

from drill import ROOT

PLANS = "Plan|Placement|Solver|Spill|Bandwidth|Fit|Overlap|readme"
QUICK = (r"^(Both/FileIoTest\.(WritesAndReadsBack|ManyAtOnce|SaysWhatItRunsOn|MoreOperations|PastThePageCache)|HostList\.Reads|"
         "NvmePlan|RunSecret|TokenCache|HubPaths|BandwidthFile|SimdLimit|StateFile)")
FACTORS = (0.03, 0.1, 0.3, 1, 3, 10)
RATE = 1e10  # of tests/support/process/own_folder.cpp
QUICK_PLANS = "^(NvmePlan|NvmeSpill|RunPlan|PlacementPlan|BandwidthFile)"
QUICK_RATES = (1e9, 5e9, 1e10, 2e10, 4e10)
AS_IT_IS = "as it is"
GROUPS = ("avx2,no io_uring,HOME unset,umask,de_DE,TZ", "sse4,locked,256,TMPDIR,tr_TR", "avx512,/dev/shm,HOME read,OMP,not root", "one core")
IO_URING_SETUP = 425
NOBODY = 65534


class Absent(Exception):
    """This machine cannot be restricted so."""


@dataclasses.dataclass
class Restriction:
    """`prefix`: the command before ctest; `variables`: None takes one away; `before`: called in the process that becomes it."""

    name: str
    prefix: tuple = ()
    variables: dict = dataclasses.field(default_factory=dict)
    before: object = None
    tests: tuple = ("-LE", "long$")
    umask: int = -1


def need(program):
    if shutil.which(program) is None:
        raise Absent(f"{program} is not installed")
    return program


def need_root():
    if os.geteuid() != 0:
        raise Absent("only root can")


def refuse_io_uring():
    """A seccomp filter: io_uring_setup answers ENOSYS, as on kernels and in containers without it."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = [(0x20, 0, 0, 0),  # the number of the call
                    (0x15, 0, 1, IO_URING_SETUP), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *one) for one in instructions)
    memory = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(memory))
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) != 0 or libc.prctl(seccomp, filter_mode, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def locale_variables(name, folder):
    """With a locale that is made for the drill where the system does not have it."""
    if not Path(f"/usr/share/i18n/locales/{name}").exists():
        raise Absent("the package locales is not installed")
    subprocess.run([need("localedef"), "-i", name, "-f", "UTF-8", folder / f"{name}.UTF-8"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return {"LC_ALL": f"{name}.UTF-8", "LANG": f"{name}.UTF-8", "LOCPATH": str(folder)}


def with_mount(options, place):
    need_root()
    return (need("unshare"), "--mount", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs "{place}" && exec "$@"', "sh")


def makers(folder):
    """{name: what makes the restriction}; Absent where it cannot be had here."""
    torch_limits = {"avx512": {}, "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
                    "sse4": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}}
    torch_limits["avx512"]["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"

    def limit(*flags):
        return (need("prlimit"), *flags, "--")

    def user():
        need_root()
        return (need("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs")

    def home(mode):
        if mode == "unset":
            return {"HOME": None, "XDG_CACHE_HOME": None, "TANDEM_CACHE": None, "TANDEM_TEST_HOME": "given"}
        return {"HOME": "/proc/self", "XDG_CACHE_HOME": None, "TANDEM_CACHE": None, "TANDEM_TEST_HOME": "given"}

    def long_folder():
        made = folder / ("a long folder " * 4).strip()
        made.mkdir(exist_ok=True)
        made.chmod(0o1777)
        return {"TMPDIR": str(made)}

    return {
        AS_IT_IS: lambda: {},
        "one core": lambda: {"prefix": (need("taskset"), "-c", str(min(os.sched_getaffinity(0))))},
        "OMP_NUM_THREADS=1": lambda: {"variables": {"OMP_NUM_THREADS": "1"}},
        **{f"TANDEM_SIMD={name}": lambda name=name: {"variables": {"TANDEM_SIMD": name, **torch_limits[name]}}
           for name in torch_limits},
        "no io_uring": lambda: {"before": refuse_io_uring},
        "locked memory 64 KiB": lambda: {"prefix": (need("setpriv"), "--bounding-set", "-ipc_lock", *limit("--memlock=65536"))},
        "256 descriptors": lambda: {"prefix": limit("--nofile=256")},
        "/dev/shm of 64 MiB": lambda: {"prefix": with_mount("size=64m,mode=1777", "/dev/shm")},
        "HOME unset": lambda: {"variables": home("unset")},
        "HOME read-only": lambda: {"variables": home("read-only")},
        "TMPDIR long, with spaces": lambda: {"variables": long_folder()},
        "umask 077": lambda: {"umask": 0o077},
        "not root": lambda: {"prefix": user()},
        "de_DE.UTF-8": lambda: {"variables": locale_variables("de_DE", folder)},
        "tr_TR.UTF-8": lambda: {"variables": locale_variables("tr_TR", folder)},
        "TZ=Asia/Kathmandu": lambda: {"variables": {"TZ": "Asia/Kathmandu"}},
    }


def together(group, made, absent):
    """(label, what makes the restriction) for names of a group, each a part of one restriction's name. Those that cannot be
    had here are named in `absent`, and the others are tried."""
    labels = [label for name in group.split(",") for label in made if name in label]

    def make():
        given = {"prefix": (), "variables": {}, "umask": -1}
        for label in labels:
            try:
                one = made[label]()
            except Absent as why:
                absent.append(f"{label}: {why}")
                print(f"{label:28} not tried: {why}", file=sys.stderr, flush=True)
                continue
            if "before" in one:
                given["before"] = one["before"]
            given["prefix"] += one.get("prefix", ())
            given["umask"] = one.get("umask", given["umask"])
            given["variables"] |= one.get("variables", {})
        return given

    return " + ".join(labels), make


def rates_of(options):
    if options.rates:
        return [(f"rate {float(rate):.3g}", float(rate), ()) for rate in options.rates]
    plans = ("-R", QUICK_PLANS if options.quick else PLANS, "-LE", "long$")
    if options.quick:
        return [(f"rate {rate:.3g}", rate, plans) for rate in QUICK_RATES]
    drawn = random.Random(options.seed)
    return ([(f"rate x {factor}", RATE * factor, plans) for factor in FACTORS] +
            [(f"rate {rate:.3g}", rate, plans) for rate in (10 ** drawn.uniform(8, 12) for _ in range(30))])


class Tests:
    """A copy of the build's list of tests, so that ctest's own files lie elsewhere than in the build."""

    def __init__(self, build, folder):
        self.folder = folder / "ctest"
        self.seconds = {}  # of each test of the last run
        self.folder.mkdir()
        (self.folder / "CTestTestfile.cmake").write_text(f'subdirs("{build}")\n')
        self.folder.chmod(0o777)

    def take_times(self, report):
        """{test: (status, reason)} of a report of ctest; keeps how long each test took."""
        results = {}
        self.seconds = {}
        for case in xml.parse(report).getroot().iter("testcase"):
            text = case.findtext("system-out") or ""
            self.seconds[case.get("name")] = float(case.get("time", 0))
            if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
                results[case.get("name")] = ("skipped", reason_of(text))
            elif case.get("status") == "fail":
                results[case.get("name")] = ("failed", text)
            else:
                results[case.get("name")] = ("passed", "")
        return results

    def run(self, restriction, temporary, parallel, show):
        """{test: (status, reason)} under the restriction, and seconds."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        shutil.rmtree(self.folder / "Testing", ignore_errors=True)  # of another user, perhaps
        environment = os.environ | {"TMPDIR": str(temporary)}
        for name, value in restriction.variables.items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        command = [*restriction.prefix, "ctest", "--test-dir", self.folder, "--parallel", str(parallel), "--quiet",
                   "--output-junit", report, "--test-output-size-passed", "100000", "--test-output-size-failed", "100000",
                   *restriction.tests]
        began = time.monotonic()
        ran = subprocess.run(list(map(str, command)), env=environment, preexec_fn=restriction.before, umask=restriction.umask,
                             text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if not report.exists():
            raise Absent("ctest made no report under it: " + (ran.stdout.strip().splitlines() or ["no word"])[-1])
        results = self.take_times(report)
        for test, (status, text) in results.items():
            if status == "failed":
                show(f"--- {restriction.name}: {test}\n{text[-4000:]}")
        return results, time.monotonic() - began

    def no_longer_than(self, seconds):
        """ctest's flags for the tests that took no longer in the last run."""
        return self.only(lambda test: self.seconds.get(test["name"], math.inf) <= seconds)

    def those_that_read(self, readers):
        """ctest's flags for the tests whose commands stand in the file (tests/support/process/own_folder.hpp), and for the
        pages' commands, which have a home of their own."""
        commands = {tuple(line.split("\0")[:-1]) for line in readers.read_text(encoding="utf-8").split("\n")}
        return self.only(lambda test: tuple(test.get("command", ())) in commands or test["name"] == "readme")

    def only(self, wanted):
        """ctest's flags for some tests; ctest knows a list of tests by their numbers."""
        told = subprocess.run(["ctest", "--test-dir", self.folder, "--show-only=json-v1"], text=True, stdout=subprocess.PIPE, check=True)
        numbers = [str(at) for at, test in enumerate(json.loads(told.stdout)["tests"], 1) if wanted(test)]
        chosen = self.folder / "chosen"
        chosen.write_text(",".join(["0", "0", "0", *numbers]))
        return "-I", chosen


def reason_of(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for at, line in enumerate(lines[:-1]):
        if line.endswith(": Skipped"):
            return lines[at + 1]
    return next((line for line in reversed(lines) if not line.startswith("[")), "no reason given")


def count(results, status):
    return sum(1 for one, _ in results.values() if one == status)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[], help="restrictions whose names contain one of these")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--together", nargs="+", default=[], help="groups of such names, with commas between them")
    parser.add_argument("--rates", nargs="+", default=[])
    parser.add_argument("--longest", type=float, default=3, help="seconds that a test may take to be run under a restriction")
    parser.add_argument("--times", type=Path, help="ctest's report of a run as the machine is")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=len(os.sched_getaffinity(0)) + 1)
    parser.add_argument("--failures", type=Path, help="the output of failed tests goes there")
    options = parser.parse_args()
    failures = open(options.failures, "w") if options.failures else None

    def show(text):
        print(text, file=failures or sys.stderr, flush=True)

    rows, absent = [], []
    with tempfile.TemporaryDirectory(prefix="tandem-machines-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        temporary = folder / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        tests = Tests(options.build.resolve(), folder)
        readers, reading = folder / "readers", None
        readers.touch()
        readers.chmod(0o666)
        chosen = [] if options.rates else list(makers(folder).items())
        plans = [(label, lambda rate=rate, which=which: {"variables": {"TANDEM_TEST_RATE": f"{rate:.6g}"}, "tests": which})
                 for label, rate, which in rates_of(options)]
        whole = ("-R", QUICK, "-LE", "long$") if options.quick else ("-LE", "long$")
        if options.times:
            rows.append((AS_IT_IS, tests.take_times(options.times)))
            whole = tests.no_longer_than(options.longest)
            chosen = [(label, make) for label, make in chosen if label != AS_IT_IS]
        groups = options.together or ([] if options.apart or options.only or options.quick or options.rates else GROUPS)
        if groups:
            chosen = [one for one in chosen if one[0] == AS_IT_IS] + [together(group, makers(folder), absent) for group in groups]
            plans = [] if options.together else plans
        for label, make in chosen + plans:
            if options.only and not any(part in label for part in options.only):
                continue
            try:
                given = make()
                if options.rates:
                    given["tests"] = reading or ()
                    given["variables"] |= {} if reading else {"TANDEM_TEST_RATE_READERS": str(readers)}
                restriction = Restriction(label, **({"tests": whole} | given))
                results, seconds = tests.run(restriction, temporary, options.parallel, show)
            except Absent as why:
                absent.append(f"{label}: {why}")
                print(f"{label:28} not tried: {why}", file=sys.stderr, flush=True)
                continue
            rows.append((label, results))
            if label == AS_IT_IS and not options.quick:
                whole = tests.no_longer_than(options.longest)
            if options.rates:
                reading = reading or tests.those_that_read(readers)
            print(f"{label:28} passed {count(results, 'passed'):5}  failed {count(results, 'failed'):3}  "
                  f"skipped {count(results, 'skipped'):4}  {seconds:6.0f} s", file=sys.stderr, flush=True)
            for test, (status, _) in results.items():
                if status == "failed":
                    print(f"  failed   {test}", file=sys.stderr, flush=True)
    plain = dict(rows).get(AS_IT_IS, {})
    more_skips = sorted({f"{label}: {reason}" for label, results in rows for test, (status, reason) in results.items()
                         if status == "skipped" and plain.get(test, ("", ""))[0] == "passed"})
    for line in more_skips:
        print(f"skipped under {line}", file=sys.stderr)
    failed = [f"{label}: {test}" for label, results in rows for test, (status, _) in results.items() if status == "failed"]
    print(json.dumps({"restrictions": len(rows), "runs_of_tests": sum(len(results) for _, results in rows), "failed": len(failed),
                      "failed_under": failed[:20],
                      "not_tried": absent, "skips_by_a_restriction": len(more_skips)}))
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
