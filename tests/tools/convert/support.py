"""The common part of the tests of tools/convert/: archives and pickles of torch.save, spelt by hand, so that every part of them can be wrong,
and the reader in this process."""

import gc
import struct
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
SKIPPED = 77  # ctest's SKIP_RETURN_CODE

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/fuzz")]
try:
    import safetensors  # noqa: F401
    import torch  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}; ./tandem setup installs it")
    sys.exit(SKIPPED)

from mutate import damaged  # noqa: E402, F401

from convert import deepspeed, pytorch_bin, torch_file, universal  # noqa: E402
from convert.__main__ import bound_resources  # noqa: E402
from prepare.errors import UserError, escaped  # noqa: E402

READERS = {"deepspeed": deepspeed, "universal": universal, "pytorch": pytorch_bin}


class Entry(NamedTuple):
    name: object  # text, or bytes
    data: bytes = b""
    # Mistakes that a test makes on purpose:
    method: int = 0
    local_name: object = None  # another than the directory's
    shift: int = 0  # added to the directory's offset
    grow: int = 0  # added to the directory's size


def raw(name):
    return name if isinstance(name, bytes) else name.encode()


def archive(entries):
    """A zip archive of stored entries without checksums."""
    out = directory = b""
    for entry in entries:
        offset, size, name = len(out) + entry.shift, len(entry.data) + entry.grow, raw(entry.name)
        local = raw(entry.local_name or entry.name)
        fields = struct.pack("<HHHIIII", 20, 0, entry.method, 0, 0, size, size)
        out += b"PK\3\4" + fields + struct.pack("<HH", len(local), 0) + local + entry.data
        directory += b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<H", len(name)) + bytes(12) + struct.pack("<i", offset) + name
    return out + directory + b"PK\5\6" + bytes(4) + struct.pack("<HHIIH", len(entries), len(entries), len(directory), len(out), 0)


def text(value):
    value = raw(value)
    return b"X" + struct.pack("<I", len(value)) + value


def number(value):
    return b"\x8a\x08" + struct.pack("<q", value)


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key="0", numel=4, kind=b"ctorch\nFloatStorage\n"):
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(numel) + b"tQ"


def tensor(stored, offset, shape, stride):
    return (b"ctorch._utils\n_rebuild_tensor_v2\n(" + stored + number(offset) + numbers(shape) + numbers(stride) + b"\x89"
            + b"ccollections\nOrderedDict\n)RtR")


def pickle(value):
    """{"weight": a tensor of four elements, "other": `value`}"""
    return b"\x80\2}(" + text("weight") + tensor(storage(), 0, [4], [1]) + text("other") + value + b"u."


def entries(pickled):
    return [Entry("a/data.pkl", pickled), Entry("a/byteorder", b"little"), Entry("a/data/0", b"\x3d" * 16), Entry("a/version", b"3\n")]


class ConvertTest(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.addCleanup(gc.collect)  # of what a pickle asked for
        self.addCleanup(torch_file.PLACES.clear)
        self.folder = Path(held.name)
        self.file = self.folder / "pytorch_model.bin"

    def unpack(self):
        """The checkpoints of tests/data/foreign/."""
        with tarfile.open(ROOT / "tests/data/foreign/checkpoints.tar.xz") as packed:
            packed.extractall(self.folder, filter="data")

    def read(self, kind="pytorch", path=None):
        """The checkpoint, with every checksum of its storages compared, and its index."""
        torch_file.PLACES.clear()
        out = READERS[kind].read(str(path or self.folder))
        for fields in out.tensors.values():
            for tensor, _, count in [piece for array in fields["arrays"] if array for piece in array]:
                torch_file.place_of(tensor).check() if count else None
        out.index(str(path or self.folder))
        return out

    def refused(self, data, *parts, kind="pytorch", path=None):
        """The file is refused in a line with these parts."""
        if data is not None:
            self.file.write_bytes(data)
        with self.assertRaises(UserError) as caught:
            self.read(kind, path)
        line = escaped(str(caught.exception))
        self.assertTrue(line.startswith("[import] ") and line.isprintable() and "; " in line, line)
        for part in parts:
            self.assertIn(part, line)

    def refused_pickle(self, value, *parts):
        with self.subTest(value=value[:200]):
            self.refused(archive(entries(pickle(value))), *parts)
