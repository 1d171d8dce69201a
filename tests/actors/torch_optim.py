"""Runs torch.optim on the numbers of a folder, for tests/actors/kernels/update/optimizer_step_test.cpp.

The folder holds cases.json (a list of {"name", "optimizer", "arguments"}), start.bin (fp32 parameters) and gradients.bin
(fp32, step after step). Writes NAME.bin for each case: after each step the parameters, then the optimizer's state.
"""

import json
import pathlib
import sys

import torch

STATE = {"SGD": "momentum_buffer", "Adagrad": "sum"}


def read(path):
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    start = read(folder / "start.bin")
    gradients = read(folder / "gradients.bin").view(-1, start.numel())
    for case in json.loads((folder / "cases.json").read_text()):
        parameter = start.clone().requires_grad_()
        optimizer = getattr(torch.optim, case["optimizer"])([parameter], foreach=False, **case["arguments"])
        with open(folder / (case["name"] + ".bin"), "wb") as out:
            for gradient in gradients:
                parameter.grad = gradient.clone()
                optimizer.step()
                state = optimizer.state[parameter].get(STATE[case["optimizer"]])
                out.write(parameter.detach().numpy().tobytes())
                out.write((torch.zeros_like(start) if state is None else state).numpy().tobytes())


main()
