#!/usr/bin/env python3
"""Writes the reference of the CIFAR-10 example's net: logits and gradients of a batch, and four traces of twenty steps, by torch in float64.

    tests/data/cifar/make.py [FOLDER]

Images, labels and first weights follow from hashed() alone, so that no file has them (tests/models/cifar/reference.hpp makes the
same). Of each gradient and each final weight the file has every STRIDE-th element.
"""

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small import clipped, require, save, save_json, target

STEPS, BATCH, STRIDE = 20, 16, 61
LIMITS = {"loss": 2e-6, "norm": 1e-6, "weights": 3e-5, "logits": 1e-6, "gradients": 6e-6}
TRACES = {"deepspeed": (True, 1.0), "deepspeed_constant_lr": (False, 1.0), "deepspeed_constant_lr_clip_0.1": (False, 0.1)}


def hashed(count, stream):
    """The upper 24 of 32 bits for each index."""
    return ((torch.arange(count) * 2654435761 + stream * 40503) & 0xFFFFFFFF) * 2246822519 % (1 << 32) >> 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)
        fan_in = 1
        with torch.no_grad():
            for stream, parameter in enumerate(self.parameters()):
                fan_in = parameter[0].numel() if parameter.dim() > 1 else fan_in
                unit = hashed(parameter.numel(), stream).float() / 2**23 - 1
                parameter.copy_((unit * torch.tensor(1 / math.sqrt(fan_in), dtype=torch.float32)).reshape(parameter.shape))

    def forward(self, x):
        for convolution in (self.conv1, self.conv2):
            x = F.max_pool2d(F.relu(convolution(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.reshape(-1, 400))))))


def data(count):
    pixels = (hashed(count * 3072, 98) >> 16).reshape(count, 3, 32, 32)
    return (pixels.float() / 255 - 0.5) / 0.5, torch.arange(count) * 7 % 10


def trained(dtype, batch, optimizer_of, rate_of=None, clip=0.0):
    net = Net().to(dtype)
    images, labels = data(STEPS * batch)
    optimizer, trace = optimizer_of(net), {"loss": [], "grad_norm": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        here = slice(step * batch, (step + 1) * batch)
        loss = F.cross_entropy(net(images[here].to(dtype)), labels[here])
        loss.backward()
        trace["loss"].append(loss.item())
        trace["grad_norm"].append(clipped([p.grad for p in net.parameters()], clip))
        if rate_of:
            optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.step()
    return trace, {name: parameter.detach() for name, parameter in net.named_parameters()}


def warm_up(step):
    """DeepSpeed's WarmupLR of 0 to 1e-3 in 1000 steps, by logarithms; its first two steps have the lowest rate."""
    return 1e-3 * math.log(max(1, step)) / math.log(1000)


def adam(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.8, 0.999), eps=1e-8, weight_decay=3e-7, foreach=False)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, foreach=False)


def first_batch(dtype):
    net = Net().to(dtype)
    images, labels = data(BATCH)
    logits = net(images.to(dtype))
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    return logits.detach(), loss.item(), {n: p.grad for n, p in net.named_parameters()}


def some(prefix, tensors):
    return {prefix + name: tensor.flatten()[::STRIDE] for name, tensor in tensors.items()}


def main():
    folder = target(__file__)
    logits, loss, gradients = first_batch(torch.float64)
    near = first_batch(torch.float32)
    off = max(float((near[2][n] - g).abs().max() / g.abs().max()) for n, g in gradients.items())
    require({"logits": float((near[0] - logits).abs().max()), "loss": abs(near[1] - loss), "gradients": off}, LIMITS)
    tensors = {"logits": logits, "loss": torch.tensor([loss], dtype=torch.float64), **some("grad.", gradients)}
    ways = {name: (BATCH, adam, warm_up if warms else None, clip) for name, (warms, clip) in TRACES.items()}
    traces = {}
    for name, way in {**ways, "tutorial_sgd": (4, sgd)}.items():
        trace, weights = trained(torch.float64, *way)
        close, rounded = trained(torch.float32, *way)
        require({"loss": max(abs(a - b) for a, b in zip(close["loss"], trace["loss"])),
                 "norm": max(abs(a - b) / b for a, b in zip(close["grad_norm"], trace["grad_norm"])),
                 "weights": max(float((rounded[n] - w).abs().max()) for n, w in weights.items())}, LIMITS)  # fmt: skip
        traces[name] = trace
        tensors |= some(f"final_{name}.", weights)
    save(folder / "reference.safetensors", tensors)
    save_json(folder / "traces.json", {"stride": STRIDE, "limits": LIMITS, **traces})


if __name__ == "__main__":
    main()
