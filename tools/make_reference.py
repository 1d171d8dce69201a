#!/usr/bin/env python3
"""Makes a folder for `tandem parity`: a checkpoint, and what Transformers computes with it.

  make_reference.py --family llama --out DIR [--tied] [--shards N] [--set KEY=JSON ...]    small, random weights
  make_reference.py --checkpoint MODEL_DIR --out DIR                                       of a checkpoint that is there

DIR gets checkpoint/ (weights as F32), logits, gradients, batches, the losses and final weights of two training traces (with
and without clipping), and tolerances.json: five times the worst difference among correct ways to compute the same.
Everything on the CPU, one thread, deterministic; the same seed gives the same bytes. The config's dropout is off throughout,
here and in `tandem parity`: each library draws masks of its own.
"""

import argparse
import contextlib
import copy
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

LENGTH = 32
ACCUMULATION = 2
ROWS = 4
CLIP = {"clip": 1.0, "noclip": 0.0}
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}

SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "hidden_act": "silu", "vocab_size": 331,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_dropout": 0.0, "initializer_range": 0.02,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001}
# As published files spell it; features on that 32 tokens can show.
FAMILIES = {
    "llama": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 24}},
    "phi3": {"rms_norm_eps": 1e-5, "pad_token_id": 94, "sliding_window": 11, "embd_pdrop": 0.0, "resid_pdrop": 0.1,
             "partial_rotary_factor": 0.75, "original_max_position_embeddings": 16,
             "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                              "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0]}},
    "seed_oss": {"head_dim": 32, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False,
                 "attention_dropout": 0.1, "residual_dropout": 0.1, "pad_token_id": 3},
    "qwen3": {"head_dim": 32, "attention_bias": False, "use_sliding_window": True, "sliding_window": 9,
              "max_window_layers": 1},
    "gpt2": {"n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 96, "vocab_size": 300, "bos_token_id": 1,
             "eos_token_id": 2, "activation_function": "gelu_new",
             "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5},
    "qwen3_moe": {"head_dim": 32, "attention_bias": False, "use_sliding_window": False, "num_experts": 8,
                  "moe_intermediate_size": 48, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
                  **EXPERTS},
    "gpt_oss": {"head_dim": 32, "attention_bias": True, "sliding_window": 8, "num_local_experts": 4, "rms_norm_eps": 1e-5,
                "swiglu_limit": 7.0, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                 "original_max_position_embeddings": 16}, **EXPERTS},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "mistral": {"head_dim": 32, "sliding_window": 8},
}  # fmt: skip


def published_config(arguments, transformers):
    """config.json of a small model, as published files spell it."""
    family = arguments.family
    values = dict(FAMILIES[family]) if family == "gpt2" else {**SMALL, **FAMILIES[family]}
    values["model_type"] = family
    if arguments.tied or family == "gpt2":
        values["tie_word_embeddings"] = True
    for assignment in arguments.set:
        key, _, value = assignment.partition("=")
        values[key] = json.loads(value)
    fresh = json.loads(json.dumps({k: v for k, v in values.items() if k != "model_type"}))
    config = transformers.AutoConfig.for_model(family, **fresh)
    architecture = transformers.AutoModelForCausalLM._model_mapping[type(config)].__name__
    return {"architectures": [architecture], **values, "torch_dtype": "float32"}, config


def draw_weights(model, seed, torch):
    """In name order from one generator: norms about one, the rest small enough to keep activations in range."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            owner, _, last = name.rpartition(".")
            if last == "weight" and ("norm" in owner.rsplit(".", 1)[-1] or ".ln_" in "." + owner):
                parameter.copy_(1 + 0.2 * noise)
            elif last == "sinks":
                parameter.copy_(noise)
            elif last == "bias" or last.endswith("_bias"):
                parameter.copy_(0.1 * noise)
            elif owner.endswith((".router", "mlp.gate")):
                parameter.copy_(0.4 * noise)  # so that two experts are rarely as good as each other
            else:
                parameter.copy_(0.08 * noise)


def draw_batches(vocabulary, count, rows, seed, torch):
    """tokens, labels (-100 on a prompt and on right padding), attention_mask: int64 [count, rows, LENGTH]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (count, rows, LENGTH), generator=generator)
    prompt = torch.randint(3, 13, (count, rows, 1), generator=generator)
    padding = torch.randint(0, 7, (count, rows, 1), generator=generator)
    position = torch.arange(LENGTH)
    mask = (position < LENGTH - padding).long()
    labels = torch.where((position < prompt) | (mask == 0), torch.tensor(-100), tokens)
    return tokens, labels, mask


def loss_of(model, tokens, labels, mask, torch):
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


