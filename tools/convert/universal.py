"""DeepSpeed's universal form: a folder zero/ with one folder for each parameter, and model files beside it."""

import math
import os

from convert.checkpoint import ARRAYS, Checkpoint, whole
from convert.deepspeed import find_files
from convert.module import finish, param_shapes, read_counts, read_scaler, steps_of
from convert.torch_file import TorchFile
from convert.values import count_of, find, integer_of, member_of
from prepare.errors import UserError

FILES = ("fp32.pt", *(f"{kind}.pt" for kind in ARRAYS[1:]))


def open_tensor(path):
    """(the file, its tensor). Stages 0 to 2 save {"param": tensor of full shape}, stage 3 the flat tensor itself."""
    file = TorchFile(path)
    tensor = file.tensor_of(member_of(file, file.root, "param") if isinstance(file.root, dict) else file.root)
    if tensor is None:
        raise file.error("it holds no tensor")
    for key in ("sub_param_shape", "param_n_sub_params", "vocab_tensor"):
        if find(file.root, key) is not None:
            raise UserError(f"[import] {path} is of tensor parallelism (\"{key}\"), which is not read; gather it with DeepSpeed first")
    return file, tensor


def add_tensor(out, model, folder, shape):
    file, master = open_tensor(os.path.join(folder, FILES[0]))
    shape = master.shape if shape is None else shape
    if math.prod(shape) != master.numel():
        raise file.error(f"it has {master.numel()} elements, and its parameter {list(shape)}")
    arrays = [whole(master)]
    for name in FILES[1:]:
        path = os.path.join(folder, name)
        moment = None
        if os.path.exists(path):
            file, moment = open_tensor(path)
            if moment.numel() != master.numel():
                raise file.error("it has another size than fp32.pt beside it")
        arrays.append(None if moment is None else whole(moment))
    out.add(model, os.path.basename(folder), shape, master.dtype, arrays)


def read(folder):
    out = Checkpoint("universal")
    # Our own writer makes a file for each range of stages, of one content.
    whole = os.path.join(folder, "mp_rank_00_model_states.pt")
    is_whole = os.path.exists(whole)
    models = [TorchFile(path) for path in ([whole] if is_whole else find_files(folder)[0])]
    read_counts(out, models[0])
    listed = {name: shape for group in param_shapes(models[0]) for name, shape in group}
    zero, steps = os.path.join(folder, "zero"), None
    for name in sorted(os.listdir(zero)):
        own = os.path.join(zero, name)
        if not os.path.exists(os.path.join(own, FILES[0])):
            continue
        add_tensor(out, models[0], own, listed.get(name))
        if steps is None and os.path.exists(os.path.join(own, "step.pt")):
            file = TorchFile(os.path.join(own, "step.pt"))
            steps = count_of(file, file.root)
    found = sum(name in out.tensors for name in listed)
    if found != len(listed):
        raise UserError(f"[import] {zero} holds {found} of the {len(listed)} parameters that {os.path.basename(models[0].path)} lists; convert the "
                        "checkpoint again")
    state = os.path.join(zero, "optimizer_state.pt")
    if os.path.exists(state):
        file = TorchFile(state)
        out.fields["zero_stage"] = integer_of(file, file.root, "zero_stage", 1)
        read_scaler(out, file, find(file.root, "loss_scaler"))
        optimizer = find(file.root, "optimizer_state_dict")
        if optimizer is not None and steps is None:
            steps = steps_of(file, optimizer)
    else:
        out.notes.append("the loss scaler: zero/optimizer_state.pt is not there")
    out.fields["optimizer_steps"] = out.fields["optimizer_steps"] if steps is None else steps
    finish(out, models, 2 if is_whole else 3)
    return out
