#!/usr/bin/env python3
"""Tokens/s of the engine, of PyTorch + transformers, and of DeepSpeed on the same models, side by side in one run.

All train a small model of each family (20 to 60 million parameters) from the same weights on the same tokens: forward,
backward, clipping at 1.0, AdamW (lr 1e-4, weight decay 0.01). Rounds alternate, so that a machine whose speed drifts does not
decide; the ratio is taken round by round. PyTorch runs eagerly at each thread setting, and compiled by torch.compile, in bf16
also as autocast over fp32 weights; the time of compiling is printed and not in the rates. Where deepspeed can be imported, its
ZeRO-3 with the optimizer on the CPU is another side. The first three losses are printed for each: in fp32 they must agree.
--device cuda: all on the GPU, DeepSpeed's with the optimizer on the CPU, ours with its state where the solver puts it.
--config: of this model instead, in this shape.

  .venv/bin/python tools/bench/step_peers.py [--family qwen3 llama ... | --config FILE --rows 8 --length 1024]
      [--build build/release] [--rounds 5] [--dtype fp32 bf16] [--device cuda]
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
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM

STEPS = 5
VOCABULARY = 4096
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 1024, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True, "attention_bias": False,
    "attention_dropout": 0.0, "initializer_range": 0.02, "pad_token_id": None, "torch_dtype": "float32",
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}
FAMILIES = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 64},
    "llama": {"architectures": ["LlamaForCausalLM"],
              "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                               "original_max_position_embeddings": 512}},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "tie_word_embeddings": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
             "original_max_position_embeddings": 1024},
    "seed_oss": {"architectures": ["SeedOssForCausalLM"], "head_dim": 64, "attention_bias": True, "residual_dropout": 0.0,
                 "attention_out_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_embd": 512, "n_head": 8, "n_layer": 6, "n_positions": 1024,
             "activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
             "layer_norm_epsilon": 1e-5},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 64, "num_experts": 8, "moe_intermediate_size": 512,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 4, **EXPERTS},
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "head_dim": 64, "attention_bias": True, "sliding_window": 128,
                "num_local_experts": 8, "intermediate_size": 512, "num_hidden_layers": 4, "swiglu_limit": 7.0,
                "tie_word_embeddings": False,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                 "original_max_position_embeddings": 256}, **EXPERTS},
}  # fmt: skip


class Case(NamedTuple):
    family: str
    config: Path
    checkpoint: Path
    vocabulary: int
    rows: int
    length: int


def config_of(family):
    return {"model_type": family, **SMALL, **FAMILIES[family]}


def tokens(case):
    state, values = 1, []
    for _ in range(case.rows * case.length):
        state = (1664525 * state + 1013904223) % 2**32
        values.append((state >> 8) % case.vocabulary)
    return torch.tensor(values).reshape(case.rows, case.length)


class Torch:
    """The usual eager loop, sdpa attention, fused AdamW; bf16 means weights, gradients and moments in bf16."""

    kind = "torch"
    compiles = False
    autocasts = False  # over fp32 weights

    def __init__(self, case, dtype, threads, device):
        torch.set_num_threads(threads)
        self.threads, self.tokens = threads, case.rows * case.length
        kind = torch.bfloat16 if dtype == "bf16" and not self.autocasts else torch.float32
        # gpt-oss has sinks, which sdpa cannot say.
        attention = "eager" if case.family == "gpt_oss" else "sdpa"
        self.model = AutoModelForCausalLM.from_pretrained(
            case.checkpoint, attn_implementation=attention, experts_implementation="eager", dtype=kind
        ).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        self.batch = tokens(case).to(device)
        if self.compiles:
            self.model.compile()
        start = time.perf_counter()
        self.losses = [self.step() for _ in range(3)]
        if self.compiles:
            print(f"{case.family:10s}{dtype}  {self.kind}: the first three steps took {time.perf_counter() - start:.1f} s", flush=True)
        self.leave()

    def step(self):
        with torch.autocast(self.batch.device.type, torch.bfloat16, enabled=self.autocasts):
            loss = self.model(input_ids=self.batch, labels=self.batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def leave(self):
        if self.batch.is_cuda:
            torch.cuda.empty_cache()  # the others' rounds find the GPU's memory

    def round(self):
        torch.set_num_threads(self.threads)
        times = []
        for _ in range(STEPS):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        self.leave()
        return self.tokens / statistics.median(times)


class Compiled(Torch):
    kind = "compiled"
    compiles = True


class Autocast(Compiled):
    kind = "compiled, autocast"
    autocasts = True


class DeepSpeed(Torch):
    """ZeRO-3 with DeepSpeed's Adam on the CPU, as our own side is configured; bf16 computes over fp32 masters."""

    kind = "deepspeed"

    def __init__(self, case, dtype, threads, device):
        import deepspeed

        torch.set_num_threads(threads)
        self.threads, self.tokens = threads, case.rows * case.length
        alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        os.environ.update({name: os.environ.get(name, value) for name, value in alone.items()})
        model = AutoModelForCausalLM.from_pretrained(case.checkpoint, dtype=torch.float32).train()
        self.engine, *_ = deepspeed.initialize(model=model, config={
            "train_micro_batch_size_per_gpu": case.rows, "gradient_clipping": 1.0, "bf16": {"enabled": dtype == "bf16"},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})  # fmt: skip
        self.batch = tokens(case).to(device)
        self.losses = [self.step() for _ in range(3)]
        self.leave()

    def step(self):
        loss = self.engine(input_ids=self.batch, labels=self.batch, use_cache=False).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss.item()


