"""A model file of DeepSpeed's (*_model_states.pt): its counts and client state, the shapes of its parameters, and what of the
module no optimizer trains."""

import math

from convert.checkpoint import Flat, part_of, partitioned
from convert.values import count_of, dict_of, find, integer_of, is_integer, is_set, is_text, items_of, json_of, member_of, number_of
from prepare.errors import UserError, escaped

# DeepSpeed itself puts these into a model file; all other keys are the client's. models/convert/ has the same list.
OWN_KEYS = {"module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params", "frozen_param_fragments",
            "lr_scheduler", "data_sampler", "random_ltd", "sparse_tensor_module_names", "skipped_steps", "global_steps", "global_samples",
            "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version", "num_experts",
            "universal_checkpoint_info"}


def listed(file, shapes):
    """[(name, shape)] of a dict of torch.Size."""
    if not isinstance(shapes, dict):
        raise file.error("its parameters' shapes are no dict")
    for shape in shapes.values():
        if not isinstance(shape, tuple) or not all(is_integer(size) and size >= 0 for size in shape) or math.prod(shape) >= 1 << 63:
            raise file.error("one of its shapes is none")
    return list(shapes.items())


def param_shapes(model):
    """The groups of a model file in the order of the flat groups; none where it lists none, as at stage 0."""
    groups = find(model.root, "param_shapes")
    if groups is None:
        return []
    if isinstance(groups, dict):  # DeepSpeed before 0.5: one group
        groups = [groups]
    if type(groups) is not list:
        raise model.error("its \"param_shapes\" is no list")
    return [listed(model, group) for group in groups]


def buffers_of(model):
    return {name for name in items_of(find(model.root, "buffer_names")) if type(name) is str}


def read_counts(out, model):
    """Steps, schedule, configuration and client state."""
    fields, root = out.fields, model.root
    for key in ("global_steps", "skipped_steps", "global_samples"):
        fields[key] = integer_of(model, root, key, 0)
    fields["world_size"] = integer_of(model, root, "dp_world_size", 1)
    fields["optimizer_steps"] = fields["global_steps"] - fields["skipped_steps"]
    if integer_of(model, root, "mp_world_size", 1) != 1:
        raise UserError(f"[import] {model.path} was saved under tensor or pipeline parallelism, which is not read; gather it with DeepSpeed first")
    schedule = find(root, "lr_scheduler")
    if schedule is not None:
        if is_integer(find(schedule, "last_batch_iteration")):
            fields["schedule_step"] = schedule["last_batch_iteration"]
        elif is_integer(find(schedule, "last_epoch")):
            fields["schedule_step"] = schedule["last_epoch"] - 1  # torch's schedulers begin at 0, DeepSpeed's at -1
        else:
            out.notes.append("the state of a learning rate scheduler of an unknown kind")
    if is_text(find(root, "ds_version")):
        fields["ds_version"] = escaped(root["ds_version"])
    config = find(root, "ds_config")
    if config is not None:
        fields["ds_config"] = json_of(config) or ""
        if not fields["ds_config"]:
            out.notes.append("ds_config: it is no plain data")
    client = []
    for key, value in root.items() if isinstance(root, dict) else ():
        text = json_of(value) if is_text(key) and key not in OWN_KEYS else None
        if text is not None:
            client.append(f"{json_of(key)}: {text}")
        elif key not in OWN_KEYS:
            out.notes.append(f"client state \"{key}\": it is no plain data")
    fields["client_state"] = "{" + ", ".join(client) + "}"


def scaler_of(file, state, step, last, hysteresis, scale, dynamic):
    """A constant scale of 1 counts as none."""
    scale = number_of(file, scale)
    scale = 1.0 if scale is None else scale
    if scale == 1 and not is_set(dynamic):
        return None
    return {"scale": scale, "step": integer_of(file, state, step, 0), "last_overflow": integer_of(file, state, last, -1),
            "hysteresis": integer_of(file, state, hysteresis, 1) if hysteresis else 1}


def read_scaler(out, file, scaler):
    """The one that DeepSpeed pickles with its ZeRO optimizers."""
    state = getattr(scaler, "fields", None)
    if isinstance(state, dict):
        out.fields["scaler"] = scaler_of(file, state, "cur_iter", "last_overflow_iter", "cur_hysteresis", state.get("cur_scale"), state.get("dynamic"))


def first_step(file, states):
    if isinstance(states, dict):
        states = list(states.values())
    return count_of(file, find(items_of(states)[0], "step")) if items_of(states) else None


def steps_of(file, optimizer):
    """Adam's count of steps from the state of a parameter or flat group, or else from its group."""
    steps = first_step(file, optimizer if type(optimizer) is list else find(optimizer, "state"))
    return first_step(file, find(optimizer, "param_groups")) if steps is None else steps


def finish(out, models, stage):
    """Buffers, frozen parameters and tied names from the model files of all ranks (one file below stage 3), and the module's order.
    Comes behind the trained parameters."""
    shared = find(models[0].root, "shared_params")
    for alias, name in shared.items() if isinstance(shared, dict) else ():
        if name in out.tensors:
            out.tie(models[0], alias, name)
        elif alias in out.tensors:
            out.tie(models[0], name, alias)
    if stage == 3:
        add_fragments(out, models)
    module = dict_of(models[0], models[0].root, "module")
    add_rest(out, models[0], module, stage)
    # round_robin_gradients and parameter groups list the parameters in another order than the module.
    rank = {name: i for i, name in enumerate(module)}
    out.tensors = dict(sorted(out.tensors.items(), key=lambda item: (rank.get(item[0], len(rank)), item[0])))


def add_fragments(out, models):
    """Stage 3 keeps a frozen parameter in pieces, too: a part of each rank's file."""
    shapes = find(models[0].root, "frozen_param_shapes")
    for name, shape in listed(models[0], shapes) if shapes else ():
        ranks, numel = [], math.prod(shape)
        part = part_of(numel, len(models))
        for model in models:
            piece = model.tensor_of(member_of(model, dict_of(model, model.root, "frozen_param_fragments"), name))
            if piece is None:
                raise model.error(f"its piece of \"{name}\" is no tensor")
            ranks.append(Flat([(model, piece)]))
            if ranks[-1].numel != part:
                raise models[0].error(f"rank {len(ranks) - 1}'s part of {name} has {ranks[-1].numel} elements, and {part} are expected")
        out.add(models[0], name, shape, piece.dtype, [partitioned(ranks, 0, part, numel)], frozen=True)


def same_memory(tensor):
    """Equal for two tensors that are one."""
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()


def add_rest(out, model, module, stage):
    """Buffers, and below stage 3 the frozen parameters and, where older versions do not list them, the tied names."""
    buffers, known = buffers_of(model), {}
    for name, value in module.items():
        tensor = model.tensor_of(value)
        if tensor is not None and tensor.numel() > 0 and name in out.tensors:
            known.setdefault(same_memory(tensor), name)
    for name, value in module.items():
        if name in out.tensors or name in out.tied:
            continue
        tensor, buffer = model.tensor_of(value), name in buffers
        if tensor is None or (stage == 3 and not buffer):
            out.notes.append(f"module state \"{name}\": {'it is no tensor' if tensor is None else 'its pieces were not saved'}")
        elif tensor.numel() > 0 and same_memory(tensor) in known and not buffer:
            out.tie(model, name, known[same_memory(tensor)])
        else:
            out.add_stored(model, name, tensor, frozen=True, buffer=buffer)
            if tensor.numel() > 0:
                known.setdefault(same_memory(tensor), name)
