#!/usr/bin/env python3
"""Measures DeepSpeed's ZeRO on one GPU with the optimizer on the host (ZeRO-Offload), as SuperOffload, or on the GPU.

    python3 superoffload_peer.py --config configs/qwen3_4b.json --rows 4 --length 4096 --mode super --clip off

The model has random weights in bf16 and recomputes its activations. Needs no launcher. Invariant: --mode super and offload differ
in DeepSpeed's own keys of SuperOffload and in nothing else. With clipping SuperOffload updates after backward, one sub-group
after the other; --clip off is its quickest setting.
Exit codes: 0; 1 failed; 3 out of memory; 4 not possible here; 124 over --limit. The last line of stdout is the JSON, always.
"""

import os
import shutil
import socket
import subprocess

from peer_common import Unusable, main_of, make_model, parser_of, random_tokens
from peer_watch import Clock, attention_operations
from processes import GIB

SHARED_MEMORY = "/dev/shm"


def stand_alone():
    """Sets the environment of one rank, with a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def zero_of(args):
    """DeepSpeed's zero_optimization."""
    size = int(args.bucket)
    zero = {"stage": args.stage, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": size,
            "sub_group_size": size}
    if args.mode == "none":
        return zero
    offload = {"device": "cpu", "pin_memory": not args.no_pin, "ratio": args.ratio}
    if args.mode == "super":
        offload |= {"super_offload": True, "cpuadam_cores_perc": args.cores}
    return zero | {"offload_optimizer": offload}


def config_of(args):
    adam = {"lr": args.lr, "weight_decay": args.weight_decay, "betas": [0.9, 0.999], "eps": 1e-8}
    if args.mode == "none":
        adam["torch_adam"] = True  # DeepSpeed's fused one would first be compiled for a minute
    return {"train_micro_batch_size_per_gpu": args.rows, "gradient_accumulation_steps": args.micro_steps,
            "bf16": {"enabled": True}, "gradient_clipping": args.clip, "optimizer": {"type": "AdamW", "params": adam},
            "zero_optimization": zero_of(args), "wall_clock_breakdown": args.breakdown, "steps_per_print": 10**6}


def make_room(parameters):
    """Enlarges /dev/shm where it is small and this process may do that: SuperOffload passes fp32 weights and gradients through it,
    and dies of a bus error where it is full."""
    need = 8 * parameters + GIB
    if shutil.disk_usage(SHARED_MEMORY).free >= need:
        return
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", f"remount,size={need // GIB + 8}G", SHARED_MEMORY], check=False, capture_output=True)
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < need:
        raise Unusable(f"{SHARED_MEMORY} has {free / GIB:.0f} GiB free and SuperOffload takes {need / GIB:.0f}: as root, "
                       f"mount -o remount,size={need // GIB + 2}G {SHARED_MEMORY}")


def import_deepspeed():
    try:
        import deepspeed
    except ImportError as error:
        raise Unusable(f"no deepspeed: {error}") from error
    return deepspeed


def measure(args, line, watch):
    stand_alone()
    if args.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    watch.phase = "import"
    import torch

    deepspeed = import_deepspeed()
    line |= {"deepspeed": deepspeed.__version__, "threads": torch.get_num_threads(), "cpus": len(os.sched_getaffinity(0)),
             "zero": zero_of(args)}
    watch.phase = "model"
    model = make_model(args, torch.bfloat16)
    line["parameters"] = sum(weight.numel() for weight in model.parameters())
    if args.mode == "super":
        make_room(line["parameters"])
    watch.phase = "deepspeed.initialize"
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config_of(args))
    inner = getattr(engine.optimizer, "optimizer", None)
    line |= {"start_s": watch.seconds(), "optimizer": f"{type(engine.optimizer).__name__} with {type(inner).__name__}"}
    batch = random_tokens(args.rows, args.length, model.config.vocab_size).to(args.device)

    def step():
        for _ in range(args.micro_steps):
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
        return loss.item()

    # DeepSpeed's norm is that of its optimizer: before clipping.
    tokens = args.rows * args.length * args.micro_steps
    line |= Clock(args, watch).run(step, tokens, engine.get_global_grad_norm)
    if args.sdpa_probe:
        watch.phase = "the attention's kernel"
        line["sdpa"] = attention_operations(step)


def main():
    parser = parser_of(__doc__, ["super", "offload", "none"])
    parser.add_argument("--stage", type=int, default=3, choices=range(4), help="of ZeRO; super needs 3")
    parser.add_argument("--ratio", type=float, default=1.0, help="share of the optimizer's state that lies on the host")
    parser.add_argument("--bucket", type=float, default=4e8, help="elements of reduce_bucket_size and sub_group_size")
    parser.add_argument("--cores", type=float, default=0.9, help="cpuadam_cores_perc of super")
    parser.add_argument("--no-pin", action="store_true", help="pageable host memory")
    parser.add_argument("--breakdown", action="store_true", help="DeepSpeed's wall_clock_breakdown, on stdout")
    args = parser.parse_args()
    if args.mode == "super" and args.stage != 3:
        parser.error("--mode super needs --stage 3")
    main_of(args, "deepspeed", measure)


if __name__ == "__main__":
    main()
