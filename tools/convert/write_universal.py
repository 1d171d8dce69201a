"""Writes DeepSpeed's universal checkpoint (version 0.4, with full shapes) out of a stream: a line of JSON, then the elements of each
trained tensor's arrays in fp32, then those of each other tensor in its own type.

Invariant: at most one array of a trained tensor is held at a time; the others lie in a mapped file, which is removed at the end.
"""

import ctypes
import json
import math
import os
from collections import OrderedDict

import torch

from convert.checkpoint import ARRAYS
from convert.torch_file import TYPES
from prepare.errors import UserError, first_line

FILES = ("fp32", *ARRAYS[1:])
DTYPES = {name: dtype for dtype, name in TYPES.items()}
# DeepSpeed takes as many groups as its run has, and nothing out of them but what they name.
MOST_GROUPS = 16
DEEPSPEED_VERSION = "0.19.8"  # where the checkpoint names none
UNIVERSAL_VERSION = 0.4


def fill(storage, stream):
    """The storage with the stream's next bytes in it."""
    memory = memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B") if storage.nbytes() else b""
    at = 0
    while at < len(memory):
        count = stream.readinto(memory[at:])
        if not count:
            raise UserError("[convert] the checkpoint ended early; convert it again")
        at += count
    return storage


def tensor_of(storage, dtype, shape):
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save(tree, path):
    try:
        torch.save(tree, path)
    except RuntimeError as error:  # the disk's fault
        raise OSError(0, first_line(error), path) from None
    sync(path)


def step_of(plan):
    """torch's own Adam counts in a tensor, DeepSpeed's in an integer."""
    at = json.loads(plan["ds_config"] or "null")
    for key in ("optimizer", "params", "torch_adam"):
        at = at.get(key) if isinstance(at, dict) else None
    return torch.tensor(float(plan["optimizer_steps"])) if at is True else plan["optimizer_steps"]


def groups_of(plan):
    """The rate of the run's next step, which DeepSpeed takes from the groups for the first step after a load."""
    rate = {"lr": plan["next_rate"]} if "next_rate" in plan else {}
    return [{"params": [], **rate} for _ in range(MOST_GROUPS)]


def optimizer_state(plan, version):
    """The state that belongs to no parameter. The loss scaler is not in it: it is an object of DeepSpeed's, and this file shall be one that
    torch reads without executing anything."""
    return {"zero_stage": plan["zero_stage"], "ds_version": version, "param_groups": groups_of(plan),
            # where stage 3 looks
            "optimizer_state_dict": {"state": {0: {"step": step_of(plan)}}, "param_groups": groups_of(plan)}}


def model_states(plan, version, module):
    tensors = plan["tensors"]
    shapes = OrderedDict((tensor["name"], torch.Size(tensor["shape"])) for tensor in tensors if not tensor["frozen"])
    schedule = {"last_batch_iteration": plan["schedule_step"]} if "schedule_step" in plan else None
    return {"module": module, "buffer_names": [tensor["name"] for tensor in tensors if tensor["buffer"]], "param_shapes": [shapes],
            "shared_params": plan["tied"], "optimizer": None, "frozen_param_shapes": None, "frozen_param_fragments": None, "data_sampler": None,
            "lr_scheduler": schedule, "skipped_steps": plan["skipped_steps"], "global_steps": plan["global_steps"],
            "global_samples": plan["global_samples"], "dp_world_size": plan["world_size"], "mp_world_size": 1,
            **({"ds_config": json.loads(plan["ds_config"])} if plan["ds_config"] else {}), "ds_version": version,
            "universal_checkpoint_info": {"universal_checkpoint_version": UNIVERSAL_VERSION}, **json.loads(plan["client_state"] or "{}")}


def write_trained(plan, zero, stream):
    for tensor in plan["tensors"]:
        if tensor["frozen"]:
            continue
        folder = os.path.join(zero, tensor["name"])
        os.makedirs(folder)
        for name, there in zip(FILES, tensor["arrays"]):
            if there:
                numel = math.prod(tensor["shape"])  # the tensor has no name here, so that it goes before the next one comes
                save({"param": tensor_of(fill(torch.UntypedStorage(numel * 4), stream), torch.float32, tensor["shape"]), "cat_dim": 0},
                     os.path.join(folder, f"{name}.pt"))
        save(step_of(plan), os.path.join(folder, "step.pt"))


def read_module(plan, held, stream):
    """The tensors that no optimizer trains, in the file `held`, which may be larger than memory."""
    rest = [tensor for tensor in plan["tensors"] if tensor["frozen"]]
    sizes = [math.prod(tensor["shape"]) * DTYPES[tensor["type"]].itemsize for tensor in rest]
    module, at = OrderedDict(), 0
    if sum(sizes):
        with open(held, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, sum(sizes))  # a full disk shows here, and not in the map
        whole = torch.UntypedStorage.from_file(held, True, sum(sizes))
    for tensor, size in zip(rest, sizes):
        storage = fill(whole[at:at + size], stream) if size else torch.UntypedStorage(0)
        module[tensor["name"]] = tensor_of(storage, DTYPES[tensor["type"]], tensor["shape"])
        at += size
    return module


def write(folder, stream):
    plan = json.loads(stream.readline())
    version, zero, held = plan["ds_version"] or DEEPSPEED_VERSION, os.path.join(folder, "zero"), os.path.join(folder, ".module")
    os.mkdir(zero)
    write_trained(plan, zero, stream)
    save(optimizer_state(plan, version), os.path.join(zero, "optimizer_state.pt"))
    try:
        states = model_states(plan, version, read_module(plan, held, stream))
        # Below stage 3 DeepSpeed looks for the first name, at stage 3 for the second.
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
            save(states, os.path.join(folder, name))
    finally:
        if os.path.exists(held):
            os.remove(held)
    for path, _, _ in os.walk(folder):
        sync(path)
