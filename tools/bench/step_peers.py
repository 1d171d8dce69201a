#!/usr/bin/env python3
"""Tokens/s of the engine and of PyTorch + transformers on the same model, side by side in one run.

Both train the same Qwen3 shape (19.8 M parameters) from the same weights on the same tokens: forward, backward, clipping at
1.0, AdamW (lr 1e-4, weight decay 0.01). Rounds alternate, so that a machine whose speed drifts does not decide; the ratio is
taken round by round. PyTorch runs at each thread setting, and the best one counts. The first three losses are printed for
both: in fp32 they must agree.

  .venv/bin/python tools/bench/step_peers.py [--build build/release] [--rounds 5] [--dtype fp32 bf16]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

ROWS, LENGTH, STEPS = 8, 256, 5
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4096, "hidden_size": 512,
    "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 64, "max_position_embeddings": 1024, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "attention_bias": False, "initializer_range": 0.02, "torch_dtype": "float32",
}  # fmt: skip


def tokens():
    state, values = 1, []
    for _ in range(ROWS * LENGTH):
        state = (1664525 * state + 1013904223) % 2**32
        values.append((state >> 8) % CONFIG["vocab_size"])
    return torch.tensor(values).reshape(ROWS, LENGTH)


class Torch:
    """The usual eager loop, sdpa attention, fused AdamW; bf16 means weights, gradients and moments in bf16."""

    def __init__(self, checkpoint, dtype, threads):
        torch.set_num_threads(threads)
        self.threads = threads
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="sdpa", dtype=kind).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.batch = tokens()
        self.losses = [self.step() for _ in range(3)]

    def step(self):
        loss = self.model(input_ids=self.batch, labels=self.batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def round(self):
        torch.set_num_threads(self.threads)
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return ROWS * LENGTH / statistics.median(times)


def ours(build, dtype, overlap):
    name = f"step/qwen3_20m/{ROWS}x{LENGTH}/{dtype}/{overlap}"
    command = [str(build / "bin" / "bench_step"), f"--benchmark_filter=^{name}/min_time", "--benchmark_format=json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    entry = report["benchmarks"][0]
    return entry["tokens_per_s"], [entry[f"loss_{i}"] for i in (1, 2, 3)]


def median(values):
    return statistics.median(values)


def compare(args, dtype, checkpoint):
    peers = [Torch(checkpoint, dtype, threads) for threads in args.threads]
    rates = {peer.threads: [] for peer in peers}
    mine = {overlap: [] for overlap in args.overlap}
    losses = None
    for _ in range(args.rounds):
        for overlap in args.overlap:
            rate, losses = ours(args.build, dtype, overlap)
            mine[overlap].append(rate)
        for peer in peers:
            rates[peer.threads].append(peer.round())
    best = max(rates, key=lambda threads: median(rates[threads]))
    for threads, values in rates.items():
        print(f"{dtype}  torch {threads} threads: {median(values):8.0f} tokens/s" + ("  (best)" if threads == best else ""))
    for overlap, values in mine.items():
        ratios = [a / b for a, b in zip(values, rates[best])]
        print(f"{dtype}  tandem {overlap:8s}: {median(values):8.0f} tokens/s, ratio {median(ratios):.2f}"
              f" ({min(ratios):.2f} .. {max(ratios):.2f})")
    for overlap in mine:
        if overlap == "off" or "off" not in mine:
            continue
        gains = [a / b for a, b in zip(mine[overlap], mine["off"])]
        print(f"{dtype}  {overlap} over off: {median(gains):.3f} ({min(gains):.3f} .. {max(gains):.3f})")
    print(f"{dtype}  losses tandem {losses}\n{dtype}  losses torch  {peers[0].losses}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[2] / "build" / "release")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--overlap", nargs="+", default=["off", "full"], choices=["off", "comm", "offload", "full"])
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIG))
        checkpoint = Path(folder) / "checkpoint"
        subprocess.run([str(args.build / "bin" / "make_model"), "--config", str(config), "--seed", "0",
                        "--output", str(checkpoint)], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        print(f"torch {torch.__version__}, {os.cpu_count()} CPUs, {args.rounds} rounds, medians", flush=True)
        for dtype in args.dtype:
            compare(args, dtype, checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())
