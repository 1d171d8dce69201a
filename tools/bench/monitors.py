#!/usr/bin/env python3
"""What monitors cost: runs of the demo's model with all of them and with none, in turns.

    python3 tools/bench/monitors.py [--what all|trace|reports] [--steps 300] [--rounds 6] [-- FLAGS OF THE TRAINER]

"All" is a config with tensorboard, csv_monitor and wandb (the module of this Python, or without one a process that reads and
drops), TensorBoard events, --trace and --status_socket, of which all three pages are asked for once a second. Ratios of
each round, all over none: of the median step, of the sum of all steps, and of the whole process, reports between steps and its
start and end included. Losses of both are compared to the last digit. --what trace: --trace alone over none. --what reports:
comms_logger (verbose), flops_profiler and wall_clock_breakdown; what flops_profiler measures the peak with lies between two
steps.
"""

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DROPS = "class Run:\n    def log(self, *_, **__): pass\n    def finish(self): pass\ndef init(**_): return Run()\n"


def scrape(path, ended):
    while not ended.wait(1):
        for page in ("/metrics", "/step", "/actors"):
            try:
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(path))
                    client.sendall(f"GET {page} HTTP/1.0\r\n\r\n".encode())
                    while client.recv(65536):
                        pass
            except OSError:
                pass  # not there yet, or no more


def train(args, folder, on):
    config = {"train_batch_size": args.batch_size, "zero_optimization": {"stage": 3}}
    if on and args.what == "reports":
        config |= {"wall_clock_breakdown": True, "comms_logger": {"enabled": True, "verbose": True},
                   "flops_profiler": {"enabled": True, "profile_step": 30}}
    monitored = on and args.what == "all"
    if monitored:
        for block in ("tensorboard", "csv_monitor", "wandb"):
            config[block] = {"enabled": True}
    (folder / "ds.json").write_text(json.dumps(config))
    if importlib.util.find_spec("wandb") is None:
        (folder / "modules").mkdir(exist_ok=True)
        (folder / "modules/wandb.py").write_text(DROPS)
    run = folder / "run"
    command = [args.build / "bin/finetune_zero3", "--deepspeed_config", folder / "ds.json", "--steps", args.steps, "--batch_size", args.batch_size, "--lr=1e-3", "--no-samples",
               "--progress=off", "--output_dir", run, *(["--trace"] if on and args.what != "reports" else []),
               *(["--status_socket=auto"] if monitored else ["--no-tensorboard"]), *args.flags]
    environment = {**os.environ, "PYTHONPATH": str(folder / "modules"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = threading.Event()
    watcher = threading.Thread(target=scrape, args=(run / "status.sock", ended))
    if monitored:
        watcher.start()
    begin = time.monotonic()
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    wall = time.monotonic() - begin
    ended.set()
    if monitored:
        watcher.join()
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}\n{done.stderr}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = [line["step_time_s"] for line in lines[20:]]
    return {"losses": [(line["loss"], line["grad_norm"]) for line in lines], "step": statistics.median(times), "sum": sum(times), "wall": wall}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--what", choices=("all", "trace", "reports"), default="all")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("flags", nargs="*", help="of the trainer, for both sides")
    args = parser.parse_args()
    ratios = {"step": [], "sum": [], "wall": []}
    equal = 0
    for number in range(args.rounds):
        found = {}
        for on in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                found[on] = train(args, Path(folder), on)
        equal += found[True]["losses"] == found[False]["losses"]
        for name, all_of_them in ratios.items():
            all_of_them.append(found[True][name] / found[False][name])
        print(f"round {number + 1}: " + ", ".join(f"{name} {values[-1]:.4f}" for name, values in ratios.items()), flush=True)
    print(json.dumps({"wandb": importlib.util.find_spec("wandb") is not None, "rounds": args.rounds, "losses_equal": equal,
                      **{name: statistics.median(values) for name, values in ratios.items()}}))


if __name__ == "__main__":
    main()
