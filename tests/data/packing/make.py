#!/usr/bin/env python3
"""Writes what Transformers computes of records one by one, and of steps whose micro-batches have unequal labels, in float64.

    tests/data/packing/make.py [FOLDER]

FAMILY/ has the records, the losses of each, the sum of their gradients, and the rows of best fit decreasing; loss_mean/ has three
steps of AdamW by the mean of micro-batches and by the mean of tokens. The models are tests/data/references/small_FAMILY.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small import ADAMW, IGNORED, apart, base_model, clipped, counted, exactly, loss_sum, require, save, save_json, target

FAMILIES, VOCABULARY, ROOM = ("gpt2", "qwen3"), 24, 32
LENGTHS = (32, 14, 9, 4, 31, 7, 13, 8, 6, 22, 5, 3, 1, 6, 8, 9, 18)
RECORD_LIMITS = {"record loss sum abs": 6e-5, "grads max rel to tensor": 6e-6}
STEPS, MICRO_BATCHES, ROWS, TOKENS = 3, 4, 2, 14
MEAN_LIMITS = {"loss abs": 4e-6, "grad norm rel": 3e-6, "final weights rel to update": 2e-3}


def records(generator):
    """(tokens, labels) of each; a third is a prompt, and one record has no label."""
    for number, length in enumerate(LENGTHS):
        tokens = torch.randint(1, VOCABULARY, (1, length), generator=generator)
        labels = tokens.clone()
        labels[:, : length if number == 11 else length // 3] = IGNORED
        yield tokens, labels


def best_fit_decreasing():
    """Each record, the longest first, to the fullest row that has room for it."""
    rows = []
    for record in sorted(range(len(LENGTHS)), key=lambda r: -LENGTHS[r]):
        room = [ROOM - sum(LENGTHS[r] for r in row) for row in rows]
        fitting = [at for at, left in enumerate(room) if left >= LENGTHS[record]]
        if fitting:
            rows[min(fitting, key=lambda at: room[at])].append(record)
        else:
            rows.append([record])
    return rows


def one_by_one(family, data, dtype):
    model, losses = base_model(f"small_{family}", dtype), []
    with exactly(dtype):
        for tokens, labels in data:
            loss = loss_sum(model, tokens, labels)
            loss.backward()
            losses.append(loss.item())
    return losses, {name: parameter.grad for name, parameter in model.named_parameters()}


def make_family(family, folder):
    data = list(records(torch.Generator().manual_seed(3)))
    losses, gradients = one_by_one(family, data, torch.float64)
    near, rounded = one_by_one(family, data, torch.float32)
    require({"record loss sum abs": max(abs(a - b) for a, b in zip(near, losses)),
             "grads max rel to tensor": max(float((rounded[n] - g).abs().max() / g.abs().max()) for n, g in gradients.items())},
            RECORD_LIMITS)  # fmt: skip
    labels = [counted(labels) for _, labels in data]
    save_json(folder / "expected.json", {"checkpoint": f"../../references/small_{family}/checkpoint", "max_length": ROOM,
              "rows_by_best_fit_decreasing": best_fit_decreasing(), "loss_sum": losses, "labels": labels, "total_labels": sum(labels),
              "recommended": RECORD_LIMITS})  # fmt: skip
    lines = [json.dumps({"input_ids": tokens[0].tolist(), "labels": labels[0].tolist()}) for tokens, labels in data]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    save(folder / "grads.safetensors", {f"grad64.{name}": gradient for name, gradient in gradients.items()})


def batches(generator, has_empty):
    """tokens and labels [STEPS, MICRO_BATCHES, ROWS, TOKENS], of 2 to 24 labels a micro-batch."""
    tokens = torch.randint(1, VOCABULARY, (STEPS, MICRO_BATCHES, ROWS, TOKENS), generator=generator)
    labels = tokens.clone()
    for step in range(STEPS):
        for micro in range(MICRO_BATCHES):
            labels[step, micro, :, : 1 + (5 * micro + 3 * step) % (TOKENS - 1)] = IGNORED
    if has_empty:
        labels[:, 2] = IGNORED
    return tokens, labels


def trained(dtype, data, by_tokens, clip):
    model, steps = base_model("small_qwen3", dtype), []
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, **ADAMW)
    for tokens, labels in zip(*data):
        optimizer.zero_grad()
        counts, loss = [counted(of_micro) for of_micro in labels], 0.0
        for micro, count in enumerate(counts):
            if count == 0:
                continue
            with exactly(dtype):
                part = loss_sum(model, tokens[micro], labels[micro]) / (sum(counts) if by_tokens else count * MICRO_BATCHES)
                part.backward()
            loss += part.item()
        steps.append({"loss": loss, "grad_norm": clipped([p.grad for p in model.parameters()], clip)})
        optimizer.step()
    return steps, {n: p.detach() for n, p in model.named_parameters()}


def make_loss_mean(folder):
    before = dict(base_model("small_qwen3", torch.float64).named_parameters())
    runs = {}
    for name, by_tokens in (("micro_batches", False), ("tokens", True), ("tokens_empty", True)):
        data = batches(torch.Generator().manual_seed(4), name == "tokens_empty")
        save(folder / ("batches_empty.safetensors" if name == "tokens_empty" else "batches.safetensors"), dict(zip(("tokens", "labels"), data)))
        for suffix, clip in (("", 0.0), ("_clip", 1.0)):
            steps, weights = trained(torch.float64, data, by_tokens, clip)
            near, rounded = trained(torch.float32, data, by_tokens, clip)
            require({"loss abs": max(abs(a["loss"] - b["loss"]) for a, b in zip(near, steps)),
                     "grad norm rel": max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(near, steps)),
                     "final weights rel to update": apart(rounded, {n: (w, before[n]) for n, w in weights.items()})}, MEAN_LIMITS)  # fmt: skip
            runs[name + suffix] = {"gradient_clipping": clip, "steps": steps}
            if not suffix and name != "tokens_empty":
                save(folder / f"final_{name}.safetensors", weights)
    save_json(folder / "expected.json", {"checkpoint": "../../references/small_qwen3/checkpoint", "runs": runs, "recommended": MEAN_LIMITS})


def main():
    folder = target(__file__)
    for family in FAMILIES:
        make_family(family, folder / family)
    make_loss_mean(folder / "loss_mean")


if __name__ == "__main__":
    main()
