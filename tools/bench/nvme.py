#!/usr/bin/env python3
"""Runs whose state, or weights too, lie on NVMe beside the same runs in memory, and beside fio on the same disk.

Each case trains a model with random weights (bf16, AdamW, one short row a step, so that the disk is what a step waits for) in
memory and then from files in --folder with as little host memory as the case says. It prints what the plan predicts and what a
step took, the bytes that a step moved over its time beside what fio moves each way with the same calls (--rw=rw, direct,
io_uring), and whether losses and saved weights are the same bytes.

  python3 tools/bench/nvme.py --folder DIR [--build build/release] [--steps 6] [--only SUBSTRING]
"""

import argparse
import hashlib
import json
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

# what lies on NVMe, layout of the state
CASES = [("state", "fp32"), ("state", "split"), ("state", "bf16"), ("state", "int8"), ("weights", "fp32"), ("weights", "int8")]


def write_config(folder, there, nvme):
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_optimizer": {"device": "cpu"}}
    if nvme is not None:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": str(nvme)}
        if there == "weights":
            zero["offload_param"] = {"device": "nvme", "max_in_cpu": 0}
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
              "bf16": {"enabled": True}, "zero_optimization": zero, "aio": {"block_size": BLOCK, "queue_depth": DEPTH},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    return path


def run(options, folder, there, layout, nvme):
    output = folder / ("there" if nvme else "memory")
    shutil.rmtree(output, ignore_errors=True)
    command = [options.build / "bin/finetune_zero3", "--model_name", folder / "model", "--dataset_name",
               DEMO / "instructions.json", "--deepspeed_config", write_config(folder, there, nvme),
               "--recipe=deepspeed_example", "--max_length=16",
               f"--steps={options.steps}", f"--optimizer_state={layout}", "--progress=off", "--no-tensorboard",
               "--output_dir", output]
    if nvme:
        command.append("--nvme_any_disk")
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{there} {layout}: exit code {done.returncode}\n{done.stderr}")
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "loss" in step and "step" in step]
    host = json.loads((output / "summary.json").read_text())["memory"]["host"]["actual_bytes"]
    weights = hashlib.sha256((output / "model" / "model.safetensors").read_bytes()).hexdigest()
    return {"losses": [step["loss"] for step in steps], "weights": weights, "host": host,
            "step_s": statistics.median(step["step_time_s"] for step in steps[WARM_UP:]),
            "said": done.stdout + done.stderr}


def planned(said):
    """Of the line of the plan: bytes there, read and written by a step, and the disk's seconds for it."""
    found = re.search(r"nvme +([\d.]+) (\w+) in .*; a step reads ([\d.]+) (\w+) and writes ([\d.]+) (\w+): ([\d.]+) s of the disk", said)
    if not found:
        sys.exit(f"no line of the disk in\n{said}")
    sizes = [float(found[k]) * UNITS[found[k + 1]] for k in (1, 3, 5)]
    return *sizes, float(found[7])


def fio(folder):
    """Bytes a second each way, of as many reads as writes."""
    with tempfile.TemporaryDirectory(dir=folder) as files:
        return rate_of_fio(files)


def rate_of_fio(folder):
    command = ["fio", "--name=state", f"--directory={folder}", "--size=1G", "--rw=rw", f"--bs={BLOCK}", f"--iodepth={DEPTH}",
               "--ioengine=io_uring", "--direct=1", "--runtime=8", "--time_based", "--output-format=json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no fio: {error}")
        return None
    job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    return (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--folder", type=Path, required=True, help="an existing folder on the disk")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="", help="cases whose text contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([options.build / "bin/make_model", "--config", DEMO / "wide_config.json", "--tokenizer", DEMO, "--output",
                        folder / "model", f"--layers={options.layers}"], check=True, stdout=subprocess.DEVNULL)
        print("| on NVMe | layout | host, memory | host, NVMe | there | a step reads, writes | planned for the disk | step, memory | "
              "step, NVMe | step over plan | of fio's bytes/s | losses, weights |")
        print("|---" * 12 + "|")
        for there, layout in (case for case in CASES if options.only in " ".join(case)):
            memory = run(options, folder, there, layout, None)
            nvme = run(options, folder, there, layout, options.folder)
            rate = fio(options.folder)
            size, read, written, seconds = planned(nvme["said"])
            moved = (read + written) / 2 / nvme["step_s"]
            same = ["the same" if memory[key] == nvme[key] else "DIFFERENT" for key in ("losses", "weights")]
            cells = [there, layout, f"{memory['host'] / MIB:.0f} MiB", f"{nvme['host'] / MIB:.0f} MiB", f"{size / MIB:.0f} MiB",
                     f"{read / MIB:.0f}, {written / MIB:.0f} MiB", f"{seconds:.2f} s", f"{memory['step_s']:.2f} s",
                     f"{nvme['step_s']:.2f} s", f"{nvme['step_s'] / seconds:.2f}", f"{moved / rate:.2f}" if rate else "-",
                     ", ".join(same)]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
