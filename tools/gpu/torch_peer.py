#!/usr/bin/env python3
"""Measures Transformers in PyTorch's own training loops on one GPU.

    python3 torch_peer.py --config configs/qwen3_0.6b.json --rows 8 --length 1024 --mode compile-liger --no-checkpointing

  eager, compile, liger, compile-liger   a plain loop with fused AdamW; each layer compiled; Liger's kernels in it
  fsdp2            fully_shard of each layer in a group of one rank, fused AdamW on the GPU
  fsdp2-offload    the same with CPUOffloadPolicy: weights, gradients and AdamW on the host
  torchao-offload  torchao's CPUOffloadOptimizer, which cannot clip: --clip off
--compile and --liger add to the last three. --state says how weights and moments are kept:
  fp32   masters and moments in fp32, computed in bf16: as exact as ZeRO with bf16
  bf16   all in bf16: the quickest loop, which rounds each update
Invariant: every mode trains on the same tokens with the same learning rate and clipping.
Exit codes: 0; 1 failed; 3 out of memory; 4 not possible here; 124 over --limit. The last line of stdout is the JSON, always.
"""

import contextlib
import os

from peer_common import Unusable, main_of, make_model, parser_of, random_tokens
from peer_watch import Clock, attention_operations

MODES = ["eager", "compile", "liger", "compile-liger", "fsdp2", "fsdp2-offload", "torchao-offload"]


def shard(model, args):
    """fully_shard of each layer, then of the rest, in a group of this one rank."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    on_gpu = args.device == "cuda"
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", rank=0, world_size=1,
                                         store=torch.distributed.HashStore())
    options = {"mesh": init_device_mesh(args.device, (1,))}
    if args.state == "fp32":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if args.mode == "fsdp2-offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=on_gpu)
    for part in [*model.model.layers, model]:
        fully_shard(part, **options)


def optimizer_of(model, args):
    import torch

    options = {"lr": args.lr, "weight_decay": args.weight_decay, "fused": True}
    if args.mode != "torchao-offload":
        return torch.optim.AdamW(model.parameters(), **options)
    if args.clip:
        raise Unusable("torchao's CPUOffloadOptimizer moves gradients away as they come and cannot clip: --clip off")
    try:
        from torchao.optim import CPUOffloadOptimizer
    except ImportError as error:
        raise Unusable(f"no torchao: {error}") from error
    return CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, **options)


class Loop:
    """The training loop; a step returns its loss, and `norm` is that of its gradients before clipping."""

    def __init__(self, args, model, optimizer, batch):
        self.args, self.model, self.optimizer, self.batch = args, model, optimizer, batch
        self.sharded = args.mode.startswith("fsdp2")
        self.last_norm = None

    def precision(self):
        import torch

        if self.args.state == "fp32" and not self.sharded:  # FSDP2 has its own mixed precision
            return torch.autocast(self.args.device, torch.bfloat16)
        return contextlib.nullcontext()

    def step(self):
        import torch

        micro_steps = self.args.micro_steps
        for micro in range(micro_steps):
            if self.sharded:
                self.model.set_requires_gradient_sync(micro == micro_steps - 1)
            with self.precision():
                loss = self.model(input_ids=self.batch, labels=self.batch).loss / micro_steps
            loss.backward()
        if self.args.clip:
            self.last_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item() * micro_steps

    def norm(self):
        norm = self.last_norm
        return None if norm is None else (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()


def measure(args, line, watch):
    watch.phase = "import"
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))  # for the modes whose AdamW runs on the host
    watch.phase = "model"
    model = make_model(args, torch.float32 if args.state == "fp32" else torch.bfloat16)
    line |= {"parameters": sum(weight.numel() for weight in model.parameters()), "state": args.state, "compile": args.compile,
             "threads": torch.get_num_threads()}
    for layer in model.model.layers if args.compile else []:
        layer.compile()
    if args.mode.startswith("fsdp2"):
        watch.phase = "fully_shard"
        shard(model, args)
    batch = random_tokens(args.rows, args.length, model.config.vocab_size).to(args.device)
    loop = Loop(args, model, optimizer_of(model, args), batch)
    line["start_s"] = watch.seconds()
    line |= Clock(args, watch).run(loop.step, args.rows * args.length * args.micro_steps, loop.norm)
    if args.sdpa_probe:
        watch.phase = "the attention's kernel"
        line["sdpa"] = attention_operations(loop.step)


def main():
    parser = parser_of(__doc__, MODES)
    parser.add_argument("--state", choices=["fp32", "bf16"], default="fp32", help="how weights and moments are kept")
    parser.add_argument("--compile", action="store_true", help="torch.compile of each layer")
    args = parser.parse_args()
    args.compile |= args.mode.startswith("compile")
    args.liger |= args.mode.endswith("liger")
    main_of(args, "torch", measure)


if __name__ == "__main__":
    main()
