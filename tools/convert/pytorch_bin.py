"""pytorch_model.bin, its shards with their index, or any one file of torch.save that holds weights."""

import json
import os

from convert.checkpoint import Checkpoint
from convert.module import same_memory
from convert.torch_file import TorchFile
from prepare.errors import UserError, first_line

SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MOST_INDEX_BYTES = 256 << 20


def tensors_in(file, value):
    """How many members of a dict are tensors; 0 for anything that is mostly something else."""
    if not isinstance(value, dict):
        return 0
    tensors = sum(file.tensor_of(member) is not None for member in value.values())
    return tensors if tensors * 2 > len(value) else 0


def state_dict(out, file):
    """The object itself, or the only state dict among its members, as trainers save it beside other things."""
    if not isinstance(file.root, dict):
        raise file.error("it holds no dict of tensors")
    found = [key for key, value in file.root.items() if tensors_in(file, value)]
    if len(found) > 1:
        raise file.error("it holds more than one dict of tensors")
    if not found or tensors_in(file, file.root) > tensors_in(file, file.root[found[0]]):
        return file.root
    out.notes += [f"\"{key}\" beside the weights" for key in file.root if key != found[0]]
    return file.root[found[0]]


def add_file(out, path):
    file, seen = TorchFile(path), {}
    for name, value in state_dict(out, file).items():
        tensor = file.tensor_of(value)
        if tensor is None:
            out.notes.append(f"\"{name}\": it is no tensor")
        elif tensor.numel() > 0 and same_memory(tensor) in seen and name not in out.tensors:
            out.tie(file, name, seen[same_memory(tensor)])
        else:
            out.add_stored(file, name, tensor)
            if tensor.numel() > 0:
                seen.setdefault(same_memory(tensor), name)


def members_once(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("it has a key twice")
    return dict(pairs)


def read_index(path):
    """(files of the index, the names that it gives)"""
    wrong = lambda reason: UserError(f"[import] {path}: {reason}; download the checkpoint again")
    if os.path.getsize(path) > MOST_INDEX_BYTES:
        raise wrong(f"it is larger than {MOST_INDEX_BYTES} bytes")
    try:
        with open(path, encoding="utf-8") as file:
            members = json.load(file, object_pairs_hook=members_once)["weight_map"].items()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise wrong(f"it is no index of weights ({first_line(error)})") from None
    for name, file in members:
        if type(file) is not str or "/" in file or "\0" in file or not file.endswith(".bin") or file.startswith("."):
            raise wrong(f"$.weight_map.{name} is {file}, the plain name of a .bin file in the same folder is needed")
    return sorted({file for _, file in members}), [name for name, _ in members]


def read(path):
    out = Checkpoint("pytorch")
    if not os.path.isdir(path):
        add_file(out, path)
    elif os.path.exists(os.path.join(path, SINGLE)):
        add_file(out, os.path.join(path, SINGLE))
    else:
        files, names = read_index(os.path.join(path, INDEX))
        for file in files:
            add_file(out, os.path.join(path, file))
        for name in names:
            if name not in out.tensors and name not in out.tied:
                raise UserError(f"[import] {os.path.join(path, INDEX)} names tensor \"{name}\", which no file holds; download the checkpoint again")
    if not out.tensors:
        raise UserError(f"[import] {path} holds no tensor; give the file of a model's weights")
    return out
