"""Stage 0. The optimizer numbers its parameters group after group, and no file gives their names. The module lists the names in its own
order, and each group keeps that order. So the names are assigned to the groups by shapes, and by values if there are fp32 copies. If
several assignments fit, the moments are left out and not guessed."""

from typing import NamedTuple

import torch

from convert.checkpoint import ARRAYS, whole
from convert.module import buffers_of, same_memory, scaler_of, steps_of
from convert.values import dict_of, find, items_of, member_of

MOST_WAYS = 256  # that are followed at once
COMPARED_ELEMENTS = 4096
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


class Entry(NamedTuple):
    """One parameter of the optimizer."""

    master: object  # where there are fp32 copies
    moments: list


class Param(NamedTuple):
    """One parameter of the module."""

    name: object
    tensor: object


def params_of(model):
    """Each tied one once."""
    buffers, seen, params = buffers_of(model), set(), []
    for name, value in dict_of(model, model.root, "module").items():
        tensor = model.tensor_of(value)
        if tensor is None or name in buffers or (tensor.numel() > 0 and same_memory(tensor)[:-1] in seen):
            continue
        if tensor.numel() > 0:
            seen.add(same_memory(tensor)[:-1])
        params.append(Param(name, tensor))
    return params


def is_rounded(model, weight, master, offset):
    """Whether a weight of the module is its fp32 copy, rounded."""
    if weight.dtype not in BITS or offset + weight.numel() > master.numel():
        return False
    count = min(weight.numel(), COMPARED_ELEMENTS)
    values = model.checked(master).reshape(-1)[offset:offset + count].to(torch.float32).to(weight.dtype)
    bits = BITS[weight.dtype]
    return torch.equal(values.view(bits), model.checked(weight).reshape(-1)[:count].view(bits))


def fits(model, param, entry):
    like = entry.moments[0] if entry.master is None else entry.master
    if like is None:
        return True  # never trained
    return like.shape == param.tensor.shape and (entry.master is None or is_rounded(model, param.tensor, entry.master, 0))


def deal(model, params, groups):
    """Deals the module's parameters out to the groups. The entry of each parameter, None for one that no group has; None if no way fits,
    or more than one."""
    entries = sum(map(len, groups))
    levels = [{(0,) * len(groups): (1, None, None)}]  # taken from each group -> (ways, 2: or more; taken before, group)
    for p, param in enumerate(params):
        level = {}

        def step(taken, ways, before, group):
            level[taken] = (min(2, level.get(taken, (0,))[0] + ways), before, group)

        for taken, (ways, *_) in levels[-1].items():
            for g, group in enumerate(groups):
                if taken[g] < len(group) and fits(model, param, group[taken[g]]):
                    step((*taken[:g], taken[g] + 1, *taken[g + 1:]), ways, taken, g)
            if len(params) - p > entries - sum(taken):  # enough are left without this one
                step(taken, ways, taken, None)
        if len(level) > MOST_WAYS:
            return None
        levels.append(level)
    taken = tuple(map(len, groups))
    if levels[-1].get(taken, (0,))[0] != 1:
        return None
    dealt = []
    for level in reversed(levels[1:]):
        _, before, group = level[taken]
        dealt.append(None if group is None else groups[group][before[group]])
        taken = before
    return dealt[::-1]


def moments_of(model, optimizer):
    """number of the state -> [exp_avg, exp_avg_sq], None for one that is not there"""
    states = dict_of(model, optimizer, "state")
    return {number: [model.tensor_of(find(state, kind)) for kind in ARRAYS[1:]] for number, state in states.items()}


def groups_of(model, optimizer, masters):
    moments, groups = moments_of(model, optimizer), []
    for g, group in enumerate(items_of(member_of(model, optimizer, "param_groups"))):
        copies = items_of(items_of(masters)[g]) if g < len(items_of(masters)) else []
        groups.append([])
        for i, number in enumerate(items_of(member_of(model, group, "params"))):
            if type(number) is not int:
                raise model.error("its optimizer's parameters are no numbers")
            groups[-1].append(Entry(model.tensor_of(copies[i]) if i < len(copies) else None, moments.get(number, [None, None])))
    return groups


def add_flat_group(out, model, params, master, moments):
    """The fused optimizers of 16 bits: one flat array per group, and the module's weights are parts of one storage per group in the same
    order. Returns the parameters of other groups; None where this one has none."""
    by_storage = {}
    for param in params:
        by_storage.setdefault(param.tensor.untyped_storage().data_ptr(), []).append(param)
    for members in by_storage.values():
        members = sorted(members, key=lambda param: (param.tensor.storage_offset(), param.tensor.numel()))
        offset = 0
        for param in members:
            if not param.tensor.is_contiguous() or param.tensor.storage_offset() != offset or not is_rounded(model, param.tensor, master, offset):
                break
            offset += param.tensor.numel()
        else:
            if offset == master.numel():
                flats = [flat if flat is not None and flat.is_contiguous() and flat.numel() == master.numel() else None for flat in (master, *moments)]
                for name, tensor in members:
                    begin = tensor.storage_offset()
                    out.add(model, name, tensor.shape, torch.float32,
                            [None if flat is None else [(flat, begin, tensor.numel())] for flat in flats])
                return [param for param in params if all(param is not member for member in members)]
    return None


def add_flat_groups(out, model, flats, optimizer):
    params, moments = params_of(model), moments_of(model, optimizer)
    for g, flat in enumerate(items_of(flats)):
        master = model.tensor_of(flat)
        params = None if master is None or not master.is_contiguous() else add_flat_group(out, model, params, master, moments.get(g, [None, None]))
        if params is None:
            return False
    return True


def add_dealt(out, model, groups):
    params = params_of(model)
    dealt = deal(model, params, groups)
    for param, entry in zip(params, dealt or ()):
        if entry is None or (entry.master is None and entry.moments[0] is None):
            continue
        master = param.tensor if entry.master is None else entry.master
        for kind, moment in zip(ARRAYS[1:], entry.moments):
            if moment is not None and moment.numel() != param.tensor.numel():
                raise model.error(f"the {kind} of \"{param.name}\" has another size")
        out.add(model, param.name, param.tensor.shape, master.dtype,
                [None if tensor is None else whole(tensor) for tensor in (master, *entry.moments)])
    return dealt is not None


def add_weights(out, model):
    """Parameters of which the file does not say whether they are trained."""
    for name, tensor in params_of(model):
        if name not in out.tensors:
            out.add_stored(model, name, tensor)


def add(out, model):
    """Parameters and optimizer state of a model file that has the optimizer's whole state."""
    own = find(model.root, "optimizer")
    if not isinstance(own, dict):
        out.notes.append("optimizer: the checkpoint holds none")
        add_weights(out, model)
        return
    optimizer = own.get("optimizer_state_dict", own)
    steps = steps_of(model, optimizer)
    out.fields["optimizer_steps"] = out.fields["optimizer_steps"] if steps is None else steps
    out.fields["scaler"] = scaler_of(model, own, "cur_iter", "last_overflow_iter", None, own.get("cur_scale"), own.get("dynamic_loss_scale"))
    flats = own.get("fp32_groups_flat")
    if not (add_flat_groups(out, model, flats, optimizer) if flats is not None
            else add_dealt(out, model, groups_of(model, optimizer, own.get("fp32_groups")))):
        out.notes.append("optimizer: its parameters have no names at stage 0, and shapes and values fit more than one parameter, or none; save at ZeRO "
                         "stage 1 to keep its state")
        add_weights(out, model)
