#!/usr/bin/env python3
"""Runs whose state, or weights too, lie on NVMe beside the same runs in memory, and beside fio on the same disk.

Each case trains a model with random weights (bf16, AdamW, one short row a step, so that the disk is what a step waits for) in
memory and then from files in --folder with as little host memory as the case says. Rounds alternate: the run in memory, the run
from the disk, between two of fio. It prints, each the median of the rounds (with --record FILE also of those of earlier calls with
that file and the same --layers and --steps):

  predicted  from the plan's two times of the disk, measured in that round, and from the run in memory: updates run under the next
             forward, and what else passes through the file beside backward, so a step takes
             max(disk for updates, step in memory - its backward) + max(backward, disk for the rest);
             with updates ahead of the verdict, which run beside backward, too: max(disk for updates, step in memory)
  of fio     bytes that steps moved over the time in which the disk was busy for them (disk_busy_s of metrics.jsonl), over what fio
             moves before and behind the run with as many calls of that size, half of them reads before it and mixed as in the run
             behind it, in a file that was written before, its memory in huge pages as ours is (--ioengine=io_uring, direct)

and whether losses and saved weights are the same bytes. "ahead": with --speculate on. --threads: the cases of state once more,
without io_uring.

  python3 tools/bench/nvme.py --folder DIR [--build build/release] [--steps 6] [--rounds 3] [--only ENDING] [--threads]
                              [--record FILE]
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
MIB = 1 << 20
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30, "TiB": 1 << 40}
WARM_UP = 2  # steps
BLOCK = 1 << 20
DEPTH = 8
THREADS = 4  # without io_uring
CLIPPING = 1000.0  # a norm that no step has: updates ahead of the verdict count

# what lies on NVMe, layout of the state, how
CASES = [("state", "fp32", ""), ("state", "fp32", "ahead"), ("state", "split", ""), ("state", "bf16", ""), ("state", "int8", ""),
         ("weights", "fp32", ""), ("weights", "int8", "")]
HOW = {"": [], "ahead": ["--speculate=on"], "threads": ["--io_backend=threads"]}


def write_config(folder, there, nvme):
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_optimizer": {"device": "cpu"}}
    if nvme is not None:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": str(nvme)}
        if there == "weights":
            zero["offload_param"] = {"device": "nvme", "max_in_cpu": 0}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": CLIPPING,
              "bf16": {"enabled": True}, "zero_optimization": zero, "aio": {"block_size": BLOCK, "queue_depth": DEPTH, "intra_op_parallelism": THREADS},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
              "wall_clock_breakdown": True, "steps_per_print": 1}
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    return path


def make_model(options, folder):
    subprocess.run([options.build / "bin/make_model", "--config", DEMO / "wide_config.json", "--tokenizer", DEMO, "--output",
                    folder / "model", f"--layers={options.layers}"], check=True, stdout=subprocess.DEVNULL)


def run(options, folder, there, layout, nvme, more=(), **of_process):
    output = folder / ("there" if nvme else "memory")
    shutil.rmtree(output, ignore_errors=True)
    command = [options.build / "bin/finetune_zero3", "--model_name", folder / "model", "--dataset_name",
               DEMO / "instructions.json", "--deepspeed_config", write_config(folder, there, nvme),
               "--recipe=deepspeed_example", "--max_length=16",
               f"--steps={options.steps}", f"--optimizer_state={layout}", "--progress=off", "--no-tensorboard",
               "--output_dir", output, *more]
    if nvme:
        command.append("--nvme_any_disk")
    # The file of speeds of this run alone, so that the disk is measured now.
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              env={**os.environ, "XDG_CACHE_HOME": cache}, **of_process)
    if done.returncode != 0:
        sys.exit(f"{there} {layout}: exit code {done.returncode}\n{done.stderr}")
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "loss" in step and "step" in step]
    said = done.stdout + done.stderr
    backward = [float(found) / 1e3 for found in re.findall(r"time \(ms\).*\| bwd: ([\d.]+)", said)]
    return {"losses": [step["loss"] for step in steps], "times": [step["step_time_s"] for step in steps],
            "weights": hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest(),
            "host": json.loads((output / "summary.json").read_text())["memory"]["host"]["actual_bytes"],
            "step_s": statistics.median(step["step_time_s"] for step in steps[WARM_UP:]),
            # Updates run on into the next step, so this is of all steps together.
            "busy_s": statistics.mean(step["disk_busy_s"] for step in steps[WARM_UP:]),
            "backward_s": statistics.median(backward[WARM_UP:]), "said": said}


def planned(said):
    """Returns the plan line's figures: bytes there, read and written by a step, the disk's seconds for updates and the rest."""
    found = re.search(r"nvme +([\d.]+) (\w+) in .*; a step reads ([\d.]+) (\w+) and writes ([\d.]+) (\w+): ([\d.]+) s of the disk "
                      r"for updates(?: and ([\d.]+) s beside the rest)?", said)
    if not found:
        sys.exit(f"no line of the disk in\n{said}")
    sizes = [float(found[k]) * UNITS[found[k + 1]] for k in (1, 3, 5)]
    return *sizes, float(found[7]), float(found[8] or 0)


def fio(folder, read, written):
    """Bytes a second, read and written."""
    with tempfile.TemporaryDirectory(dir=folder) as files:
        common = ["fio", "--name=state", f"--filename={files}/state", "--size=1G", f"--bs={BLOCK}", f"--iodepth={DEPTH}",
                  "--ioengine=io_uring", "--direct=1", "--output-format=json"]
        mixed = ["--rw=rw", f"--rwmixread={round(100 * read / (read + written))}", "--runtime=2", "--time_based"]
        env = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        try:
            subprocess.run([*common, "--rw=write"], capture_output=True, text=True, check=True)
            done = subprocess.run([*common, *mixed], capture_output=True, text=True, check=True, env=env)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"no fio: {error}")
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


def round_of(options, folder, there, layout, how):
    memory = run(options, folder, there, layout, None)
    before = fio(options.folder, 1, 1)
    nvme = run(options, folder, there, layout, options.folder, HOW[how])
    size, read, written, updating, computing = planned(nvme["said"])
    backward = memory["backward_s"]
    if how == "ahead":
        predicted = max(updating, memory["step_s"])
    else:
        predicted = max(updating, memory["step_s"] - backward) + max(backward, computing)
    rate = (read + written) / nvme["busy_s"]
    fios = statistics.mean((before, fio(options.folder, read, written)))
    return {"host, memory": memory["host"], "host, NVMe": nvme["host"], "there": size, "read": read, "written": written,
            "disk, updates": updating, "disk, rest": computing, "step, memory": memory["step_s"], "backward": backward,
            "predicted": predicted, "step, NVMe": nvme["step_s"], "step over predicted": nvme["step_s"] / predicted,
            "disk busy": nvme["busy_s"] / nvme["step_s"], "GB/s": rate / 1e9, "of fio": rate / fios,
            "load": os.getloadavg()[0], "same": all(memory[key] == nvme[key] for key in ("losses", "weights"))}


def name_of(case):
    return ", ".join(filter(None, case))


def settings_of(options):
    """Returns the settings that rounds of one table share; each line of the record has them."""
    return {"layers": options.layers, "steps": options.steps}


def recorded(path, case, settings):
    """Rounds of a case in the record, with these settings; how many have others, or do not say."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    of_case = [one for one in map(json.loads, lines) if one["case"] == case]
    rounds = [one["round"] for one in of_case if one.get("settings") == settings]
    return rounds, len(of_case) - len(rounds)


