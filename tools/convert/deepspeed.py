"""A folder that DeepSpeed saved, of any ZeRO stage and number of ranks: which files those are, and stages 1 to 3. Stage 0: stage_0.py."""

import math
import os
import re

from convert import stage_0
from convert.checkpoint import ARRAYS, Checkpoint, Flat, concatenated, part_of, partitioned
from convert.module import finish, param_shapes, read_counts, read_scaler, steps_of
from convert.torch_file import TorchFile
from convert.values import find, integer_of, is_integer, items_of, member_of
from prepare.errors import UserError

import torch

# [bf16_]zero_pp_rank_R_mp_rank_00_..., or mp_rank_00_... without ranks
FILE_NAME = re.compile(r"(?:bf16_|fp16_)?(?:zero_pp_rank_([0-9]{1,9})_)?mp_rank_[0-9]+_(model|optim)_states\.pt")
MOST_PADDING = 1 << 20


def reason_against(name):
    """A file that DeepSpeed writes only for what is not read here."""
    if not name.endswith(("_model_states.pt", "_optim_states.pt")):
        return None
    if "_expert_" in name or name.startswith("expp_rank_"):
        return "expert parallelism"
    if name.startswith("layer_"):
        return "pipeline parallelism"
    return "tensor parallelism" if "mp_rank_" in name and "mp_rank_00_" not in name else None


def in_order(files, folder):
    paths = [files[rank] for rank in sorted(files)]
    for wanted, rank in enumerate(sorted(files)):
        if rank != wanted:
            raise UserError(f"[import] {folder} holds no file like {os.path.basename(files[rank])} of rank {wanted}; copy the checkpoint again")
    return paths


def find_files(folder):
    """(paths of the model files, one below stage 3; paths of the optimizer files), by rank"""
    whole, models, optimizers = {}, {}, {}
    for name in sorted(os.listdir(folder)):
        if reason := reason_against(name):
            raise UserError(f"[import] {os.path.join(folder, name)} was saved under {reason}, which is not read; gather it with DeepSpeed first")
        parts = FILE_NAME.fullmatch(name)
        if not parts:
            continue
        kind = optimizers if parts[2] == "optim" else whole if parts[1] is None else models
        rank = int(parts[1] or 0)
        if kind.setdefault(rank, os.path.join(folder, name)) != os.path.join(folder, name):
            raise UserError(f"[import] {folder} holds two kinds of files of rank {rank}, one of them {name}; remove the ones of the older run")
    if models and whole:
        raise UserError(f"[import] {folder} holds model files of stage 3 and {os.path.basename(whole[min(whole)])} of another stage; remove the ones "
                        "of the older run")
    if not models and not whole:
        raise UserError(f"[import] {folder} holds no *_model_states.pt; copy the checkpoint again")
    return in_order(models or whole, folder), in_order(optimizers, folder)


class OptimizerStates:
    """Everything that the optimizer files hold of all parameters, and where each kind of array lies in them."""

    def __init__(self, paths):
        self.files = [TorchFile(path) for path in paths]
        self.states = [member_of(file, file.root, "optimizer_state_dict") for file in self.files]
        stages = [find(state, "zero_stage") for state in self.states]
        self.stage = 1 if stages[0] is None else stages[0]
        for file, state, stage in zip(self.files, self.states, stages):
            stage = 1 if stage is None else stage
            if stage not in (1, 2, 3) or stage != self.stage:
                raise file.error(f"its ZeRO stage {stage} is none, or not that of the other ranks")
            counts = find(state, "partition_count")
            if any(is_integer(count) and count != len(paths) for count in [counts, *items_of(counts)]):
                raise file.error(f"it is one of another number of ranks than the {len(paths)} whose files are there")

    def base(self, rank):
        """The optimizer that DeepSpeed's own wraps."""
        return member_of(self.files[rank], self.states[rank], "optimizer_state_dict" if self.stage == 3 else "base_optimizer_state")

    def master(self, rank, group):
        """The fp32 array of a group of parameters, or of a sub-group."""
        groups = items_of(member_of(self.files[rank], self.states[rank],
                                    "fp32_flat_groups" if self.stage == 3 else "single_partition_of_fp32_groups"))
        tensor = self.files[rank].tensor_of(groups[group]) if group < len(groups) else None
        if tensor is None:
            raise self.files[rank].error(f"it lacks fp32 group {group}")
        return tensor

    def moment(self, rank, group, kind):
        optimizer = self.base(rank)
        states = dict(enumerate(optimizer)) if type(optimizer) is list else find(optimizer, "state")  # a list: elastic checkpoints
        return self.files[rank].tensor_of(find(find(states, group), kind))

    def arrays(self, out, first_group, groups):
        """For each of ARRAYS one Flat per rank; None where the optimizer keeps no such moment."""
        found = []
        for kind in ARRAYS:
            ranks = [self.flat(rank, range(first_group, first_group + groups), kind) for rank in range(len(self.files))]
            if None in ranks:
                out.notes.append(f"fp32 group {first_group}: its optimizer keeps no {kind}")
            found.append(None if None in ranks else ranks)
        return found

    def flat(self, rank, groups, kind):
        flat = Flat()
        for group in groups:
            master = self.master(rank, group)
            tensor = master if kind == "master" else self.moment(rank, group, kind)
            if tensor is None and master.numel() > 0:
                return None
            # Below stage 3 masters are saved without the padding that moments have.
            if tensor is not None and (tensor.numel() < master.numel() or (self.stage == 3 and tensor.numel() != master.numel())):
                raise self.files[rank].error(f"the {kind} of fp32 group {group} has another size")
            if tensor is not None:
                flat.add(self.files[rank], tensor)
        return flat


