"""Collects a foreign checkpoint, and makes the index that says what it holds: the fields of ImportedCheckpoint
(models/foreign/imported_checkpoint.hpp), and of each array the pieces of files that it is made of.

Invariant: an array has as many elements as its tensor's shape, and names are ones that a tensor may have, each once.
"""

import json
import math
import os

from convert.torch_file import TYPES, place_of
from prepare.errors import UserError, escaped

ARRAYS = ("master", "exp_avg", "exp_avg_sq")
MOST_NAME_BYTES = 1024


def is_tensor_name(name):
    try:
        return type(name) is str and 0 < len(name.encode()) < MOST_NAME_BYTES and not any(c < " " or c == "\x7f" for c in name)
    except UnicodeEncodeError:
        return False


def whole(tensor):
    """The array that one tensor is: a list of pieces, each (tensor, its first element, elements)."""
    return [(tensor, 0, tensor.numel())]


def part_of(numel, ranks):
    """Elements of a parameter on each rank at stage 3, with padding at the end."""
    return -(-numel // ranks)


class Flat:
    """One rank's array: flat tensors behind each other."""

    def __init__(self, parts=()):
        self.parts, self.numel = [], 0
        for file, tensor in parts:
            self.add(file, tensor)

    def add(self, file, tensor):
        if not tensor.is_contiguous():
            raise file.error("one of its flat arrays has gaps")
        self.parts.append((self.numel, tensor))
        self.numel += tensor.numel()

    def cut(self, begin, end):
        """Elements [begin, end) as pieces."""
        assert 0 <= begin <= end <= self.numel
        for start, tensor in self.parts:
            low, high = max(begin - start, 0), min(end - start, tensor.numel())
            if low < high:
                yield tensor, low, high - low


def partitioned(ranks, offset, part, numel):
    """A parameter whose elements [r * part, (r + 1) * part) lie at `offset` of rank r's array."""
    return [piece for r, flat in enumerate(ranks) for piece in flat.cut(offset, offset + max(0, min(part, numel - r * part)))]


def concatenated(ranks, offset, part, numel):
    """A parameter at `offset` of the ranks' arrays behind each other, each of `part` elements."""
    pieces, at = [], offset
    while at < offset + numel:
        rank, local = divmod(at, part)
        count = min(part - local, offset + numel - at)
        pieces += ranks[rank].cut(local, local + count)
        at += count
    return pieces


class Checkpoint:
    def __init__(self, kind):
        self.tensors = {}  # name -> its fields
        self.tied = {}  # other name -> name in `tensors`
        self.notes = []
        self.fields = {"kind": kind, "global_steps": 0, "skipped_steps": 0, "optimizer_steps": 0, "global_samples": 0, "scaler": None,
                       "schedule_step": None, "zero_stage": -1, "world_size": 0, "ds_version": "", "ds_config": "", "client_state": ""}

    def add(self, file, name, shape, dtype, arrays, frozen=False, buffer=False, stored=False):
        """`arrays`: for each of ARRAYS its pieces, or None."""
        if not is_tensor_name(name):
            raise file.error(f"\"{name}\" is no name of a tensor")
        if name in self.tensors:
            raise file.error(f"tensor \"{name}\" is there twice")
        numel = math.prod(shape)
        for kind, array in zip(ARRAYS, arrays):
            if array is not None and sum(count for _, _, count in array) != numel:
                raise file.error(f"the {kind} of \"{name}\" has another size than its shape {list(shape)}")
        self.tensors[name] = {"shape": list(shape), "type": TYPES[dtype], "frozen": frozen or buffer, "buffer": buffer, "stored": stored,
                              "arrays": list(arrays)}

    def add_stored(self, file, name, tensor, frozen=False, buffer=False):
        """A tensor as the file holds it, without optimizer state."""
        self.add(file, name, tensor.shape, tensor.dtype, [whole(tensor)], frozen, buffer, stored=TYPES[tensor.dtype] != "F32")

    def tie(self, file, alias, name):
        if not is_tensor_name(alias):
            raise file.error(f"\"{alias}\" is no name of a tensor")
        if alias != name and alias not in self.tensors:
            self.tied.setdefault(alias, name)

    def index(self, path):
        """The JSON document, in UTF-8. Names of files are relative to the folder, or to the file's."""
        base = path if os.path.isdir(path) else os.path.dirname(path)
        files, numbers, storages, tensors = {}, {}, [], []

        def piece_of(tensor, begin, count):
            place = place_of(tensor)
            if place not in numbers:
                numbers[place] = len(numbers)
                storages.append([files.setdefault(place.file, len(files)), place.begin, place.size, place.crc])
            piece = [numbers[place], TYPES[tensor.dtype], tensor.storage_offset() + begin, count]
            return piece if tensor.is_contiguous() else [*piece, list(tensor.shape), list(tensor.stride())]

        for name, fields in self.tensors.items():
            arrays = {kind: [piece_of(*piece) for piece in array if piece[2] > 0]
                      for kind, array in zip(ARRAYS, fields["arrays"]) if array is not None}
            tensors.append({"name": name, **{key: value for key, value in fields.items() if key != "arrays"}, **arrays})
        names = [[os.path.relpath(file.path, base or "."), file.size] for file in files]
        document = {**self.fields, "tied": self.tied, "notes": [escaped(note) for note in self.notes], "files": names, "storages": storages, "tensors": tensors}
        try:
            return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        except (UnicodeEncodeError, ValueError):
            raise UserError(f"[import] {path} has a name or a number that is none (bytes that are no UTF-8, or not finite); rename its files") from None