BYTES = {"host, memory", "host, NVMe", "there", "read", "written"}
WITH_RANGE = {"step over predicted", "of fio"}


def print_case(name, rounds):
    cells = [f"{name}, {len(rounds)} rounds"]
    for key in rounds[0]:
        values = [one[key] for one in rounds]
        if key == "same":
            cells.append("the same" if all(values) else "DIFFERENT")
        elif key in BYTES:
            cells.append(f"{statistics.median(values) / MIB:.0f} MiB")
        elif key in WITH_RANGE:
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        else:
            cells.append(f"{statistics.median(values):.2f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--folder", type=Path, required=True, help="an existing folder on the disk")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases that end with this")
    parser.add_argument("--threads", action="store_true", help="state by threads, too")
    parser.add_argument("--record", type=Path, help="where each round is added as a line, and from which the table is made")
    options = parser.parse_args()
    cases = CASES + [(*case[:2], "threads") for case in CASES if options.threads and case[0] == "state" and not case[2]]
    if not any(name_of(case).endswith(options.only) for case in cases):
        sys.exit(f"no case ends with {options.only!r}; they are {'; '.join(map(name_of, cases))}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.rounds > 0:
            make_model(options, folder)
        head = False
        for there, layout, how in cases:
            case = name_of((there, layout, how))
            if case.endswith(options.only):
                rounds, others = recorded(options.record, case, settings_of(options))
                if others > 0:
                    print(f"{case}: {others} rounds of the record left out: not of --layers {options.layers} --steps {options.steps}",
                          file=sys.stderr)
                for _ in range(options.rounds):
                    rounds.append(round_of(options, folder, there, layout, how))
                    if options.record:
                        with options.record.open("a") as record:
                            record.write(json.dumps({"case": case, "settings": settings_of(options), "round": rounds[-1]}) + "\n")
                if not rounds:
                    continue
                if not head:
                    print("| on NVMe, layout | " + " | ".join(rounds[0]) + " |\n" + "|---" * (1 + len(rounds[0])) + "|")
                    head = True
                print_case(case, rounds)


if __name__ == "__main__":
    main()