def add_stage_3(out, states, model):
    """Every parameter is cut into equal parts, and a rank's parts of a sub-group's parameters lie behind each other."""
    groups = param_shapes(model)
    arrays = states.arrays(out, 0, len(items_of(member_of(states.files[0], states.states[0], "fp32_flat_groups"))))
    available, offset = arrays[0][0].numel, 0
    params = [param for group in groups for param in group]
    total = sum(part_of(math.prod(shape), len(states.files)) for _, shape in params)
    if total > available:
        raise model.error(f"its parameters are larger than the {available} elements of each rank")
    for rank, flat in enumerate(arrays[0]):
        if flat.numel != total:
            raise model.error(f"rank {rank}'s part of fp32_flat_groups has {flat.numel} elements, and {total} are expected")
    for name, shape in params:
        numel = math.prod(shape)
        part = part_of(numel, len(states.files))
        out.add(model, name, shape, torch.float32, [array and partitioned(array, offset, part, numel) for array in arrays])
        offset += part


def paddings_of(states, group, params):
    """Zeros that DeepSpeed puts behind the parameters of a group; none in older versions."""
    every = find(states.states[0], "param_alignment_paddings")
    if every is None:
        return [0] * params
    own = items_of(every)[group] if group < len(items_of(every)) else None
    if len(items_of(own)) != params:
        raise states.files[0].error("its param_alignment_paddings do not fit its parameters")
    if not all(is_integer(padding) and 0 <= padding <= MOST_PADDING for padding in items_of(own)):
        raise states.files[0].error("its param_alignment_paddings are no small integers")
    return own


def add_group(out, states, model, params, group):
    """Stages 1 and 2: a group's parameters lie behind each other in one array, in the order of `param_shapes`, and the ranks hold equal
    parts of it; only where it ends, masters are shorter. (The names in `param_slice_mappings` are wrong under round_robin_gradients.)"""
    arrays = states.arrays(out, group, 1)
    part, available = arrays[0][0].numel, 0
    for flat in arrays[0]:
        if available % max(part, 1) == 0:
            available += flat.numel
        if flat.numel > part:
            raise model.error(f"the ranks' parts of fp32 group {group} have sizes that do not fit together")
    offset = 0
    for (name, shape), padding in zip(params, paddings_of(states, group, len(params))):
        numel = math.prod(shape)
        if numel > available - offset:
            raise model.error(f"its parameters are larger than the {available} elements of fp32 group {group}")
        out.add(model, name, shape, torch.float32, [array and concatenated(array, offset, part, numel) for array in arrays])
        offset += numel + padding
    # A whole tensor more or less would be an error of assembly; padding is smaller.
    if available - offset > 2 * len(states.files) + 16 * len(params) + 16:
        raise model.error(f"{available - offset} elements of fp32 group {group} belong to no parameter")


def read(folder):
    model_paths, optimizer_paths = find_files(folder)
    out = Checkpoint("deepspeed")
    models = [TorchFile(path) for path in model_paths]
    read_counts(out, models[0])
    if not optimizer_paths:
        if param_shapes(models[0]):
            raise UserError(f"[import] {folder} holds no *_optim_states.pt, in which the fp32 weights are; copy the checkpoint again")
        out.fields["zero_stage"] = 0
        stage_0.add(out, models[0])
        finish(out, models, 0)
        return out
    states = OptimizerStates(optimizer_paths)
    out.fields["zero_stage"] = states.stage
    world = out.fields["world_size"]
    if world != len(states.files) or (states.stage == 3 and len(models) != world):
        raise models[0].error(f"it is of {world} ranks, and {len(states.files)} optimizer files and {len(models)} model files are there")
    read_scaler(out, states.files[0], find(states.states[0], "loss_scaler"))
    steps = steps_of(states.files[0], states.base(0))
    if steps is None:
        steps = integer_of(states.files[0], states.states[0], "base_optimizer_state_step", out.fields["optimizer_steps"])
    out.fields["optimizer_steps"] = steps
    if states.stage == 3:
        add_stage_3(out, states, models[0])
    else:
        for group, params in enumerate(param_shapes(models[0])):
            add_group(out, states, models[0], params, group)
    finish(out, models, states.stage)
    return out
