#!/usr/bin/env python3
"""A run whose state lies on a disk that stops to answer, and answers again later.

In the middle of training the disk moves no more than a page a second for the run, writes in one round and reads in the next.
Half of the collectives' deadline later stderr must name the unit whose bytes wait; the run must go on when the disk does, and
end with the losses and the weights of a run that nothing disturbed.

    tests/drills/stalled_disk.py [--folder DIR] [--bin BIN]

DIR is on the disk; by default that of temporary files. As root, with version 1 of the blkio controller; where that is not there,
or no disk behind the folder, one line says so and the exit code is 77. The last line of the output is the summary, one JSON
object; exit code 1 where something is wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from drill import ROOT, default_bin, digits, losses, scratch

GROUP = Path("/sys/fs/cgroup/blkio") / f"tandem-stall-{os.getpid()}"
STEPS, STALLS_AT, DEADLINE_S, STALL_S = 12, 4, 4, 8
CRAWL = 4096  # bytes a second


def disk_of(folder):
    """Major and minor number of the whole disk; None: it lies on none."""
    number = os.stat(folder).st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    if not device.exists():
        return None
    return ((device.parent if (device / "partition").exists() else device) / "dev").read_text().strip()


def enter():
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def train(options, folder, name, stalls=None):
    output = folder / name
    command = [options.bin / "finetune_zero3", "--model_name", folder / "model", "--dataset_name",
               ROOT / "examples/demo/instructions.json", "--recipe", "deepspeed_example", "--dtype", "bf16", "--lr", "1e-4",
               "--batch_size", "1", "--max_length", "16", "--steps", STEPS, "--placement", "nvme", "--nvme_path", options.folder, "--nvme_any_disk",
               "--progress", "off", "--no-tensorboard", "--output_dir", output]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "TANDEM_COLLECTIVE_TIMEOUT_S": str(DEADLINE_S)}, preexec_fn=enter)
    said = []
    reader = threading.Thread(target=lambda: said.append(process.stderr.read()))
    reader.start()
    if stalls:
        while len(losses(output)) < STALLS_AT and process.poll() is None:
            time.sleep(0.01)
        rate = GROUP / f"blkio.throttle.{stalls}_bps_device"
        rate.write_text(f"{disk_of(options.folder)} {CRAWL}")
        time.sleep(STALL_S)
        during = len(losses(output))
        rate.write_text(f"{disk_of(options.folder)} 0")
    code = process.wait()
    reader.join()
    if code != 0 and not stalls:
        sys.exit(said[0])
    return {"code": code, "said": said[0], "during": during if stalls else 0, "digits": digits(output) if code == 0 else None}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--bin", type=Path, default=default_bin())
    options = parser.parse_args()
    if disk_of(options.folder) is None:
        print(f"no disk behind {options.folder}: give a folder on one with --folder")
        return 77
    try:
        GROUP.mkdir()
    except OSError as error:
        print(f"no version 1 of the blkio controller that this user may use: {error}")
        return 77
    wrong, named_units = [], 0
    try:
        with scratch() as name:
            folder = Path(name)
            demo = ROOT / "examples/demo"
            subprocess.run([options.bin / "make_model", "--config", demo / "wide_config.json", "--tokenizer", demo, "--output",
                            folder / "model"], check=True, stdout=subprocess.DEVNULL)
            straight = train(options, folder, "straight")
            for stalls in ("write", "read"):
                run = train(options, folder, stalls, stalls)
                named = [line for line in run["said"].splitlines() if "AdamW " in line and f"{stalls}_piece" in line]
                print(f"{stalls}s stand still after step {run['during']}: {named[0] if named else 'no line says so'}")
                named_units += bool(named)
                if not named:
                    wrong.append(f"{stalls}: no unit is named")
                if run["digits"] != straight["digits"]:
                    wrong.append(f"{stalls}: exit code {run['code']}, and not the digits of a straight run")
                if run["during"] >= STEPS:
                    wrong.append(f"{stalls}: the disk did not stand still")
    finally:
        GROUP.rmdir()
    for text in wrong:
        print(text)
    print(json.dumps({"trials": 2, "named": named_units, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
