#!/usr/bin/env python3
"""Makes the checkpoints of this folder anew, with torch alone: what DeepSpeed 0.19 writes at each ZeRO stage, laid out by
its rules for a model of six tensors, and pytorch_model.bin in the forms that are met. Every case has the values that must
be read (state.safetensors) and the numbers beside them (record.json).

usage: .venv/bin/python tests/data/foreign/make.py [FOLDER]
"""

import json
import sys
import tarfile
import tempfile
import types
from collections import OrderedDict
from enum import IntEnum
from pathlib import Path

import torch
from safetensors.torch import save_file

PACKED = (Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent) / "checkpoints.tar.xz"
SCRATCH = tempfile.TemporaryDirectory()  # removed at exit
FOLDER = Path(SCRATCH.name)
SHAPES = OrderedDict([("embed.weight", (5, 3)), ("layers.0.weight", (3, 3)), ("layers.0.norm", (3,)),
                      ("layers.1.weight", (3, 3)), ("layers.1.norm", (3,)), ("head.weight", (5, 3))])
KINDS = ("fp32", "exp_avg", "exp_avg_sq")


def fake_module(name, **members):
    """DeepSpeed's classes by name only: pickles refer to them, and their fields are all that matters."""
    module = types.ModuleType(name)
    for member, value in members.items():
        value.__module__, value.__qualname__ = name, member
        setattr(module, member, value)
    sys.modules[name] = module
    return module


for parent in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.fp16", "deepspeed.runtime.zero", "deepspeed.utils"):
    fake_module(parent)
ZeroStage = IntEnum("ZeroStageEnum", {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3})
fake_module("deepspeed.runtime.zero.config", ZeroStageEnum=ZeroStage)
Scalers = fake_module("deepspeed.runtime.fp16.loss_scaler", LossScaler=type("LossScaler", (), {}),
                      DynamicLossScaler=type("DynamicLossScaler", (), {}))
Fragment = type("fragment_address", (), {})
fake_module("deepspeed.utils.tensor_fragment", fragment_address=Fragment)


def record(cls, **fields):
    out = cls()
    out.__dict__.update(fields)
    return out


class Case:
    """A model in training: fp32 values, moments, and what the module holds of them."""

    def __init__(self, name, stage, world, dtype=torch.float32, groups=None, frozen=(), tied=False, steps=4, skipped=0):
        self.path, self.stage, self.world, self.dtype = FOLDER / name, stage, world, dtype
        self.steps, self.skipped = steps, skipped
        self.tied = {"head.weight": "embed.weight"} if tied else {}
        names = [n for n in SHAPES if n not in self.tied]
        self.frozen = [n for n in names if n in frozen]
        self.groups = groups or [[n for n in names if n not in frozen]]
        generator = torch.Generator().manual_seed(len(name) * 1000 + sum(map(ord, name)))
        self.values = {n: [torch.randn(SHAPES[n], generator=generator) for _ in KINDS] for n in names}
        for n in self.frozen:
            self.values[n][0] = self.values[n][0].to(dtype).float()
        self.adam_step = steps - skipped + (1 if stage == 0 and dtype != torch.float32 else 0)
        self.module = OrderedDict((n, self.values[n][0].to(dtype)) for n in names)
        self.module["rotary"] = torch.arange(3, dtype=torch.float32)
        for alias, n in self.tied.items():
            self.module[alias] = self.module[n]

    def step(self):
        return torch.tensor(float(self.adam_step))

    def flat(self, names, kind, size, paddings=None):
        pieces = []
        for i, n in enumerate(names):
            pieces += [self.values[n][kind].flatten(), torch.zeros(paddings[i] if paddings else 0)]
        flat = torch.cat(pieces)
        return torch.cat([flat, torch.zeros(size - len(flat))])

    def param_groups(self, counts):
        first, out = 0, []
        for count in counts:
            out.append({"lr": 0.001, "betas": (0.9, 0.99), "params": list(range(first, first + count))})
            first += count
        return out

    def common(self):
        return {"module": self.module, "buffer_names": ["rotary"], "optimizer": None, "param_shapes": None,
                "frozen_param_shapes": None, "shared_params": None, "frozen_param_fragments": None,
                "lr_scheduler": {"last_batch_iteration": self.steps - 1 - self.skipped}, "data_sampler": None,
                "random_ltd": None, "sparse_tensor_module_names": set(), "skipped_steps": self.skipped,
                "global_steps": self.steps, "global_samples": 12 * self.steps, "dp_world_size": self.world,
                "mp_world_size": 1, "ds_config": {"train_batch_size": 12, "zero_optimization": {"stage": self.stage}},
                "ds_version": "0.19.8", "note": "oracle", "epoch": 2}

    def shapes(self, groups):
        return [OrderedDict((n, torch.Size(SHAPES[n])) for n in group) for group in groups]

    def save(self, tree, file):
        path = self.path / f"global_step{self.steps}" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tree, path)

    def finish(self, latest="latest", scaler=None, dealt=True):
        (self.path / latest).write_text(f"global_step{self.steps}")
        trained = [n for n in self.values if n not in self.frozen] if dealt else []
        state = {f"{kind}.{n}": self.values[n][k].contiguous() for n in trained for k, kind in enumerate(KINDS)}
        state |= {f"fp32.{n}": self.values[n][0].contiguous() for n in self.frozen}
        state |= {} if dealt else {f"fp32.{n}": self.values[n][0].contiguous() for n in self.values}
        save_file(state | {"fp32.rotary": self.module["rotary"].float()}, self.path / "state_at_save.safetensors")
        record_ = {"dtype": str(self.dtype), "world_size": self.world, "global_steps": self.steps,
                   "global_samples": 12 * self.steps, "skipped_steps": self.skipped, "optimizer_steps": self.adam_step,
                   "zero_stage": self.stage, "scaler": scaler, "tied": self.tied,
                   "scheduler_at_save": {"last_batch_iteration": self.steps - 1 - self.skipped},
                   "notes": 0 if dealt else 1}
        (self.path / "record.json").write_text(json.dumps(record_, indent=1) + "\n")

    def scaler(self):
        if self.dtype != torch.float16:
            return record(Scalers.LossScaler, cur_scale=1.0, dynamic=False), None
        fields = {"cur_scale": 1024.0, "cur_iter": self.steps, "last_overflow_iter": 1, "scale_factor": 2.0,
                  "scale_window": 1000, "min_scale": 1, "delayed_shift": 2, "cur_hysteresis": 2,
                  "consecutive_hysteresis": False, "raise_error_at_min_scale": True, "dynamic": True}
        return (record(Scalers.DynamicLossScaler, **fields, dtype=torch.half),
                {"scale": 1024.0, "iteration": self.steps, "last_overflow": 1, "hysteresis": 2})


