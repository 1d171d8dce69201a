"""What the peers share: their options, a model with random weights, bench_step's tokens, and the JSON line.

Invariant: importing this module imports no torch, and a wrong option is reported before torch is imported.
"""

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

from model_flops import flops_of_token, read_config
from peer_watch import FAILED, OK, OUT_OF_MEMORY, UNUSABLE, Watch, end_descendants

CLIPS = {"off": 0.0, "high": 1e3, "low": 1e-3}  # no clipping; clipping that never acts; clipping that always acts


class Unusable(Exception):
    """What is asked for is not installed, or not possible on this machine."""


def clip_value(text):
    value = CLIPS[text] if text in CLIPS else float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: off, high, low or a number from 0 on")
    return value


def parser_of(text, modes):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="config.json of the model")
    parser.add_argument("--mode", choices=modes, default=modes[0])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=6, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--micro-steps", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--layers", type=int, help="only the first layers, this number of them")
    parser.add_argument("--clip", type=clip_value, default=CLIPS["high"], metavar="off|high|low|NORM",
                        help="limit of the gradient norm: 0, 1000, 0.001, or as given")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    parser.add_argument("--attention", default="sdpa", help="attn_implementation of Transformers")
    parser.add_argument("--liger", action="store_true", help="Liger's kernels and its fused loss")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=0, metavar="S", help="end with an error after S seconds")
    parser.add_argument("--min-host-gib", type=float, default=4, help="end with an error where less host memory is available")
    parser.add_argument("--no-sdpa-probe", dest="sdpa_probe", action="store_false",
                        help="leave out the step that finds the attention's kernel")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: for a rehearsal with a tiny model")
    parser.add_argument("--stand-in", action="store_true",
                        help="for a rehearsal: read the options and print a line of made-up figures, marked as that")
    return parser


def random_tokens(rows, length, vocabulary):
    """bench_step's tokens: s' = 1664525 s + 1013904223 modulo 2^32, from s = 1; a token is s' / 256 modulo the vocabulary."""
    import torch

    tokens, state = [], 1
    for _ in range(rows * length):
        state = (1664525 * state + 1013904223) & 0xFFFFFFFF
        tokens.append((state >> 8) % vocabulary)
    return torch.tensor(tokens).reshape(rows, length)


def make_model(args, dtype):
    """A model of the config in `dtype` on the device, in training mode; Transformers draws the weights from the seed."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = read_config(args.config, args.layers)
    config = CONFIG_MAPPING[values["model_type"]].from_dict(values)
    config.use_cache = False
    torch.manual_seed(args.seed)
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=args.attention)
    if args.liger:
        take_liger(model)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def take_liger(model):
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise Unusable(f"no liger-kernel: {error}") from error
    _apply_liger_kernel_to_instance(model=model)


def first_line(args, peer):
    line = {"peer": peer, "mode": args.mode, "model": args.config.stem}
    for name in ("rows", "length", "micro_steps", "clip", "checkpointing", "liger", "attention", "warmup", "steps", "layers"):
        line[name] = getattr(args, name)
    return line


def speeds(args, tokens_per_s):
    executed, model = flops_of_token(read_config(args.config, args.layers), args.length, args.checkpointing)
    return {"flops_of_token_executed": executed, "flops_of_token_model": model,
            "tflops_executed": round(executed * tokens_per_s / 1e12, 2), "tflops_model": round(model * tokens_per_s / 1e12, 2)}


def stand_in(args, line, _):
    """Fills the line as a measurement would, with figures that no machine can have."""
    count = args.warmup + args.steps
    line |= {"stand_in": True, "tokens_per_s": 1.0, "ms_median": 1e3 * args.rows * args.length, "losses": [0.0] * count,
             "grad_norms": [None] * count}


def look_at_gpu(args, line):
    if args.device != "cuda" or args.stand_in:
        return
    import torch

    if not torch.cuda.is_available():
        raise Unusable("torch sees no GPU")
    line |= {"card": torch.cuda.get_device_name(), "torch": torch.__version__}


def main_of(args, peer, measure):
    """Prints the line that measure(args, line, watch) fills; it has an "error" where that came to no end. Never returns."""
    line = first_line(args, peer)
    watch = Watch(args, line)
    code = OK
    try:
        read_config(args.config, args.layers)
        look_at_gpu(args, line)
        (stand_in if args.stand_in else measure)(args, line, watch)
        line |= speeds(args, line["tokens_per_s"]) | watch.memory()
        if not all(abs(loss) < float("inf") for loss in line["losses"]):
            raise RuntimeError("a loss is not finite")
    except Unusable as error:
        line["error"], code = str(error), UNUSABLE
    except Exception as error:  # whatever a peer ends with belongs into its line
        traceback.print_exc()
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        line["error"] = f"{text}, in: {watch.phase}"
        code = OUT_OF_MEMORY if "OutOfMemory" in text or "out of memory" in text else FAILED
    print(json.dumps(line | {"seconds": watch.seconds()}), flush=True)
    end_descendants()
    if "CUDA_INJECTION64_PATH" in os.environ:
        sys.exit(code)  # the trace is printed at exit
    os._exit(code)  # the peers' communicators and workers take seconds to end, or never do
