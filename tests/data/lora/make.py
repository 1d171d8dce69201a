#!/usr/bin/env python3
"""Writes what PEFT computes with adapters in float64: logits, gradients, six steps of AdamW, and merged weights.

    tests/data/lora/make.py [FOLDER]

The base models are those of tests/data/references; adapter_initial and adapter_final are as save_pretrained() writes them.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small import ADAMW, IGNORED, apart, base_model, checkpoint, clipped, counted, exactly, loss_sum, require, save, save_json, target

CASES = {"small_qwen3_qv": ("small_qwen3", ["q_proj", "v_proj"]), "small_qwen2_all_linear": ("small_qwen2", "all-linear")}
VOCABULARY, STEPS, MICRO_BATCHES, ROWS, TOKENS, RANK, ALPHA, CLIP = 24, 6, 2, 3, 12, 4, 8, 1.0
# Eight deviations of float32's rounding or more (Rounding of tools/rounding.py, 12 seeds). They are larger for the second case:
# at its second step an element of layers.1.mlp.up_proj's adapter has a gradient of 2.7e-9, and AdamW divides it by its size + 1e-8.
LIMITS = {
    "small_qwen3_qv": {"trace loss abs": 6e-6, "trace grad norm rel": 4e-6, "final adapter rel to update": 4e-4,
                       "logits max abs": 5e-6, "merged weights max abs": 1e-6},
    "small_qwen2_all_linear": {"trace loss abs": 8e-6, "trace grad norm rel": 4e-6, "final adapter rel to update": 2e-3,
                               "logits max abs": 5e-6, "merged weights max abs": 9e-6},
}  # fmt: skip


class Run:
    """The base with adapters, in one type."""

    def __init__(self, base, targets, dtype):
        from peft import LoraConfig, get_peft_model

        self.dtype = dtype
        model = base_model(base, dtype)
        model.name_or_path = f"../../../references/{checkpoint(base).parent.name}/checkpoint"
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, task_type="CAUSAL_LM", target_modules=targets)
        self.model = get_peft_model(model, config, autocast_adapter_dtype=False)
        generator = torch.Generator().manual_seed(11)
        self.learnt = {n: p for n, p in sorted(self.model.named_parameters()) if p.requires_grad}
        with torch.no_grad():
            for name, parameter in self.learnt.items():
                if "lora_A" in name:
                    parameter.copy_((torch.rand(parameter.shape, generator=generator) * 2 - 1) / parameter.shape[1] ** 0.5)

    def logits(self, tokens, mask):
        with torch.no_grad(), exactly(self.dtype):
            return self.model(input_ids=tokens, attention_mask=mask, use_cache=False).logits

    def mean_loss(self, tokens, labels, parts=1):
        with exactly(self.dtype):
            loss = loss_sum(self.model, tokens, labels) / counted(labels)
            (loss / parts).backward()
        return loss.item()

    def train(self, batches):
        optimizer = torch.optim.AdamW(self.learnt.values(), foreach=False, **{**ADAMW, "lr": 5e-3})
        losses, norms = [], []
        for tokens, labels in zip(*batches):
            optimizer.zero_grad()
            losses.append([self.mean_loss(tokens[m], labels[m], MICRO_BATCHES) for m in range(MICRO_BATCHES)])
            norms.append(clipped([p.grad for p in self.learnt.values()], CLIP))
            optimizer.step()
        return losses, norms

    def weights(self):
        """By the names in the file."""
        from peft import get_peft_model_state_dict

        return {name: value.detach().clone() for name, value in get_peft_model_state_dict(self.model).items()}

    def merged(self):
        out = {}
        for name, module in self.model.base_model.model.named_modules():
            if hasattr(module, "lora_A"):
                out[f"{name}.weight"] = (module.base_layer.weight + module.get_delta_weight("default")).detach()
        return out


def write_adapter(run, folder):
    folder.mkdir(parents=True, exist_ok=True)
    config = run.model.peft_config["default"]
    config.inference_mode = True
    config.save_pretrained(folder)
    config.inference_mode = False
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["target_modules"].sort()  # a set, in any order
    save_json(path, values)
    save(folder / "adapter_model.safetensors", run.weights())


def draw():
    generator = torch.Generator().manual_seed(12)
    tokens = torch.randint(VOCABULARY, (STEPS, MICRO_BATCHES, ROWS, TOKENS), generator=generator)
    labels = torch.where(torch.arange(TOKENS) < torch.randint(2, 6, (STEPS, MICRO_BATCHES, ROWS, 1), generator=generator), IGNORED, tokens)
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, -5:] = 0
    return (tokens, labels), torch.randint(VOCABULARY, (2, TOKENS), generator=generator), mask


def make(name, folder):
    base, targets = CASES[name]
    batches, tokens, mask = draw()
    run, near = Run(base, targets, torch.float64), Run(base, targets, torch.float32)
    logits = {"input_ids": tokens, "attention_mask": mask, "initial": run.logits(tokens, mask)}
    write_adapter(run, folder / "adapter_initial")
    before = run.weights()
    first = [part[0, 0] for part in batches]
    loss = run.mean_loss(*first)
    gradients = {"grad." + n.replace(".default", ""): p.grad.clone() for n, p in run.learnt.items()}
    save(folder / "grads.safetensors", {"input_ids": first[0], "labels": first[1], "attention_mask": torch.ones_like(first[0]),
                                        "loss": torch.tensor([loss], dtype=torch.float64), **gradients})  # fmt: skip
    losses, norms = run.train(batches)
    others, other_norms = near.train(batches)
    logits["final"] = run.logits(tokens, mask)
    after, merged, rounded = run.weights(), run.merged(), near.merged()
    require({"trace loss abs": max(abs(a - b) for x, y in zip(others, losses) for a, b in zip(x, y)),
             "trace grad norm rel": max(abs(a / b - 1) for a, b in zip(other_norms, norms)),
             "final adapter rel to update": apart(near.weights(), {n: (w, before[n]) for n, w in after.items()}),
             "logits max abs": float((near.logits(tokens, mask) - logits["final"])[mask == 1].abs().max()),
             "merged weights max abs": max(float((rounded[n] - w).abs().max()) for n, w in merged.items())}, LIMITS[name])  # fmt: skip
    write_adapter(run, folder / "adapter_final")
    save(folder / "merged.safetensors", merged)
    save(folder / "logits.safetensors", {**logits, "merged": logits["final"]})
    save(folder / "batches.safetensors", dict(zip(("tokens", "labels"), batches)))
    save_json(folder / "losses.json", {"loss": losses, "grad_norm": norms, "recommended": LIMITS[name]})


def main():
    folder = target(__file__)
    for name in CASES:
        make(name, folder / name)


if __name__ == "__main__":
    main()