def stage_0(case, kind, dealt=True):
    """kind: "plain" (torch's optimizer), "unfused" (fp32 copies one by one), "fused" (one flat array per group)."""
    names = [n for group in case.groups for n in group]
    counts = [len(group) for group in case.groups]
    state = {i: {"step": case.step(), "exp_avg": case.values[n][1], "exp_avg_sq": case.values[n][2]}
             for i, n in enumerate(names)}
    scale = {"dynamic_loss_scale": False, "cur_scale": 1.0, "cur_iter": case.steps}
    if kind == "plain":
        optimizer = {"state": state, "param_groups": case.param_groups(counts)}
    elif kind == "unfused":
        optimizer = scale | {"optimizer_state_dict": {"state": state, "param_groups": case.param_groups(counts)},
                             "fp32_groups": [[case.values[n][0].requires_grad_() for n in g] for g in case.groups]}
    else:
        flats = [[case.flat(g, k, sum(case.values[n][0].numel() for n in g)) for k in range(3)] for g in case.groups]
        for group, flat in zip(case.groups, flats):  # the module's weights are parts of one storage per group
            bits, at = flat[0].to(case.dtype), 0
            for n in group:
                numel = case.values[n][0].numel()
                case.module[n] = bits[at:at + numel].view(SHAPES[n])
                at += numel
        state = {i: {"step": case.step(), "exp_avg": f[1], "exp_avg_sq": f[2]} for i, f in enumerate(flats)}
        optimizer = {"optimizer_state_dict": {"state": state, "param_groups": case.param_groups([1] * len(flats))},
                     "fp32_groups_flat": [f[0] for f in flats], "clip_grad": 0.5}
    case.save(case.common() | {"optimizer": optimizer}, "mp_rank_00_model_states.pt")
    case.finish(dealt=dealt)