def ours(build, case, dtype, way, device):
    overlap, placement = way
    name = f"{'step' if device == 'cpu' else device}/{case.family}/{case.rows}x{case.length}/{dtype}/{overlap}"
    command = [str(build / "bin" / "bench_step"), f"--config={case.config}", f"--rows={case.rows}", f"--length={case.length}",
               f"--device={device}", f"--placement={placement}", f"--benchmark_filter=^{name}/(min_time|iterations)",
               "--benchmark_format=json"]  # fmt: skip
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    entry = report["benchmarks"][0]
    return entry["tokens_per_s"], [entry[f"loss_{i}"] for i in (1, 2, 3)]


def median(values):
    return statistics.median(values)


def make_peers(args, dtype, case):
    peers = [Torch(case, dtype, threads, args.device) for threads in args.threads]
    for kind in [Compiled, *([Autocast] if dtype == "bf16" else []), DeepSpeed]:
        try:
            peers.append(kind(case, dtype, max(args.threads), args.device))
        except Exception as error:  # not there, no compiler, an optimizer that does not build: as many kinds as reasons
            print(f"without {kind.kind}: {str(error).splitlines()[0] if str(error) else type(error).__name__}", file=sys.stderr)
    return peers


def compare(args, dtype, case):
    peers = make_peers(args, dtype, case)
    family = case.family
    rates = {peer: [] for peer in peers}
    mine = {(overlap, placement): [] for overlap in args.overlap for placement in args.placement}
    losses = None
    for _ in range(args.rounds):
        for way, values in mine.items():
            rate, losses = ours(args.build, case, dtype, way, args.device)
            values.append(rate)
        for peer in peers:
            rates[peer].append(peer.round())
    best = {kind: max((peer for peer in peers if peer.kind == kind), key=lambda peer: median(rates[peer]))
            for kind in dict.fromkeys(peer.kind for peer in peers)}
    for peer, values in rates.items():
        print(f"{family:10s}{dtype}  {peer.kind} {peer.threads} threads: {median(values):8.0f} tokens/s"
              + ("  (best)" if peer in best.values() else ""))
    for (overlap, placement), values in mine.items():
        name = overlap if placement == "auto" else f"{overlap}, state on {placement}"
        text = f"{family:10s}{dtype}  tandem {name:8s}: {median(values):8.0f} tokens/s"
        for kind, peer in best.items():
            ratios = [a / b for a, b in zip(values, rates[peer])]
            text += f", {'ratio' if kind == 'torch' else f'over {kind}'} {median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
        print(text)
    for (overlap, placement), values in mine.items():
        if overlap == "off" or ("off", placement) not in mine:
            continue
        gains = [a / b for a, b in zip(values, mine["off", placement])]
        print(f"{family:10s}{dtype}  {overlap} over off: {median(gains):.3f} ({min(gains):.3f} .. {max(gains):.3f})")
    print(f"{family:10s}{dtype}  losses tandem {losses}")
    for kind, peer in best.items():
        print(f"{family:10s}{dtype}  losses {kind:6s} {peer.losses}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path(__file__).resolve().parents[2] / "build" / "release")
    parser.add_argument("--family", nargs="+", default=["qwen3"], choices=list(FAMILIES))
    parser.add_argument("--config", type=Path, help="config.json of a model")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--overlap", nargs="+", default=["off", "full"], choices=["off", "comm", "offload", "full"])
    parser.add_argument("--placement", nargs="+", default=["auto"], choices=["auto", "cpu", "gpu", "stream"],
                        help="where our optimizer state lies beside a GPU")
    parser.add_argument("--threads", type=int, nargs="+", help="of PyTorch on the CPU; default: 1 and all")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args()
    args.threads = args.threads or sorted({1, os.cpu_count() or 1} if args.device == "cpu" else {os.cpu_count() or 1})
    print(f"torch {torch.__version__}, {os.cpu_count()} CPUs, {args.rounds} rounds, medians", flush=True)
    configs = [json.loads(args.config.read_text())] if args.config else [config_of(family) for family in args.family]
    for values in configs:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "config.json"
            config.write_text(json.dumps(values))
            checkpoint = Path(folder) / values["model_type"]
            case = Case(values["model_type"], config, checkpoint, values["vocab_size"], args.rows, args.length)
            subprocess.run([str(args.build / "bin" / "make_model"), "--config", str(config), "--seed", "0",
                            "--output", str(checkpoint)], check=True, stdout=subprocess.DEVNULL)  # fmt: skip
            for dtype in args.dtype:
                compare(args, dtype, case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
