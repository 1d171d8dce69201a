"""A file of torch.save, zip or the older form: its values by torch's own restricted unpickler, its tensors as views of the mapped file.

torch.load(weights_only=True, mmap=True) does the same, but says of no tensor where in the file it lies, and reads the older form
into memory. So its parts are used: torch._weights_only_unpickler, which executes nothing, with storages that are slices of the map.
Invariant: a name that is not in NAMES is refused before anything is unpickled, and every tensor that `tensor_of` returns lies in its
storage, which lies in the file with exactly the size that the pickle declares.
"""

import io
import mmap
import os
import stat
import zlib

import torch
from torch._weights_only_unpickler import Unpickler, get_globals_in_pkl
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION, StorageType

from convert.archive import read_directory
from convert.values import find
from prepare.errors import UserError, first_line

MOST_PICKLE_BYTES = 64 << 20
MOST_RANK = 32
MOST_REPEATED = 1 << 24  # elements of a tensor that repeats those of a small storage
CHECK_BYTES = 16 << 20
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
         torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.uint16: "U16", torch.uint32: "U32",
         torch.uint64: "U64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0"}


class Record:
    """An object of DeepSpeed's: its fields are data."""

    fields = None

    def __setstate__(self, state):
        if type(state) is not dict:
            raise ValueError("a state that is no dict")
        self.fields = state


def zero_stage(number):
    if type(number) is not int:
        raise ValueError("a ZeRO stage that is no integer")
    return number