class Way:
    """One correct way to compute: threads, order of rows, implementation of attention, type."""

    def __init__(self, torch, threads=1, reverse=False, attention="eager", double=False):
        self.torch, self.threads, self.reverse, self.attention, self.double = torch, threads, reverse, attention, double

    def prepared(self, model):
        model = copy.deepcopy(model)
        model.set_attn_implementation(self.attention)
        return model.double() if self.double else model

    def rows(self, tensor):
        return tensor.flip(0) if self.reverse else tensor

    @contextlib.contextmanager
    def running(self):
        torch, single = self.torch, self.torch.float32
        torch.set_num_threads(self.threads)
        if self.double:
            torch.float32 = torch.float64  # what the model's source calls so from here on
        try:
            yield
        finally:
            torch.float32 = single
            torch.set_num_threads(1)


def compute(model, data, way, torch):
    """All reference outputs in one way: {name: tensor}, with weights and gradients under the model's own names."""
    out = {}
    tokens, mask = data["logits"]
    with way.running():
        with torch.no_grad():
            ready = way.prepared(model)
            logits = ready(input_ids=way.rows(tokens), attention_mask=way.rows(mask), use_cache=False).logits
            out["logits"] = way.rows(logits)
        ready = way.prepared(model)
        loss = loss_of(ready, *(way.rows(t) for t in data["grads"]), torch)
        loss.backward()
        out["loss"] = loss.detach()
        out["grads"] = {name: p.grad for name, p in ready.named_parameters()}
        for trace, limit in CLIP.items():
            out[trace] = train(way.prepared(model), data["batches"], limit, way, torch)
    return out


