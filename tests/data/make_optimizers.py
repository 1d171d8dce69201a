#!/usr/bin/env python3
"""Writes tests/data/optimizers/: steps of Adam, LAMB and Muon, and traces of the loss scale, as their formulas give them.

    tests/data/make_optimizers.py [FOLDER]

All is computed by numpy in double, from the papers' formulas in the form that DeepSpeed 0.19 uses: Adam as Kingma & Ba 2015 and
Loshchilov & Hutter 2019, LAMB as You et al. 2020 with DeepSpeed's bounds of the trust ratio, Muon as Jordan 2024 with an average
as momentum. The tests compare the kernels' fp32 with these. The numbers depend on the seed alone.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np

SEED = 17
SHAPES = {"square": (8, 8), "wide": (4, 14), "tall": (12, 5), "thin": (3, 20), "bias": (14,), "norm": (8,)}
MATRICES = ("square", "wide", "tall", "thin")
STEPS = 10
ADAM_STEPS = 5
ADAM_ELEMENTS = 256
TYPES = {"float32": "F32", "float64": "F64", "uint8": "U8"}


def write_tensors(path, tensors):
    """A safetensors file: the length of a header, the header, the bytes."""
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": TYPES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in tensors.values()))


def inputs(random, names):
    """{name: (initial weights [shape], gradients [STEPS, shape])}, in fp32."""
    return {name: ((random.standard_normal(SHAPES[name]) * 0.2).astype(np.float32),
                   (random.standard_normal((STEPS, *SHAPES[name])) * 10.0 ** random.uniform(-3, 0)).astype(np.float32))
            for name in names}


def adam(gradients, start, lr, beta1, beta2, eps, decay, adamw, corrects_bias):
    """The weights and both moments after each step, [ADAM_STEPS, ADAM_ELEMENTS] each."""
    p, m, v = start.astype(np.float64), np.zeros(start.shape), np.zeros(start.shape)
    after = []
    for step, gradient in enumerate(gradients.astype(np.float64), 1):
        g = gradient if adamw else gradient + decay * p
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        first = 1 - beta1**step if corrects_bias else 1
        second = 1 - beta2**step if corrects_bias else 1
        p = p - lr / first * m / (np.sqrt(v) / np.sqrt(second) + eps) - (lr * decay * p if adamw else 0)
        after.append((p, m, v))
    return [np.array(part, np.float32) for part in zip(*after)]


def adam_file(path, random, **settings):
    """Kinds of elements: 0 usual, 1 without a gradient, 2 with denormal ones, 3 with large ones, 4 with both signs and no mean."""
    kind = (np.arange(ADAM_ELEMENTS) % 5).astype(np.uint8)
    start = random.standard_normal(ADAM_ELEMENTS).astype(np.float32)
    gradients = random.standard_normal((ADAM_STEPS, ADAM_ELEMENTS))
    gradients *= np.choose(kind, [0.1, 0.0, 1e-40, 1e4, 1e-6])
    gradients = gradients.astype(np.float32)
    p, m, v = adam(gradients, start, **settings)
    write_tensors(path, {"param": start, "grads": gradients, "kind": kind, "float64.param": p, "float64.exp_avg": m, "float64.exp_avg_sq": v})


def lamb_steps(of, lr, betas, eps, decay, bounds=(0.01, 10.0), corrects_bias=True, inside=False, most_norm=0.0):
    """({name: (weights, exp_avg, exp_avg_sq) at the end}, trust ratios [STEPS, tensors])"""
    state = {name: (start.astype(np.float64), np.zeros(start.shape), np.zeros(start.shape)) for name, (start, _) in of.items()}
    ratios = []
    for step in range(STEPS):
        norm = np.sqrt(sum((gradients[step].astype(np.float64) ** 2).sum() for _, gradients in of.values()))
        scale = 1 / max(1.0, (norm + 1e-6) / most_norm) if most_norm else 1.0
        for name, (_, gradients) in of.items():
            p, m, v = state[name]
            g = gradients[step].astype(np.float64) * scale
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            direction = m / (np.sqrt(v + eps) if inside else np.sqrt(v) + eps) + decay * p
            lengths = np.linalg.norm(p), np.linalg.norm(direction)
            ratio = min(max(lengths[0] / lengths[1], bounds[0]), bounds[1]) if all(lengths) else 1.0
            rate = lr * (np.sqrt(1 - betas[1] ** (step + 1)) / (1 - betas[0] ** (step + 1)) if corrects_bias else 1.0)
            state[name] = (p - rate * ratio * direction, m, v)
            ratios.append(ratio)
    return state, np.array(ratios)


def lamb_file(path, random, **settings):
    of = inputs(random, SHAPES)
    state, ratios = lamb_steps(of, **settings)
    tensors = {"float64.coeff": ratios}
    for name, (start, gradients) in of.items():
        tensors |= {f"initial.{name}": start, f"grad.{name}": gradients}
        tensors |= {f"float64.{array}.{name}": values for array, values in zip(("param", "exp_avg", "exp_avg_sq"), state[name])}
    write_tensors(path, tensors)


def orthogonalized(matrix):
    """Five steps of the quintic Newton-Schulz iteration, times the scale of a tall matrix."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    return x * np.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))


