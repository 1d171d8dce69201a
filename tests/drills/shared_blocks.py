#!/usr/bin/env python3
"""Checkpoints of state on NVMe that share its blocks, on file systems made for it.

On XFS, Btrfs, and XFS that was told to share nothing, each in a file behind a loop device, a run whose state lies there saves
into a folder of the same file system. When its last save is there the run is stopped, and the kernel is asked which of the
checkpoint's bytes other files have, too: most of them where blocks are shared, and none where not. Runs go on from the
checkpoint with their state in memory and on NVMe; losses, gradient norms and weights must be those of a run that was never in
a file, and the checkpoint's files those of its checkpoint.

    tests/drills/shared_blocks.py [--folder DIR] [--bin BIN] [--only xfs] [--layers 4]

DIR is where the disks' files lie (2 GiB, of which most is never written). As root, with mkfs.xfs or mkfs.btrfs: one line says
where that is missing. A file system that cannot be made or mounted is named and left out. Without any the exit code is 77. The
last line of the output is the summary, one JSON object; exit code 1 where something is wrong.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from drill import ROOT, default_bin, digits, scratch

MAKERS = {"xfs": ["mkfs.xfs", "-q"], "btrfs": ["mkfs.btrfs", "-q"], "xfs, shares nothing": ["mkfs.xfs", "-q", "-m", "reflink=0"]}
DISK_BYTES = 2 << 30
SAVED_AT, STEPS = 4, 7

FS_IOC_FIEMAP = 0xC020660B
EXTENT_SHARED, EXTENT_LAST = 0x2000, 0x1
EXTENTS = 256  # asked for at a time


def shared_bytes(path):
    """Returns how many bytes of a file another file shares."""
    shared, at, last = 0, 0, False
    with path.open("rb") as file:
        while not last:
            request = bytearray(struct.pack("=QQLLLL", at, 2**63, 0, 0, EXTENTS, 0) + bytes(56 * EXTENTS))
            fcntl.ioctl(file, FS_IOC_FIEMAP, request)
            mapped = struct.unpack_from("=QQLLLL", request)[3]
            if mapped == 0:
                break
            for number in range(mapped):
                logical, _, length, _, _, flags, _, _, _ = struct.unpack_from("=QQQQQLLLL", request, 32 + 56 * number)
                shared += length if flags & EXTENT_SHARED else 0
                at, last = logical + length, bool(flags & EXTENT_LAST)
    return shared


class Disk:
    """A file system in a file, mounted."""

    def __init__(self, name, folder):
        self.image = folder / "disk"
        self.place = folder / "mounted"
        self.place.mkdir(exist_ok=True)
        self.problem = None
        try:
            with self.image.open("wb") as file:
                file.truncate(DISK_BYTES)
            self._run(*MAKERS[name], self.image)
            self._run("mount", "-o", "loop", self.image, self.place)
        except (OSError, subprocess.CalledProcessError) as error:
            output = (getattr(error, "stdout", None) or str(error)).strip()
            self.problem = output.splitlines()[-1] if output else f"{MAKERS[name][0]} or mount failed"

    @staticmethod
    def _run(*command):
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.problem is None:
            subprocess.run(["umount", self.place], check=False)
        self.image.unlink(missing_ok=True)


def command_of(options, model, output, steps, nvme=None, more=()):
    where = ["--placement", "nvme", "--nvme_path", nvme, "--nvme_any_disk"] if nvme else []
    return list(map(str, [options.bin / "finetune_zero3", "--model_name", model, "--dataset_name",
                          ROOT / "examples/demo/instructions.json", "--recipe", "deepspeed_example", "--dtype", "bf16", "--lr", "1e-4",
                          "--batch_size", 1, "--max_length", 16, "--steps", steps, "--save_every", SAVED_AT, "--progress", "off",
                          "--no-tensorboard", "--output_dir", output, *where, *more]))


def train(*arguments, **named):
    done = subprocess.run(command_of(*arguments, **named), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout)
    return done.stdout


def checkpoint_of(output):
    return output / "checkpoints" / f"step-{SAVED_AT:08}"


def files_of(checkpoint):
    return {file.name: file.read_bytes() for file in sorted(checkpoint.glob("*.safetensors"))}


def train_and_look(options, model, output, nvme):
    """A run that ends with a save; its bytes, and those shared while the run had its file."""
    process = subprocess.Popen(command_of(options, model, output, SAVED_AT, nvme=nvme), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    while not checkpoint_of(output).exists() and process.poll() is None:
        time.sleep(0.001)
    shared = size = None
    if process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        files = list(checkpoint_of(output).glob("*.safetensors"))
        shared, size = sum(map(shared_bytes, files)), sum(file.stat().st_size for file in files)
        process.send_signal(signal.SIGCONT)
    said = process.communicate()[0]
    if process.returncode != 0 or shared is None:
        sys.exit(f"no run to look at:\n{said}")
    return shared, size, float(re.search(r"checkpoint of step .* in ([\d.]+) s", said)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--bin", type=Path, default=default_bin())
    parser.add_argument("--only", default="")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    makers = {name: command for name, command in MAKERS.items() if options.only in name}
    if os.geteuid() != 0 or not any(shutil.which(command[0]) for command in makers.values()):
        print("needs root, and mkfs.xfs or mkfs.btrfs (xfsprogs, btrfs-progs)")
        return 77
    wrong, tried, resumed, shares = [], 0, 0, []
    with scratch() as name:
        folder = Path(name)
        demo, model = ROOT / "examples/demo", folder / "model"
        subprocess.run([options.bin / "make_model", "--config", demo / "wide_config.json", "--tokenizer", demo, "--output", model,
                        f"--layers={options.layers}"], check=True, stdout=subprocess.DEVNULL)
        train(options, model, folder / "memory", STEPS)
        straight = digits(folder / "memory")
        saved = files_of(checkpoint_of(folder / "memory"))
        for which in makers:
            with Disk(which, options.folder or folder) as disk:
                if disk.problem:
                    print(f"{which}: left out: {disk.problem}")
                    continue
                tried += 1
                output = disk.place / "run"
                shared, size, seconds = train_and_look(options, model, output, disk.place)
                print(f"{which}: {shared / 1e6:.1f} MB of {size / 1e6:.1f} MB shared, saved in {seconds:.2f} s", flush=True)
                if files_of(checkpoint_of(output)) != saved:
                    wrong.append(f"{which}: not the files that a run in memory saves")
                expected = which != "xfs, shares nothing"
                shares += [shared / size] if expected else []
                if shared > 0 if not expected else shared < 0.9 * size:
                    wrong.append(f"{which}: {shared} of {size} bytes are shared")
                for how, nvme in (("in memory", None), ("on NVMe", disk.place)):
                    copy = folder / f"resumed-{tried}-{how.replace(' ', '-')}"
                    subprocess.run(["cp", "-a", output, copy], check=True)
                    train(options, model, copy, STEPS, nvme=nvme, more=["--resume", "auto"])
                    if digits(copy) == straight:
                        resumed += 1
                    else:
                        wrong.append(f"{which}, resumed {how}: not the digits of a straight run")
    for text in wrong:
        print(text)
    if tried == 0:
        return 77
    print(json.dumps({"file_systems": tried, "shared_percent": int(1000 * min(shares)) / 10 if shares else None, "resumed": resumed, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