def train(model, batches, limit, way, torch):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, **OPTIMIZER)
    losses, norms = [], []
    steps = batches[0].shape[0] // ACCUMULATION
    for step in range(steps):
        losses.append([])
        for micro in range(step * ACCUMULATION, (step + 1) * ACCUMULATION):
            loss = loss_of(model, *(way.rows(t[micro]) for t in batches), torch)
            (loss / ACCUMULATION).backward()
            losses[-1].append(loss.item())
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]))
        norms.append(norm.item())
        if limit > 0:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(min(1.0, limit / (norm.item() + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": losses, "grad_norm": norms, "final": {name: p.detach() for name, p in model.named_parameters()}}


def without_gradient(name, tensor):
    """The key third of GPT-2's fused bias has a gradient that is mathematically zero: Adam makes steps of its noise."""
    if name.endswith("attn.c_attn.bias"):
        third = tensor.shape[0] // 3
        tensor = tensor.clone()
        tensor[third : 2 * third] = 0
    return tensor


def differences(model, base, other, mask, torch):
    """How far another way is from the first, under the names of tolerances.json."""

    def far(a, b):
        return (a.double() - b.double()).abs().max().item() if a is not None else 0.0

    start = dict(model.named_parameters())
    gradients = {name: g for name, g in base["grads"].items() if g is not None}
    relative = [far(g, other["grads"][n]) / max(g.abs().max().item(), 1e-30) for n, g in gradients.items()]
    out = {
        "logits max abs": far(base["logits"][mask == 1], other["logits"][mask == 1]),
        "loss abs": far(base["loss"], other["loss"]),
        "grads max rel to tensor": max(relative),
    }
    moved = []
    for trace in CLIP:
        a, b = base[trace], other[trace]
        out["trace loss abs"] = max(out.get("trace loss abs", 0),
                                    *(abs(x - y) for p, q in zip(a["loss"], b["loss"]) for x, y in zip(p, q)))  # fmt: skip
        out["trace grad norm rel"] = max(out.get("trace grad norm rel", 0),
                                         *(abs(x - y) / x for x, y in zip(a["grad_norm"], b["grad_norm"])))  # fmt: skip
        of_trace = []
        for name, value in a["final"].items():
            update = without_gradient(name, value.double() - start[name].detach().double()).norm().item()
            away = without_gradient(name, value.double() - b["final"][name].double()).norm().item()
            of_trace.append(away / update)
        moved.append(sorted(of_trace))
    out["final weights rel to update"] = max(m[-1] for m in moved)
    out["final weights median rel to update"] = max(m[len(m) // 2] for m in moved)
    return out


def rounded_up(value):
    """One digit, not less."""
    digit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.ceil(value / digit - 1e-9) * digit:.0e}")


def tolerances(model, base, data, ways, torch):
    measured = {}
    for name, way in ways.items():
        other = compute(model, data, way, torch)
        measured[name] = differences(model, base, other, data["logits"][1], torch)
    recommended = {}
    for key in next(iter(measured.values())):
        least = 1e-5 if key.startswith("final") else 1e-6
        recommended[key] = rounded_up(max(least, *(5 * m[key] for m in measured.values())))
    return {"recommended": recommended, "variants": measured}


def as_in_checkpoint(model, values, torch):
    """Values under the model's own names as tensors under the checkpoint's (some families store experts apart)."""
    from safetensors.torch import load_file

    carrier = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in carrier.named_parameters():
            parameter.copy_(torch.zeros_like(parameter) if values[name] is None else values[name])
    with tempfile.TemporaryDirectory() as folder:
        carrier.save_pretrained(folder)
        tensors = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            tensors.update(load_file(file))
    return tensors


def write_checkpoint(model, config_json, shards, folder):
    size = sum(p.numel() * 4 for p in model.parameters())
    model.save_pretrained(folder, max_shard_size=f"{size // shards // 1000 + 2}KB")
    (folder / "config.json").rename(folder / "config.transformers5.json")
    (folder / "config.json").write_text(json.dumps(config_json, indent=2) + "\n")


def write_outputs(model, base, data, out, torch):
    from safetensors.torch import save_file

    tokens, mask = data["logits"]
    logits = base["logits"].contiguous()
    save_file({"input_ids": tokens, "attention_mask": mask, "logits": logits}, out / "logits.safetensors")
    names = ("input_ids", "labels", "attention_mask")
    gradients = {f"grad.{n}": g for n, g in as_in_checkpoint(model, base["grads"], torch).items()}
    save_file({**dict(zip(names, data["grads"])), "loss": base["loss"].reshape(1), **gradients}, out / "grads.safetensors")
    shape = (-1, ACCUMULATION, ROWS, LENGTH)
    batches = {name: t.reshape(shape) for name, t in zip(("tokens", "labels", "attention_mask"), data["batches"])}
    save_file(batches, out / "batches.safetensors")
    traces = {
        name: {"gradient_clipping": limit, "loss": base[name]["loss"], "grad_norm": base[name]["grad_norm"]}
        for name, limit in CLIP.items()
    }
    (out / "losses.json").write_text(json.dumps({"gradient_accumulation": ACCUMULATION, "traces": traces}, indent=1) + "\n")
    for trace in CLIP:
        save_file(as_in_checkpoint(model, base[trace]["final"], torch), out / f"final_{trace}.safetensors")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--family", choices=sorted(FAMILIES))
    which.add_argument("--checkpoint", type=Path, help="folder in Hugging Face format")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; must not exist")
    parser.add_argument("--tied", action="store_true", help="the output matrix is the embedding")
    parser.add_argument("--shards", type=int, default=1, help="files of weights, about")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="in config.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="of each training trace")
    return parser.parse_args()


def main():
    arguments = parsed()
    if arguments.out.exists():
        print(f"error: [--out] {arguments.out} is there already; name a new folder", file=sys.stderr)
        return 2
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    implementations = {"attn_implementation": "eager", "experts_implementation": "eager"}
    if arguments.family:
        config_json, config = published_config(arguments, transformers)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **implementations)
        draw_weights(model, arguments.seed, torch)
    else:
        config_json = json.loads((arguments.checkpoint / "config.json").read_text())
        config_json.pop("quantization_config", None)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.checkpoint, dtype=torch.float32, **implementations)  # fmt: skip
    model.eval()  # nothing is dropped then
    vocabulary = model.config.vocab_size
    tokens, _, _ = draw_batches(vocabulary, 1, 2, arguments.seed + 1, torch)
    mask = torch.ones_like(tokens[0])
    mask[1, -9:] = 0
    data = {
        "logits": (tokens[0], mask),
        "grads": tuple(t[0] for t in draw_batches(vocabulary, 1, ROWS, arguments.seed + 2, torch)),
        "batches": draw_batches(vocabulary, arguments.steps * ACCUMULATION, ROWS, arguments.seed + 3, torch),
    }
    ways = {
        "two threads": Way(torch, threads=2),
        "rows permuted": Way(torch, reverse=True),
        "float64": Way(torch, double=True),
    }
    if getattr(model, "_supports_sdpa", False):
        ways["sdpa"] = Way(torch, attention="sdpa")
    base = compute(model, data, Way(torch), torch)
    partial = arguments.out.with_name(arguments.out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "checkpoint").mkdir(parents=True)
    write_checkpoint(model, config_json, arguments.shards, partial / "checkpoint")
    write_outputs(model, base, data, partial, torch)
    limits = tolerances(model, base, data, ways, torch)
    (partial / "tolerances.json").write_text(json.dumps(limits, indent=1) + "\n")
    partial.rename(arguments.out)
    print(f"{arguments.out}: {sum(p.numel() for p in model.parameters())} parameters, limits {limits['recommended']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
