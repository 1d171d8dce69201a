#!/usr/bin/env python3
"""Images/s of the engine on the CIFAR-10 net beside PyTorch's plain loop, side by side in one run.

PyTorch runs the tutorial's loop (zero_grad, forward, cross entropy, backward, SGD with momentum) on batches that are ready
in memory, and the same with AdamW and clipping, which is what the engine does; each at every thread setting, the best one
counts. The engine runs bench_cifar: its loader makes the batches, and it clips and takes AdamW steps. Rounds alternate, so
that a machine whose speed drifts does not decide; ratios are taken round by round.

  .venv/bin/python tools/bench/cifar_peers.py [--build build/release] [--rounds 5] [--batch 4 16]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

SECONDS = 1.5
BATCHES = 50


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(functional.relu(self.fc2(x)))


class Loop:
    def __init__(self, kind, batch, threads):
        torch.manual_seed(0)
        self.kind, self.batch, self.threads = kind, batch, threads
        self.net = Net()
        if kind == "sgd":
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, momentum=0.9)
        else:
            self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, betas=(0.8, 0.999), fused=True)
        self.images = torch.randn(BATCHES, batch, 3, 32, 32)
        self.labels = torch.randint(0, 10, (BATCHES, batch))
        self.loss = nn.CrossEntropyLoss()

    def step(self, i):
        self.optimizer.zero_grad()
        loss = self.loss(self.net(self.images[i % BATCHES]), self.labels[i % BATCHES])
        loss.backward()
        if self.kind == "adamw":
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def round(self):
        torch.set_num_threads(self.threads)
        for i in range(BATCHES):
            self.step(i)
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            self.step(steps)
            steps += 1
        return steps * self.batch / (time.perf_counter() - start)


def ours(args, batch, threads, overlap):
    name = f"cifar/batch_{batch}/threads_{threads}/stage_{args.stage}/{overlap}"
    command = [str(args.build / "bin" / "bench_cifar"), f"--benchmark_filter=^{name}/", "--benchmark_format=json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return report["benchmarks"][0]["images_per_s"]


def compare(args, batch):
    peers = {(kind, threads): Loop(kind, batch, threads) for kind in ("sgd", "adamw") for threads in args.threads}
    mine = {(overlap, threads): [] for overlap in args.overlap for threads in args.threads}
    rates = {key: [] for key in peers}
    for _ in range(args.rounds):
        for overlap, threads in mine:
            mine[overlap, threads].append(ours(args, batch, threads, overlap))
        for key, peer in peers.items():
            rates[key].append(peer.round())
    best = {}
    for kind in ("sgd", "adamw"):
        for threads in args.threads:
            print(f"batch {batch:2d}  torch {kind:5s} {threads} threads: {statistics.median(rates[kind, threads]):8.0f} images/s")
        best[kind] = max((rates[kind, threads] for threads in args.threads), key=statistics.median)
    for (overlap, threads), values in mine.items():
        text = f"batch {batch:2d}  tandem {overlap:7s} {threads} threads: {statistics.median(values):8.0f} images/s"
        for kind in ("sgd", "adamw"):
            ratios = [a / b for a, b in zip(values, best[kind])]
            text += f", {statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}) x the best {kind}"
        print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[2] / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", nargs="+", type=int, default=[4, 16], choices=[4, 16])
    parser.add_argument("--stage", type=int, default=0, choices=[0, 3])
    parser.add_argument("--overlap", nargs="+", default=["off", "offload"], choices=["off", "offload"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], choices=[1, 2])
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {os.cpu_count()} CPUs, stage {args.stage}, {args.rounds} rounds, medians", flush=True)
    for batch in args.batch:
        compare(args, batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
