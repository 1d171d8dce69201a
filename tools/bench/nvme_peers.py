#!/usr/bin/env python3
"""A training step whose optimizer state lies on a disk: ours, DeepSpeed's ZeRO-3 and PyTorch with its state in mapped files.

All train the same model from the same random weights: bf16 weights, fp32 masters and moments of AdamW on the disk in --folder,
rows of 16 tokens, so that the disk is what a step waits for, clipping by the norm, and no more memory than --memory_mib (a cgroup of
its own for each run, page cache included; DeepSpeed, whose start has all state in memory, gets --deepspeed_mib). Runs
alternate, and the ratio is taken round by round. As root, with version 1 of the memory controller.

  deepspeed  offload_optimizer.device nvme with its async_io (libaio, past the page cache), reads and writes pipelined
  mapped     torch's fused AdamW unit by unit on tensors of torch.from_file(shared=True), and threads that tell the kernel what comes:
             two units are read ahead (the first ones beside forward and backward), in pieces of which the kernel reads all ahead, a
             unit is written back as soon as it is updated, and what is written leaves the page cache

  python3 tools/bench/nvme_peers.py --folder DIR [--layers 16] [--rounds 3] [--sides ours mapped deepspeed]

with a Python that has torch and transformers, and deepspeed for that side.
"""

import argparse
import concurrent.futures
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nvme

GROUP = Path("/sys/fs/cgroup/memory") / f"tandem-nvme-{os.getpid()}"
ROWS, LENGTH = 1, 16
LR, DECAY = 1e-4, 0.01

AHEAD = 2  # units


def model_of(checkpoint):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).train()


def tokens_of(model):
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, model.config.vocab_size, (ROWS, LENGTH), generator=generator)


def timed(step, steps):
    """Losses and times of all steps."""
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - start)
    return {"losses": losses, "times": times}


def deepspeed_run(checkpoint, folder, steps):
    import deepspeed

    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29518"}
    os.environ.update(alone)
    model = model_of(checkpoint)
    batch = tokens_of(model)
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": nvme.CLIPPING, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": DECAY}},
        "aio": {"block_size": nvme.BLOCK, "queue_depth": nvme.DEPTH, "overlap_events": True, "single_submit": False},
        "zero_optimization": {
            "stage": 3, "sub_group_size": 8_000_000, "stage3_param_persistence_threshold": 0,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(folder), "pin_memory": False, "buffer_count": 12,
                                  "pipeline_read": True, "pipeline_write": True}}})  # fmt: skip

    def step():
        loss = engine(input_ids=batch, labels=batch, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        return loss.item()

    return timed(step, steps)


class MappedFile:
    """A file, the addresses that torch has mapped it to, and what the kernel can be told about it."""

    libc = ctypes.CDLL(None, use_errno=True)
    MADV_DONTNEED = 4
    SYNC_WRITE, SYNC_WRITE_AND_WAIT = 2, 7  # of sync_file_range

    def __init__(self, path, tensor):
        self.descriptor = os.open(path, os.O_RDWR)
        self.address = tensor.data_ptr()
        self.size = tensor.numel() * tensor.element_size()
        disk = os.stat(path).st_dev
        most = int(Path(f"/sys/class/bdi/{os.major(disk)}:{os.minor(disk)}/read_ahead_kb").read_text()) << 10
        self.piece = max(min(most, nvme.BLOCK), 64 << 10)  # a call has no more than `most` read ahead

    def call(self, name, *arguments):
        if getattr(self.libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), name)

    def read_ahead(self):
        for at in range(0, self.size, self.piece):
            os.posix_fadvise(self.descriptor, at, self.piece, os.POSIX_FADV_WILLNEED)

    def sync(self, how):
        self.call("sync_file_range", self.descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(how))

    def write_back(self):
        self.sync(self.SYNC_WRITE)
        self.sync(self.SYNC_WRITE_AND_WAIT)
        self.call("madvise", ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), self.MADV_DONTNEED)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def mapped_run(checkpoint, folder, steps):
    import torch

    model = model_of(checkpoint)
    batch = tokens_of(model)
    units = [list(layer.parameters()) for layer in model.model.layers]
    inside = {id(p) for unit in units for p in unit}
    units.append([p for p in model.parameters() if id(p) not in inside])

    class Unit:
        def __init__(self, number, parameters):
            elements = sum(p.numel() for p in parameters)
            self.weights = torch.cat([p.detach().reshape(-1) for p in parameters])
            self.gradient = torch.zeros_like(self.weights)
            at = 0
            for p in parameters:
                p.data = self.weights[at:at + p.numel()].view_as(p)
                p.grad = self.gradient[at:at + p.numel()].view_as(p)
                at += p.numel()
            paths = [folder / f"{number}-{what}" for what in ("master", "exp_avg", "exp_avg_sq")]
            for path in paths:  # written once, so that the disk's blocks are found before the first step
                with path.open("wb") as file:
                    for at in range(0, 4 * elements, nvme.MIB):
                        file.write(bytes(min(nvme.MIB, 4 * elements - at)))
            self.state = [torch.from_file(str(path), shared=True, size=elements, dtype=torch.float32) for path in paths]
            self.state[0].copy_(self.weights)
            self.files = [MappedFile(path, tensor) for path, tensor in zip(paths, self.state)]
            self.write_back()
            self.steps = torch.zeros(())

        def read_ahead(self):
            for file in self.files:
                file.read_ahead()

        def write_back(self):
            for file in self.files:
                file.write_back()

        def update(self, scale):
            self.steps += 1
            gradient = self.gradient.float().mul_(scale)
            master, first, second = self.state
            torch._fused_adamw_([master], [gradient], [first], [second], [], [self.steps], lr=LR, beta1=0.9, beta2=0.999,
                                weight_decay=DECAY, eps=1e-8, amsgrad=False, maximize=False)
            self.weights.copy_(master)
            self.gradient.zero_()

    made = [Unit(number, parameters) for number, parameters in enumerate(units)]
    reader, writer = (concurrent.futures.ThreadPoolExecutor(max_workers=1) for _ in range(2))
    written = {}

    def step():
        for unit in made[:AHEAD]:
            reader.submit(unit.read_ahead)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        norm = torch.sqrt(sum(unit.gradient.float().square().sum() for unit in made))
        scale = min(1.0, nvme.CLIPPING / (norm.item() + 1e-6))
        for number, unit in enumerate(made):
            if number + AHEAD < len(made):
                reader.submit(made[number + AHEAD].read_ahead)
            if number in written:
                written[number].result()
            unit.update(scale)
            written[number] = writer.submit(unit.write_back)
        return loss.item()

    return timed(step, steps)


