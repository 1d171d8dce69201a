#!/usr/bin/env python3
"""Schedulers of a DeepSpeed config over a grid of parameters, and the rates that DeepSpeed's own classes give for them.

    schedule_grid.py --record FOLDER     the rates of least_values(), and those of USUAL over USUAL_STEPS with the betas, for the
                                         tests of the engine; needs deepspeed

A case whose class raises, when it is made or within its steps, has the error's name instead of rates.
"""

import argparse
import itertools
import json
import os
from pathlib import Path

STEPS = 12
RATE = 5e-3  # the optimizer's
SHAPES = ["log", "linear"]
USUAL_STEPS = 60
USUAL = [
    ("WarmupLR", {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}),
    ("WarmupDecayLR", {"total_num_steps": 50, "warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3, "warmup_num_steps": 12, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 45, "warmup_num_steps": 10}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 15, "decay_step_size": 5, "decay_lr_rate": 0.5,
                  "decay_mom_rate": 0.01}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 2.0}),
]  # fmt: skip
CYCLE = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}


def grid(kind, **values):
    """(kind, parameters) for every choice; None: the parameter is not given."""
    for choice in itertools.product(*values.values()):
        yield kind, {name: value for name, value in zip(values, choice, strict=True) if value is not None}


def least_values():
    """Every count that DeepSpeed clamps, checks or divides by, at 0, 1 and 2."""
    counts = [0, 1, 2, 3]
    yield from grid("WarmupLR", warmup_num_steps=counts, warmup_type=SHAPES, warmup_max_lr=[2e-3])
    yield from grid("WarmupDecayLR", warmup_num_steps=counts, warmup_type=SHAPES, total_num_steps=[1, 2, 3, 8], warmup_max_lr=[2e-3])
    yield from grid("WarmupCosineLR", warmup_num_steps=counts, warmup_type=SHAPES, total_num_steps=[1, 2, 3, 8])
    for kind, parameters in grid("OneCycle", cycle_first_step_size=[0, 1, 2], cycle_second_step_size=[None, 0, 1, 2],
                                 cycle_first_stair_count=[0, 1, 2], decay_step_size=[0, 1, 2], decay_lr_rate=[0.5]):
        yield kind, {**CYCLE, **parameters}
    yield from grid("LRRangeTest", lr_range_test_step_size=[0, 1, 2], lr_range_test_staircase=[True, False])


def whole():
    """Also what is common, and defaults."""
    yield from least_values()
    lengths = [1, 2, 3, 7, None]
    for kind, length in (("WarmupLR", [None]), ("WarmupDecayLR", [20, 5])):
        yield from grid(kind, warmup_num_steps=lengths, warmup_type=[*SHAPES, None], warmup_min_lr=[0, 1e-4, None],
                        warmup_max_lr=[2e-3, None], total_num_steps=length)
    yield from grid("WarmupCosineLR", total_num_steps=[20, 5], warmup_min_ratio=[0, 0.1, None], warmup_num_steps=lengths,
                    cos_min_ratio=[0, 0.1, None], warmup_type=[*SHAPES, None])
    for kind, parameters in grid("OneCycle", decay_lr_rate=[0.0, 0.5], cycle_first_step_size=[4, 5],
                                 cycle_second_step_size=[None, 3], cycle_first_stair_count=[0, 2],
                                 cycle_second_stair_count=[None, 3], decay_step_size=[0, 2]):
        yield kind, {**CYCLE, **parameters}
    yield from grid("LRRangeTest", lr_range_test_min_lr=[1e-4, None], lr_range_test_step_size=[1, 3, None],
                    lr_range_test_step_rate=[1.0, 0.5, None], lr_range_test_staircase=[True, False, None])


def deepspeed_rates(kind, parameters, steps=STEPS, betas=None):
    """The rate of each step, or the error's name; the betas of each step are added to a list."""
    import torch
    from deepspeed.runtime import lr_schedules

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    try:
        scheduler = getattr(lr_schedules, kind)(optimizer, **parameters)
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            if betas is not None:
                betas.append(optimizer.param_groups[0]["betas"])
            scheduler.step()
    except (ValueError, ZeroDivisionError) as error:
        return type(error).__name__
    return rates


def recorded(cases, steps=STEPS, with_betas=False):
    """JSON of the cases with DeepSpeed's rates, one a line; with_betas: also what OneCycle makes of the betas."""
    lines = []
    for kind, parameters in cases:
        betas = [] if with_betas and kind == "OneCycle" else None
        case = {"type": kind, "params": parameters, "optimizer_lr": RATE, "lr": deepspeed_rates(kind, parameters, steps, betas)}
        lines.append(json.dumps(case | ({"betas": betas} if betas else {})))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, required=True)
    flags = parser.parse_args()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    flags.record.mkdir(parents=True, exist_ok=True)
    (flags.record / "least_values.json").write_text(recorded(least_values()), encoding="utf-8")
    (flags.record / "usual.json").write_text(recorded(USUAL, USUAL_STEPS, with_betas=True), encoding="utf-8")


if __name__ == "__main__":
    main()