LOSS_SCALERS = "deepspeed.runtime.fp16.loss_scaler"
STAND_INS = [(zero_stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
             *((type(name.rpartition(".")[2], (Record,), {}), name) for name in (
                 f"{LOSS_SCALERS}.LossScaler", f"{LOSS_SCALERS}.DynamicLossScaler", "deepspeed.utils.tensor_fragment.fragment_address"))]
NAMES = {name for _, name in STAND_INS} | {str(dtype) for dtype in TYPES} | {
    f"torch.{name}Storage" for name in ("Float", "BFloat16", "Half", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool", "ComplexFloat")} | {
    "torch.storage.UntypedStorage", "builtins.set", "collections.OrderedDict", "torch.Size", "torch.Tensor", "torch.nn.parameter.Parameter",
    "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"}
PLACES = {}  # where a storage lies in memory -> its Place; files stay mapped, so no two have one address


class Place:
    """A storage in its file."""

    def __init__(self, file, key, begin, size, crc):
        self.file, self.key, self.begin, self.size, self.crc = file, key, begin, size, crc
        self.checked = crc == 0

    def check(self):
        """Compares the checksum, once, before elements are used here; the index hands it on for all that is read later."""
        if self.checked:
            return
        crc, end = 0, self.begin + self.size
        for at in range(self.begin, end, CHECK_BYTES):
            crc = zlib.crc32(os.pread(self.file.stream.fileno(), min(CHECK_BYTES, end - at), at), crc)
        if crc != self.crc:
            raise self.file.error(f"its storage {self.key} does not fit its checksum")
        self.checked = True


def place_of(tensor):
    return PLACES.get(tensor.untyped_storage().data_ptr())


class TorchFile:
    def __init__(self, path):
        self.path = path
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UserError(f"[import] {path} is no regular file; give the checkpoint's folder or file")
        self.stream = open(path, "rb", buffering=0)
        self.size = os.fstat(self.stream.fileno()).st_size
        start = os.pread(self.stream.fileno(), 2, 0)
        if start != b"PK" and start[:1] != b"\x80":
            raise self.error("this is no file of torch.save")
        self.bytes = torch.frombuffer(mmap.mmap(self.stream.fileno(), self.size, mmap.MAP_SHARED, mmap.PROT_READ), dtype=torch.uint8).untyped_storage()
        self.described, self.storages = {}, {}
        self.root = self.read_zip() if start == b"PK" else self.read_legacy()

    def error(self, complaint):
        return UserError(f"[import] {self.path}: {complaint}; copy the checkpoint again, or save it anew with torch.save")

    def refused(self, reason):
        return UserError(f"[import] {self.path} is refused: {reason}; nothing in it was executed; if you trust its origin, load it in Python and save "
                         "plain tensors")

    def tensor_of(self, value):
        """The tensor that a value of this file is; None for any other value."""
        if not isinstance(value, torch.Tensor):
            return None
        if value.layout != torch.strided or value.device.type != "cpu" or value.dtype not in TYPES or value.dim() > MOST_RANK:
            raise self.refused(f"a tensor of {value.dim()} dimensions, {value.layout}, {value.dtype}")
        place = place_of(value)
        if value.numel() > 0 and (place is None or place.file is not self):
            raise self.refused("a tensor whose elements do not lie in the file")
        if value.numel() > 0 and value.numel() > max(place.size // value.itemsize, MOST_REPEATED):
            raise self.refused(f"a tensor of shape {list(value.shape)} out of a storage of {place.size // value.itemsize} elements")
        return value

    def checked(self, tensor):
        """The tensor, whose elements may now be used."""
        if tensor.numel() > 0:
            place_of(tensor).check()
        return tensor

    def unpickle(self, stream, persistent_load=None):
        begin = stream.tell()
        try:
            for name in sorted(get_globals_in_pkl(stream) - NAMES):
                raise self.refused(f"it names {name}, which is not on the list of names that are read")
            stream.seek(begin)
            reader = Unpickler(stream, encoding="utf-8")
            if persistent_load:
                reader.persistent_load = persistent_load
            with torch.serialization.safe_globals(STAND_INS):
                value = reader.load()
        except UserError:
            raise
        except MemoryError:
            raise self.refused("it asks for much more memory than it has bytes") from None
        except Exception as error:  # of each kind: a damaged pickle calls anything that is allowed with anything
            raise self.refused(f"its pickle is damaged, or none of weights ({first_line(error)})") from None
        if reader.stack or reader.metastack or reader.proto > 4:
            raise self.refused(f"its pickle, of protocol {reader.proto}, ends with other than one value")
        return value

    def storage(self, begin_of, pid):
        """The storage that a pickle refers to: ("storage", class, key, device, elements[, nothing])"""
        if len(pid) not in (5, 6) or (len(pid) == 6 and pid[5] is not None) or type(pid[2]) is not str or type(pid[4]) is not int:
            raise self.refused("a reference that is not one to a storage")
        kind, key, numel = pid[1], pid[2], pid[4]
        if kind is not torch.UntypedStorage and not isinstance(kind, StorageType):
            raise self.refused(f"a storage of class {kind}")
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        if not 0 <= numel < 1 << 60:
            raise self.refused(f"a storage of {numel} elements")
        if self.described.setdefault(key, (dtype, numel)) != (dtype, numel):
            raise self.refused(f"two descriptions of storage \"{key}\" that differ")
        if key not in self.storages:
            begin, crc = begin_of(key, numel * dtype.itemsize)
            memory = self.bytes[begin:begin + numel * dtype.itemsize] if numel else torch.UntypedStorage(0)
            self.storages[key] = torch.storage.TypedStorage(wrap_storage=memory, dtype=dtype, _internal=True)
            if numel:
                PLACES[memory.data_ptr()] = Place(self, key, begin, memory.nbytes(), crc)
        return self.storages[key]

    def read_zip(self):
        damaged = lambda reason: UserError(f"[import] {self.path} is no zip archive of torch.save: {reason}; copy the file again")
        entries = read_directory(self.stream, damaged)
        prefix = next((name[:-8] for name in entries if name.endswith("/data.pkl") and name.count("/") == 1), None)
        for name in entries:
            if prefix is None or not name.startswith(prefix):
                raise self.error(f"its entry {name} is none of torch.save's")
        if prefix is None:
            raise self.error("it holds no data.pkl")

        def text_of(name, limit):
            entry = entries[prefix + name]
            if entry.size > limit:
                raise self.error(f"its entry {prefix}{name} has {entry.size} bytes, the limit is {limit}")
            return os.pread(self.stream.fileno(), entry.size, entry.begin)

        if f"{prefix}byteorder" in entries and text_of("byteorder", 16) != b"little":
            raise self.error("it was written on a big-endian machine")
        pickle = text_of("data.pkl", MOST_PICKLE_BYTES)
        if entries[f"{prefix}data.pkl"].crc not in (0, zlib.crc32(pickle)):
            raise self.error("its data.pkl does not fit its checksum")

        def begin_of(key, size):
            entry = entries.get(f"{prefix}data/{key}")
            if entry is None:
                raise self.error(f"its entry {prefix}data/{key} is missing")
            if entry.size != size:
                raise self.error(f"its entry {prefix}data/{key} has {entry.size} bytes, and its tensors need {size}")
            return entry.begin, entry.crc

        stream = io.BytesIO(pickle)
        root = self.unpickle(stream, lambda pid: self.storage(begin_of, pid))
        if stream.tell() != len(pickle):
            raise self.refused("more follows behind the end of its pickle")
        return root

    def read_legacy(self):
        """Five pickles (magic number, version, machine, object, keys of the storages), then each storage: its length, its elements."""
        stream = io.BytesIO(os.pread(self.stream.fileno(), min(self.size, MOST_PICKLE_BYTES), 0))
        if self.unpickle(stream) != MAGIC_NUMBER:
            raise self.refused("it is a pickle, and none of torch.save's")
        if self.unpickle(stream) != PROTOCOL_VERSION:
            raise self.refused(f"its version is not {PROTOCOL_VERSION}")
        if find(self.unpickle(stream), "little_endian") is not True:
            raise self.refused("it was written on a big-endian machine")
        begin = stream.tell()

        def anywhere(key, size):  # where they lie is known behind the object
            if size > self.size:
                raise self.refused(f"its storage {key} is cut short")
            return 0, 0

        self.unpickle(stream, lambda pid: self.storage(anywhere, pid))
        places = self.legacy_places(self.unpickle(stream), stream.tell())
        PLACES.pop(self.bytes.data_ptr(), None)
        self.storages = {}
        stream.seek(begin)
        return self.unpickle(stream, lambda pid: self.storage(lambda key, _: (places[key], 0), pid))

    def legacy_places(self, keys, at):
        """storage key -> where its elements begin"""
        if type(keys) is not list or sorted(map(str, keys)) != sorted(self.described):
            raise self.error("it holds other storages than its tensors need")
        places = {}
        for key in keys:
            dtype, numel = self.described[key]
            places[key] = at + 8
            if int.from_bytes(os.pread(self.stream.fileno(), 8, at), "little") != numel or at + 8 + numel * dtype.itemsize > self.size:
                raise self.error(f"its storage {key} is cut short, or has another size than its tensors need")
            at += 8 + numel * dtype.itemsize
        if at != self.size:
            raise self.error("it holds other storages than its tensors need")
        return places