def muon_steps(of, lr, momentum, decay, nesterov):
    """{name: (weights, momentum) at the end}"""
    found = {}
    for name, (start, gradients) in of.items():
        p, m = start.astype(np.float64), np.zeros(start.shape)
        for g in gradients.astype(np.float64):
            m = momentum * m + (1 - momentum) * g
            direction = (1 - momentum) * g + momentum * m if nesterov else m
            p = p - lr * orthogonalized(direction) - lr * decay * p
        found[name] = (p, m)
    return found


def muon_file(path, random, **settings):
    of = inputs(random, MATRICES)
    tensors = {}
    for name, (p, m) in muon_steps(of, **settings).items():
        tensors |= {f"initial.{name}": of[name][0], f"grad.{name}": of[name][1], f"float64.param.{name}": p, f"float64.momentum_buffer.{name}": m}
    write_tensors(path, tensors)


def scale_trace(name, script, power, window, hysteresis, keeps, least):
    """The dynamic loss scale of DeepSpeed over a script, in which O is an overflow."""
    scale, left, since, used, after, lives = 2.0**power, hysteresis, 0, [], [], []
    raised = None
    for step in script:
        used.append(scale)
        if step == "O":
            if hysteresis > 1 and left > 1:
                left -= 1
            elif scale == least:
                raised = len(used) - 1
                break
            else:
                scale = max(scale / 2, least)
            since = 0
        else:
            left = hysteresis if keeps else left
            since += 1  # the first step behind an overflow does not count
            if since > 1 and (since - 1) % window == 0:
                left = left if keeps else hysteresis
                scale *= 2
        after.append(scale)
        lives.append(left)
    return {"name": name, "script": script, "initial_scale_power": power, "loss_scale_window": window, "hysteresis": hysteresis,
            "consecutive_hysteresis": keeps, "min_loss_scale": least, "scale_used": used, "scale_after": after, "hysteresis_after": lives,
            "raised": raised}


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "optimizers"
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(SEED)
    usual = {"eps": 1e-8, "beta1": 0.9, "beta2": 0.999}
    adam_file(folder / "adamw.safetensors", random, lr=1e-3, decay=0.01, adamw=True, corrects_bias=True, **usual)
    adam_file(folder / "l2_no_bias_correction.safetensors", random, lr=2e-3, beta1=0.8, beta2=0.99, eps=1e-6, decay=0.1, adamw=False,
              corrects_bias=False)
    for name, settings in {
        "default": {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.0},
        "decay_narrow": {"lr": 6e-3, "betas": (0.88, 0.98), "eps": 1e-6, "decay": 0.05, "bounds": (0.1, 0.3)},
        "no_bias_correction": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01, "corrects_bias": False},
        "eps_inside_sqrt": {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-4, "decay": 0.01, "inside": True},
        "max_grad_norm": {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "decay": 0.01, "most_norm": 0.5},
    }.items():
        lamb_file(folder / f"lamb_{name}.safetensors", random, **settings)
    for name, settings in {
        "deepspeed_standard": {"lr": 0.02, "momentum": 0.95, "decay": 0.01, "nesterov": True},
        "torch_default": {"lr": 1e-3, "momentum": 0.95, "decay": 0.1, "nesterov": True},
        "torch_no_nesterov": {"lr": 0.02, "momentum": 0.95, "decay": 0.0, "nesterov": False},
    }.items():
        muon_file(folder / f"muon_{name}.safetensors", random, **settings)
    traces = [scale_trace("window", "..O....OO.........O.", 16, 4, 2, False, 1.0),
              scale_trace("kept", "O.O.O.OO..OOO...", 8, 3, 2, True, 1.0),
              scale_trace("one_life", "OO..O.....O", 10, 2, 1, False, 4.0),
              scale_trace("least", "OOO.OOO", 2, 2, 1, False, 1.0)]
    (folder / "scaler.json").write_text(json.dumps(traces, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