PEERS = {"deepspeed": deepspeed_run, "mapped": mapped_run}


def limit_of(options, side):
    return options.deepspeed_mib if side == "deepspeed" else options.memory_mib


def enter_group(limit_mib):
    """Limits the child's memory; called in the child before it becomes the program."""
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.limit_in_bytes").write_text(str(limit_mib * nvme.MIB))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))


def of_peer(options, side, checkpoint):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, __file__, "--folder", folder, "--side", side, "--checkpoint", checkpoint,
                   "--steps", options.steps]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              preexec_fn=lambda: enter_group(limit_of(options, side)))
    if done.returncode != 0:
        sys.exit(f"{side}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def of_ours(options, folder):
    done = nvme.run(options, folder, "state", "fp32", options.folder, preexec_fn=lambda: enter_group(options.memory_mib))
    return {"losses": done["losses"], "times": done["times"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=nvme.ROOT / "build/release")
    parser.add_argument("--folder", type=Path, required=True, help="an existing folder on the disk")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory_mib", type=int, default=1600, help="of each run, page cache included")
    parser.add_argument("--deepspeed_mib", type=int, default=4096)
    parser.add_argument("--sides", nargs="+", default=["ours", *PEERS])
    parser.add_argument("--side", help="run this one here: what the rounds do")
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(PEERS[options.side](options.checkpoint, options.folder, options.steps)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nvme.make_model(options, folder)
        seconds = {side: [] for side in options.sides}
        for number in range(options.rounds):
            for side in options.sides:
                done = of_ours(options, folder) if side == "ours" else of_peer(options, side, folder / "model")
                seconds[side].append(statistics.median(done["times"][nvme.WARM_UP:]))
                peak = int((GROUP / "memory.max_usage_in_bytes").read_text()) / nvme.MIB
                print(f"round {number + 1}: {side} {seconds[side][-1]:.2f} s, memory at most {peak:.0f} MiB of "
                      f"{limit_of(options, side)}, losses {done['losses'][0]:.3f} ... {done['losses'][-1]:.3f}", flush=True)
                GROUP.rmdir()
        print("\n| side | step, median of rounds | ours is faster by, round by round |\n|---|---|---|")
        for side, times in seconds.items():
            ratios = [peer / own for peer, own in zip(times, seconds.get("ours", []))]
            said = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
            print(f"| {side} | {statistics.median(times):.2f} s | {said} |")


if __name__ == "__main__":
    main()