def stage_1_2(case, alignment=1, order=None):
    """`alignment`: of each parameter in the flat array; `order`: of a group's parameters, as round_robin_gradients has it."""
    groups = [[g[i] for i in order] for g in case.groups] if order else case.groups
    world, scaler = case.world, case.scaler()
    model = case.common() | {"param_shapes": case.shapes(groups), "shared_params": case.tied}
    if case.stage == 2:
        model["frozen_param_shapes"] = OrderedDict((n, torch.Size(SHAPES[n])) for n in case.frozen)
        model["frozen_param_fragments"] = OrderedDict((n, case.module[n]) for n in case.frozen)
    case.save(model, "mp_rank_00_model_states.pt")
    all_paddings, parts = [], []
    for group in groups:
        paddings, end = [], 0
        for n in group:
            end += case.values[n][0].numel()
            paddings.append(0 if n == group[-1] else -end % alignment)
            end += paddings[-1]
        all_paddings.append(paddings)
        parts.append((end, -(-end // (2 * world)) * 2))
    for rank in range(world):
        masters, state, tails = [], {}, []
        for g, group in enumerate(groups):
            end, part = parts[g]
            tail = min(part, max(0, (rank + 1) * part - end))
            flats = [case.flat(group, k, part * world, all_paddings[g])[rank * part:(rank + 1) * part] for k in range(3)]
            masters.append(flats[0][:part - tail].clone())
            state[g] = {"step": case.step(), "exp_avg": flats[1].clone(), "exp_avg_sq": flats[2].clone()}
            tails.append(tail)
        mapping = [OrderedDict((n, record(Fragment, numel=1, start=0)) for n in reversed(g)) for g in groups]
        tree = {"loss_scaler": scaler[0], "dynamic_loss_scale": scaler[1] is not None, "overflow": False, "clip_grad": 0.5,
                "base_optimizer_state": {"state": state, "param_groups": case.param_groups([1] * len(groups))},
                "single_partition_of_fp32_groups": masters, "zero_stage": ZeroStage(case.stage), "group_paddings": tails,
                "partition_count": [world] * len(groups), "ds_version": "0.19.8", "param_slice_mappings": mapping}
        if alignment > 1:
            tree["param_alignment_paddings"] = all_paddings
        prefix = "bf16_" if case.dtype == torch.bfloat16 else ""
        case.save({"optimizer_state_dict": tree, "ds_config": {}, "ds_version": "0.19.8"},
                  f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    case.finish(scaler=scaler[1])


def rank_part(tensor, world, rank):
    part = -(-tensor.numel() // world)
    padded = torch.cat([tensor.flatten(), torch.zeros(part * world - tensor.numel(), dtype=tensor.dtype)])
    return padded[rank * part:(rank + 1) * part].clone()


def stage_3_model(case, rank, groups):
    module = OrderedDict((n, t if n == "rotary" else torch.zeros(0, dtype=t.dtype)) for n, t in case.module.items())
    return case.common() | {
        "module": module, "param_shapes": case.shapes(groups), "shared_params": case.tied,
        "frozen_param_shapes": OrderedDict((n, torch.Size(SHAPES[n])) for n in case.frozen),
        "frozen_param_fragments": OrderedDict((n, rank_part(case.module[n], case.world, rank)) for n in case.frozen)}


def stage_3(case, sub_groups=1):
    names = [n for g in case.groups for n in g]
    size = -(-len(names) // sub_groups)
    groups = [names[i:i + size] for i in range(0, len(names), size)]
    scaler = case.scaler()
    for rank in range(case.world):
        case.save(stage_3_model(case, rank, groups), f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flats = [[torch.cat([rank_part(case.values[n][k], case.world, rank) for n in g]) for k in range(3)] for g in groups]
        state = {i: {"step": case.step(), "exp_avg": f[1], "exp_avg_sq": f[2]} for i, f in enumerate(flats)}
        masters = [f[0].requires_grad_() for f in flats]
        for i, master in enumerate(masters):
            master.ds_id = f"{i}_0"  # with attributes, torch pickles a tensor by its class
        tree = {"zero_stage": ZeroStage.weights, "loss_scaler": scaler[0], "dynamic_loss_scale": scaler[1] is not None,
                "overflow": False, "partition_count": case.world, "fp32_flat_groups": masters,
                "optimizer_state_dict": {"state": state, "param_groups": case.param_groups([1] * len(groups))}}
        prefix = "bf16_" if case.dtype == torch.bfloat16 else ""
        case.save({"optimizer_state_dict": tree, "ds_config": {}, "ds_version": "0.19.8"},
                  f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    case.finish(scaler=scaler[1])


def universal(case):
    groups = case.groups
    optimizer = {"zero_stage": ZeroStage(case.stage), "loss_scaler": case.scaler()[0], "ds_version": "0.19.8",
                 "param_groups": case.param_groups([1])}
    for n in [n for g in groups for n in g]:
        for k, kind in enumerate(KINDS):
            value = case.values[n][k]
            case.save(value.flatten() if case.stage == 3 else {"param": value, "cat_dim": 0}, f"zero/{n}/{kind}.pt")
        if case.stage < 3:
            case.save(case.step(), f"zero/{n}/step.pt")
    if case.stage == 3:
        optimizer["optimizer_state_dict"] = {"state": {0: {"step": case.step()}}, "param_groups": []}
        for rank in range(case.world):
            case.save(stage_3_model(case, rank, groups), f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    else:
        case.save(case.common() | {"param_shapes": case.shapes(groups), "shared_params": case.tied},
                  "mp_rank_00_model_states.pt")
    case.save(optimizer, "zero/optimizer_state.pt")
    case.finish("latest_universal", scaler=case.scaler()[1])


def pytorch_bin(name, tree, weights, **options):
    folder = FOLDER / "pytorch_bin" / name
    folder.mkdir(parents=True)
    torch.save(tree, folder / "pytorch_model.bin", **options)
    save_file(weights, folder / "weights.safetensors")


def all_pytorch_bins():
    generator = torch.Generator().manual_seed(7)
    base = torch.randn((4, 6), generator=generator)
    plain = OrderedDict(a=base[:2].clone(), b=base[2:].clone())
    pytorch_bin("legacy", plain, dict(plain), _use_new_zipfile_serialization=False)
    pytorch_bin("parameters", OrderedDict((n, torch.nn.Parameter(t)) for n, t in plain.items()), dict(plain))
    pytorch_bin("wrapped", {"state_dict": plain, "epoch": 3}, dict(plain))
    versioned = OrderedDict(plain)
    versioned._metadata = OrderedDict([("", {"version": 1})])
    pytorch_bin("versioned", versioned, dict(plain))
    views = {"transposed": base.t(), "column": base[:, 2], "part": base[1:3, 1:4], "repeated": base[0, :1].expand(3, 2),
             "scalar": base[3, 5], "empty": base[:0]}
    pytorch_bin("views", views, {n: t.contiguous().clone() for n, t in views.items()})
    odd = {"f64": base.double() / 3, "f16": base.half(), "bf16": base.bfloat16(), "i64": torch.arange(5) * -3 << 40,
           "i32": torch.arange(3, dtype=torch.int32), "i16": torch.arange(3, dtype=torch.int16), "i8":
           torch.arange(3, dtype=torch.int8), "u8": torch.arange(3, dtype=torch.uint8), "bool": base[0] > 0, "u16":
           torch.arange(3).to(torch.uint16), "f8": base[0].to(torch.float8_e4m3fn)}
    pytorch_bin("odd", odd, odd)


def pack():
    def plain(info):
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() else 0o644
        return info

    PACKED.parent.mkdir(exist_ok=True)
    with tarfile.open(PACKED, "w:xz", preset=9) as tar:
        for path in sorted(FOLDER.rglob("*")):
            tar.add(path, path.relative_to(FOLDER), recursive=False, filter=plain)


def main():
    two = [["embed.weight", "layers.0.weight", "layers.1.weight", "head.weight"], ["layers.0.norm", "layers.1.norm"]]
    stage_0(Case("stage0_plain_groups", 0, 1, groups=two), "plain")
    stage_0(Case("stage0_plain_frozen", 0, 1, frozen=["layers.0.weight"]), "plain")
    stage_0(Case("stage0_plain_ambiguous", 0, 1, frozen=["layers.0.weight", "layers.0.norm"]), "plain", dealt=False)
    stage_0(Case("stage0_unfused_bf16_groups", 0, 2, torch.bfloat16, two), "unfused")
    stage_0(Case("stage0_fused_bf16_frozen", 0, 2, torch.bfloat16, frozen=["layers.0.weight"]), "fused")
    stage_1_2(Case("stage1_fp32_w3_groups", 1, 3, groups=two, frozen=[]))
    stage_1_2(Case("stage1_bf16_w2_aligned_frozen", 1, 2, torch.bfloat16, frozen=["layers.1.norm"], tied=True), 8)
    stage_1_2(Case("stage2_fp16_w2_round_robin", 2, 2, torch.float16, steps=6, skipped=2), order=[0, 2, 4, 1, 3, 5])
    stage_1_2(Case("stage2_fp32_w1_frozen", 2, 1, frozen=["embed.weight"]))
    stage_3(Case("stage3_bf16_w3_tied_frozen", 3, 3, torch.bfloat16, frozen=["layers.0.norm"], tied=True), 2)
    stage_3(Case("stage3_fp16_w2_sub_groups", 3, 2, torch.float16, steps=5, skipped=1), 3)
    few = [["layers.0.weight", "layers.0.norm"]]
    rest = [n for n in SHAPES if n not in few[0]]
    universal(Case("universal_stage1_w2", 1, 2, groups=few, frozen=rest))
    universal(Case("universal_stage3_w2", 3, 2, groups=few, frozen=rest))
    all_pytorch_bins()
    pack()


if __name__ == "__main__":
    main()
