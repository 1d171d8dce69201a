#!/usr/bin/env python3
"""./tandem test --gpu: all that a GPU can be asked on its first day, one step after another, into one record.

The tests that need a GPU (their names begin with Real, in test_runtime, test_actors, test_engine and test_models), the same under
compute-sanitizer where it is installed, a training, `bench step` and `bench overlap` on the GPU, and the peers that are
installed. The record, bench/results/DATE_gpu_NAME.md, is written anew after each step; a step that fails or does not end
stops no other one. Exit 0 where all steps passed, 1 where one did not; without a GPU one line, exit 0, nothing written.
With --built it needs no compiler and no network.
"""

import argparse
import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import trust
from trust_campaigns import Campaign, FallsShort, NoFigure, passed

RESULTS = trust.ROOT / "bench/results"
QUERY = "name,driver_version,memory.total,compute_cap"
TOOLKIT = "/usr/local/cuda/bin"  # whose programs need not be in PATH
TESTS = ["test_runtime", "test_actors", "test_engine", "test_models"]
REAL = "--gtest_filter='*.Real*'"
KERNELS = "--gtest_filter='*Kernels*.Real*'"
SANITIZER = "compute-sanitizer"
BUILD = "build"  # whatever else is left out, unless the programs are built


def lines(pattern):
    """The lines of the output that match."""

    def read(output):
        found = [line.rstrip() for line in output.splitlines() if re.search(pattern, line)]
        if not found:
            raise NoFigure(f"no line like {pattern}")
        return "\n".join(found)

    return read


def tests(output):
    """GoogleTest's counts, why tests were skipped, and the names of those that failed."""
    figure = [passed(output), *dict.fromkeys(re.findall(r": Skipped\n(.*)", output)),
              *dict.fromkeys(re.findall(r"^\[  FAILED  \] [\w/.]+\.[\w/.]+", output, re.MULTILINE))]
    if figure[0].startswith("0 "):
        raise FallsShort("no test ran: " + "; ".join(figure))
    return "\n".join(figure)


def sanitized(output):
    return tests(output) + "\n" + lines(r"(ERROR|RACECHECK) SUMMARY")(output)


def steps(built, quick):
    """In their order. Whatever hangs is ended by its step's time, in minutes."""
    step_cases = " --benchmark_filter='bf16/(off|full)/iterations'" if quick else ""
    overlap_cases = " --benchmark_filter='(off|full)/1/'" if quick else ""

    def step(name, what, minutes, command, figure):
        return Campaign(name, what, "", f"timeout -k 10 {minutes}m {command}", None, figure)

    def run(through_tandem, program):
        return f"build/release/bin/{program}" if built else f"./tandem {through_tandem}"

    if not built:
        yield step(BUILD, "set up and built", 120, "./tandem build", lines("^build: "))
    yield step("doctor", "the machine", 5, run("doctor", "tandem doctor"),
               lines("^(gpu|--device|tandem|processor|cpus|memory)"))
    for program in TESTS:
        yield step(program, "tests on the GPU", 30, f"build/release/bin/{program} {REAL}", tests)
    for tool, programs in (("memcheck", TESTS), ("racecheck", ["test_actors", "test_models"])):
        for program in programs:
            cases = KERNELS if program == "test_models" else REAL  # of whole models LibTorch's kernels would take hours
            yield step(f"{tool}_{program}", f"the same under {SANITIZER}", 60,
                       f"{SANITIZER} --tool {tool} --error-exitcode 1 build/release/bin/{program} {cases}", sanitized)
    yield step("train", "the demo", 20, run("train", "finetune_zero3") + " --device cuda",
               lines(r"^(device|Summary of|  \w+( \w+)?  )"))
    yield step("step", "steps of a training", 60, run("bench step", "bench_step") + f" --device cuda{step_cases}",
               lines("^cuda/"))
    yield step("overlap", "what the schedule hides", 60,
               run("bench overlap", "bench_overlap") + f" --device cuda{overlap_cases}", lines("^engine/"))
    yield step("step_peers", "beside Transformers, and DeepSpeed's ZeRO-3 where it is installed", 60,
               f".venv/bin/python tools/bench/step_peers.py --device cuda --rounds {'1 --dtype bf16' if quick else '3'}",
               lines("^(qwen3|torch|without) "))
    yield step("adam_peers", "the CPU's Adam beside PyTorch's, and DeepSpeed's where it is installed", 60,
               ".venv/bin/python tools/bench/adam_peers.py --bench build/release/bin/bench_adam --kernel-bar 0 "
               f"--pipeline-bar 0 --threads {os.cpu_count()}{' --rounds 1' if quick else ''}", lines("."))


