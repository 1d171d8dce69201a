"""CPU Adam against PyTorch, side by side: seconds per 1e9 parameters of torch's fused AdamW step and of its whole
pipeline (bf16 gradients in -> fp32, norm, clip, AdamW, bf16 weights out) next to bench_adam's, in interleaved rounds.

    python tools/bench/adam_peers.py --bench build/release/bin/bench_adam [--elements 64e6] [--threads 2] [--rounds 7]

Absolute times move with whoever shares the machine, so what counts is the ratio within one round: torch's time over
ours, its median and its range over the rounds. Exit code 1 if a median misses its bar (--kernel-bar, --pipeline-bar).
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

import torch

# our benchmark -> torch's counterpart
PAIRS = {
    "kernel": ("adam/fp32", "fused AdamW, fp32 gradient"),
    "pipeline": ("pipeline/bf16", "bf16 -> norm -> clip -> fused AdamW -> bf16"),
    "engine": ("pipeline_fp32_accumulator/bf16", "the same against our fp32-accumulator path"),
}


class TorchPeer:
    """AdamW over one flat tensor, as a training loop with fp32 master weights runs it."""

    def __init__(self, elements, learning_rate=1e-5):
        self.elements = elements
        self.weight = torch.randn(elements).mul_(0.02).requires_grad_(True)
        self.weight.grad = torch.randn(elements).mul_(1e-3)
        self.gradient_bf16 = torch.randn(elements).mul_(1e-3).bfloat16()
        self.weight_bf16 = torch.empty(elements, dtype=torch.bfloat16)
        self.optimizer = torch.optim.AdamW([self.weight], lr=learning_rate, fused=True)

    def kernel(self):
        self.optimizer.step()

    def pipeline(self):
        with torch.no_grad():
            self.weight.grad.copy_(self.gradient_bf16)
            norm = self.weight.grad.norm().item()
            self.weight.grad.mul_(min(1.0, 1.0 / (norm + 1e-6)))
        self.optimizer.step()
        with torch.no_grad():
            self.weight_bf16.copy_(self.weight)

    def seconds_per_1e9(self, what, repeats):
        """The mean of `repeats` calls, as Google Benchmark reports the mean of its iterations."""
        start = time.perf_counter()
        for _ in range(repeats):
            what()
        return (time.perf_counter() - start) / repeats / self.elements * 1e9


def run_ours(arguments):
    """One round of bench_adam: {name without the thread count: s per 1e9 parameters}."""
    names = "|".join(ours for ours, _ in PAIRS.values())
    command = [
        arguments.bench,
        f"--elements={int(arguments.elements)}",
        f"--benchmark_filter=^({names}|ceiling/fp32|ceiling/bf16)/threads:{arguments.threads}(/|$)",
        f"--iterations={arguments.repeats}",
        "--benchmark_format=json",
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    results = {}
    for entry in json.loads(output)["benchmarks"]:
        results[entry["name"].split("/threads:")[0]] = entry["s_per_1e9"]
    return results


def spread(values):
    return f"median {statistics.median(values):6.3f}   best {min(values):6.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bench", required=True, help="the bench_adam binary")
    parser.add_argument("--elements", type=float, default=64e6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5, help="timed calls per round and kind")
    parser.add_argument("--kernel-bar", type=float, default=1.0)
    parser.add_argument("--pipeline-bar", type=float, default=1.5)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    peer = TorchPeer(int(arguments.elements))
    peer.kernel()  # first step: allocates the moments
    peer.pipeline()
    run_ours(arguments)

    ours, theirs = {}, {"kernel": [], "pipeline": []}
    for _ in range(arguments.rounds):
        for kind in theirs:
            theirs[kind].append(peer.seconds_per_1e9(getattr(peer, kind), arguments.repeats))
        for name, seconds in run_ours(arguments).items():
            ours.setdefault(name, []).append(seconds)
    theirs["engine"] = theirs["pipeline"]

    print(f"s per 1e9 parameters, {int(arguments.elements)} elements, {arguments.threads} threads, "
          f"{arguments.rounds} interleaved rounds, torch {torch.__version__} "
          f"({torch.backends.cpu.get_cpu_capability()})")
    failed = False
    for kind, (name, peer_name) in PAIRS.items():
        ratios = [t / o for t, o in zip(theirs[kind], ours[name])]
        bar = {"kernel": arguments.kernel_bar, "pipeline": arguments.pipeline_bar}.get(kind)
        met = bar is None or statistics.median(ratios) >= bar
        failed = failed or not met
        print(f"  torch {peer_name:48s} {spread(theirs[kind])}")
        print(f"  ours  {name:48s} {spread(ours[name])}")
        print(f"  ratio torch/ours: median {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f} .. {max(ratios):.2f})"
              + ("" if bar is None else f", bar {bar}: {'met' if met else 'MISSED'}"))
    for name in ("ceiling/fp32", "ceiling/bf16"):
        print(f"  same reads and writes without the mathematics, {name:22s} {spread(ours[name])}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
