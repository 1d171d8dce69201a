"""CPU Adam against PyTorch and DeepSpeed, side by side: seconds per 1e9 parameters of torch's fused AdamW step and of its
whole pipeline (bf16 gradients in -> fp32, norm, clip, AdamW, bf16 weights out) next to bench_adam's, in interleaved
rounds; the same with DeepSpeedCPUAdam in AdamW's place where the Python at hand can import deepspeed and build its kernel.

    python tools/bench/adam_peers.py --bench build/release/bin/bench_adam [--elements 64e6] [--threads 2] [--rounds 7]

Absolute times move with the other loads of the machine, so what counts is the ratio within one round: torch's time over
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
    "kernel": ("adam/fp32", "AdamW, fp32 gradient"),
    "pipeline": ("pipeline/bf16", "bf16 -> norm -> clip -> AdamW -> bf16"),
    "engine": ("pipeline_fp32_accumulator/bf16", "the same against our fp32-accumulator path"),
    "split": ("pipeline/split", "the same against our split masters"),
    "bf16_moments": ("pipeline/bf16_moments", "the same against our bf16 moments"),
    "int8_moments": ("pipeline/int8_moments", "the same against our 8-bit moments"),
}


def fused_adamw(weights, learning_rate):
    return torch.optim.AdamW(weights, lr=learning_rate, fused=True)


def deepspeed_adamw(weights, learning_rate):
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam(weights, lr=learning_rate, adamw_mode=True)


class Peer:
    """AdamW over one flat tensor, as a training loop with fp32 master weights runs it."""

    def __init__(self, elements, make_optimizer, learning_rate=1e-5):
        self.elements = elements
        self.weight = torch.randn(elements).mul_(0.02).requires_grad_(True)
        self.weight.grad = torch.randn(elements).mul_(1e-3)
        self.gradient_bf16 = torch.randn(elements).mul_(1e-3).bfloat16()
        self.weight_bf16 = torch.empty(elements, dtype=torch.bfloat16)
        self.optimizer = make_optimizer([self.weight], learning_rate)

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


def make_peers(elements):
    """{name: Peer}, each after its first step, which allocates the moments."""
    peers = {}
    for name, make in (("torch", fused_adamw), ("deepspeed", deepspeed_adamw)):
        try:
            peer = Peer(elements, make)
            peer.kernel()
        except (ImportError, RuntimeError) as error:
            print(f"without {name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        peer.pipeline()
        peers[name] = peer
    return peers


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
    peers = make_peers(int(arguments.elements))
    run_ours(arguments)

    ours = {}
    theirs = {name: {"kernel": [], "pipeline": []} for name in peers}
    for _ in range(arguments.rounds):
        for name, peer in peers.items():
            for kind in ("kernel", "pipeline"):
                theirs[name][kind].append(
                    peer.seconds_per_1e9(getattr(peer, kind), arguments.repeats))
        for name, seconds in run_ours(arguments).items():
            ours.setdefault(name, []).append(seconds)

    print(f"s per 1e9 parameters, {int(arguments.elements)} elements, {arguments.threads} threads, "
          f"{arguments.rounds} interleaved rounds, torch {torch.__version__} "
          f"({torch.backends.cpu.get_cpu_capability()})")
    failed = False
    for peer in peers:
        for kind, (name, what) in PAIRS.items():
            times = theirs[peer]["kernel" if kind == "kernel" else "pipeline"]
            ratios = [t / o for t, o in zip(times, ours[name])]
            bars = {"kernel": arguments.kernel_bar, "pipeline": arguments.pipeline_bar}
            bar = bars.get(kind)
            met = bar is None or statistics.median(ratios) >= bar
            failed = failed or not met
            print(f"  {peer:9s} {what:44s} {spread(times)}")
            print(f"  ours      {name:44s} {spread(ours[name])}")
            print(f"  ratio {peer}/ours: median {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f} .. {max(ratios):.2f})"
                  + ("" if bar is None else f", bar {bar}: {'met' if met else 'MISSED'}"))
    for name in ("ceiling/fp32", "ceiling/bf16"):
        print(f"  same reads and writes without the mathematics, {name:22s} {spread(ours[name])}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