def gpus():
    """(What nvidia-smi says of each GPU, ""), or ([], why there is none)."""
    if shutil.which("nvidia-smi") is None:
        return [], "nvidia-smi not found"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"], text=True, capture_output=True,
                          check=False)
    found = [line for line in done.stdout.splitlines() if line.count(",") == QUERY.count(",")]
    said = (done.stdout + done.stderr).strip().splitlines()
    return (found, "") if done.returncode == 0 and found else ([], said[0] if said else "nvidia-smi lists none")


def cuda_versions():
    def version(pattern, *command):
        try:
            found = re.search(pattern, trust.output_of(*command))
        except OSError:
            found = None
        return found.group(1) if found else "unknown"

    return f"CUDA {version(r'CUDA Version: ([0-9.]+)', 'nvidia-smi')} by the driver, " \
           f"nvcc {version(r'release ([0-9.]+)', 'nvcc', '--version')}"


def page(facts, results, argv):
    """The record: the steps in a table, then the figures of each, with the end of what it printed where it failed."""
    text = [f"# A GPU's first day, {datetime.date.today()}", "", *facts, "",
            f"`{shlex.join(['./tandem', 'test', '--gpu', *argv])}`", "",
            "| step | | s |", "|---|---|---|"]
    for campaign, result, _ in results:
        text.append(f"| {campaign.name}: {campaign.what} | {'passed' if result.holds else '**FAILED**'} | {result.seconds} |")
    for campaign, result, tail in results:
        text += ["", f"## {campaign.name}", f"`{campaign.command}`", "```",
                 *(part.replace(f"{trust.ROOT}/", "") for part in (result.figure, *tail)), "```"]
    return "\n".join(text) + "\n"


def free_path(gpu):
    name = re.sub(r"[^a-z0-9]+", "_", gpu.split(",")[0].lower()).strip("_")
    stem = f"{datetime.date.today()}_gpu_{name}"
    paths = (RESULTS / f"{stem}{'' if n == 1 else f'_{n}'}.md" for n in range(1, 1000))
    return next(path for path in paths if not path.exists())


def parsed(argv):
    """The flags, and the steps that they ask for; exit code 2 where a name is none of a step."""
    parser = argparse.ArgumentParser(prog="./tandem test --gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", action="store_true",
                        help="the programs in build/release/bin as they are: nothing is set up or compiled")
    parser.add_argument("--quick", action="store_true", help="a few cases of the benchmarks, one round of the peers")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", metavar="STEP", default=[], help="these steps (and the build before them)")
    which.add_argument("--skip", nargs="+", metavar="STEP", default=[], help="all steps but these")
    flags = parser.parse_args(argv)
    whole = list(steps(flags.built, flags.quick))
    known = [step.name for step in whole if step.name != BUILD]
    for name in (*flags.only, *flags.skip):
        if name not in known:
            print(f"error: [test] unknown step {name}; the steps are {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    wanted = flags.only or [name for name in known if name not in flags.skip]
    return flags, whole, [BUILD, *wanted]


def main(argv):
    flags, whole, wanted = parsed(argv)
    found, why = gpus()
    if not found:
        print(f"test: no GPU here ({why}): nothing built, nothing written")
        return 0
    os.environ["PATH"] += f":{TOOLKIT}"
    facts = [f"GPU ({QUERY}): {gpu}" for gpu in found]
    facts += [f"Host: {trust.machine()}. {cuda_versions()}. Commit {trust.commit()}."]
    facts += ["The programs are those that lay in build/release/bin: nothing was built."] if flags.built else []
    absent = [step.name for step in whole if f" {SANITIZER} " in step.command and shutil.which(SANITIZER) is None]
    facts += [f"{SANITIZER} is not installed: left out."] if absent else []
    left_out = [step.name for step in whole if step.name not in wanted]
    facts += [f"Left out as asked: {', '.join(left_out)}."] if left_out else []
    record = free_path(found[0])
    results = []
    for campaign in (step for step in whole if step.name in wanted and step.name not in absent):
        print(f"test: {campaign.name}: {campaign.command}", flush=True)
        tail = []
        result = trust.run(campaign, whole=True, tell=tail.append)
        results.append((campaign, result, tail))
        print(f"test: {campaign.name}: {'passed' if result.holds else 'FAILED'} ({result.seconds} s)", flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        record.write_text(page(facts, results, argv), encoding="utf-8")
    if not results:
        why = f"{SANITIZER} is not installed" if absent else "no step is left"
        print(f"test: {why}: nothing was run, nothing written")
        return 1
    failed = [campaign.name for campaign, result, _ in results if not result.holds]
    print(f"test: {record.relative_to(trust.ROOT)}" + (f": FAILED: {', '.join(failed)}" if failed else ": all passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
