#!/usr/bin/env python3
"""Writes the routes that DeepSpeed's own gates choose, from given logits and given noise.

    PYTHON tests/data/gating/make.py [FOLDER]      PYTHON: an interpreter that has deepspeed

Logits, noise and the gradients' seed are integers over 64 or 1024: exact in float32, whatever draws them.
"""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from deepspeed.moe import sharded_moe

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small import save, target

AUX_WEIGHT = 0.01
USUAL = {"k": 1, "capacity_factor": 1.0, "min_capacity": 4, "drop_tokens": True, "drop_policy": "probs", "random_token_selection": False,
         "sample": False, "used_tokens": False}
CASES = {
    "top1_nothing_dropped": {"gate": "top1", "tokens": 10, "experts": 2, "min_capacity": 10},
    "top1_capacity_by_count": {"gate": "top1", "tokens": 12, "experts": 3, "drop_tokens": False},
    "top1_random_token_selection": {"gate": "top1", "tokens": 16, "experts": 3, "min_capacity": 0, "random_token_selection": True},
    "top1_used_tokens": {"gate": "top1", "tokens": 10, "experts": 3, "min_capacity": 10, "used_tokens": True},
    "top1_dropped_by_topk": {"gate": "top1", "tokens": 12, "experts": 4, "min_capacity": 0},
    "top2_dropped": {"gate": "top2", "tokens": 16, "experts": 4, "k": 2, "min_capacity": 0},
    "top2_sampled": {"gate": "top2", "tokens": 10, "experts": 4, "k": 2, "sample": True},
    "top2_capacity_by_count": {"gate": "top2", "tokens": 9, "experts": 4, "k": 2, "drop_tokens": False},
    "top3_by_probability": {"gate": "topk", "tokens": 12, "experts": 5, "k": 3, "capacity_factor": 0.6, "min_capacity": 0},
    "top3_by_position": {"gate": "topk", "tokens": 12, "experts": 5, "k": 3, "capacity_factor": 0.5, "min_capacity": 0, "drop_policy": "position"},
}  # fmt: skip


class Draw:
    """Numbers without two that are equal, so that no choice is arbitrary."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def distinct(self, shape, unit):
        """Integers of a permutation, about zero, over `unit`."""
        count = int(torch.tensor(shape).prod())
        return (torch.randperm(4 * count, generator=self.generator)[:count] - 2 * count).reshape(shape) / unit


@contextmanager
def given_noise(uniform, gumbel):
    """DeepSpeed draws its noise from these maps; here they hand out tensors of ours."""
    device = torch.device("cpu")
    for table, noise in ((sharded_moe.exp_selection_uniform_map, uniform), (sharded_moe.gumbel_map, gumbel)):
        if noise is not None:
            table[device] = lambda shape, noise=noise: noise.reshape(shape)
    try:
        yield
    finally:
        sharded_moe.exp_selection_uniform_map.pop(device, None)
        sharded_moe.gumbel_map.pop(device, None)


def gate(case, logits, inputs, sparse):
    common = (case["capacity_factor"], case["min_capacity"])
    if case["gate"] == "top1":
        return sharded_moe.top1gating(logits, *common, inputs.get("used_token"), None, case["drop_tokens"], case["random_token_selection"],
                                      None, sparse)  # fmt: skip
    if case["gate"] == "top2":  # adds the noise to the logits in place
        return sharded_moe.top2gating(logits.clone(), *common, case["drop_tokens"], None, case["sample"], sparse)
    return sharded_moe.topkgating(logits, case["k"], *common, case["drop_tokens"], None, case["drop_policy"], sparse)


def make(name, case, seed):
    draw, shape = Draw(seed), (case["tokens"], case["experts"])
    inputs = {"logits": draw.distinct(shape, 64.0)}
    if case["used_tokens"]:
        inputs["used_token"] = (torch.arange(case["tokens"]) % 4 != 1).long()
    if case["random_token_selection"]:
        inputs["uniform"] = draw.distinct(shape, 1024.0) + 0.5
    if case["sample"]:
        inputs["gumbel"] = draw.distinct(shape, 64.0)
    with given_noise(inputs.get("uniform"), inputs.get("gumbel")):
        logits = inputs["logits"].clone().requires_grad_()
        aux_loss, combine, dispatch, counts = gate(case, logits, inputs, sparse=False)
        cotangent = draw.distinct(combine.shape, 1024.0)
        ((combine * cotangent).sum() + AUX_WEIGHT * aux_loss).backward()
        _, capacity, _, expert, location, weight, _ = gate(case, inputs["logits"], inputs, sparse=True)
    kept = int(dispatch.any(dim=2).sum())
    # Without noise DeepSpeed's top-1 gate keeps whichever tokens topk names among equal ones.
    arbitrary = case["gate"] == "top1" and case["drop_tokens"] and not case["random_token_selection"] and kept < int(counts.sum())
    tensors = {**inputs, "l_aux": aux_loss.reshape(1), "exp_counts": counts.long(), "route_expert": expert, "route_location": location,
               "route_weight": weight, "cotangent": cotangent, "grad_logits": logits.grad}  # fmt: skip
    return {"name": name, **case, "capacity": int(capacity), "kept": kept, "kept_set_is_arbitrary": arbitrary}, tensors


def main():
    folder, notes = target(__file__), []
    for seed, (name, given) in enumerate(CASES.items(), 1):
        note, tensors = make(name, {**USUAL, **given}, seed)
        save(folder / f"{name}.safetensors", tensors)
        notes.append(json.dumps(note))
    (folder / "cases.json").write_text("[\n" + ",\n".join(notes) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
