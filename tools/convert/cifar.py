"""A batch of CIFAR-10's Python archive (data_batch_1, ...) as records of the binary one: a pickled dict with an array of numpy's.

Invariant: a name of the pickle stands for one of the few functions and classes here, which only keep what they are given; every other
name is refused, and no value can ask for much more memory than the file has.
"""

import io
import os
import pickle

from prepare.errors import UserError, first_line

MOST_BYTES = 64 << 20  # the original's are 31 MB
PIXELS, CLASSES = 3072, 10


class Array:
    """Stands for an array of numpy's: its shape and bytes."""

    shape, data = None, None

    def __init__(self, *_):
        pass

    def __setstate__(self, state):
        _, shape, dtype, fortran, data = state
        if type(dtype) is Dtype and dtype.name in ("u1", b"u1") and not fortran and type(data) is bytes:
            self.shape, self.data = shape, data


class Dtype:
    def __init__(self, name, *_):
        self.name = name

    def __setstate__(self, state):
        pass  # does not matter for bytes


class Reader(pickle.Unpickler):
    def __init__(self, data):
        super().__init__(io.BytesIO(data), encoding="bytes")
        self.bytes_left = len(data)
        self.names = {"numpy.core.multiarray._reconstruct": lambda *_: Array(), "numpy._core.multiarray._reconstruct": lambda *_: Array(),
                      "numpy.ndarray": Array, "numpy.dtype": Dtype, "_codecs.encode": self.encode}

    def find_class(self, module, name):
        if f"{module}.{name}" not in self.names:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not on the list of names that are read")
        return self.names[f"{module}.{name}"]

    def encode(self, text, encoding):
        """Python 3 writes bytes in protocol 2 as a text whose code points are the bytes."""
        self.bytes_left -= len(text)
        if self.bytes_left < 0:
            raise pickle.UnpicklingError("it decodes more bytes than it has")
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"a text in {encoding}")
        return text.encode("latin1")


def read_batch(path):
    """The records: a byte of label and 3,072 of pixels each."""
    if os.path.getsize(path) > MOST_BYTES:
        raise UserError(f"[dataset] {path} has more than {MOST_BYTES} bytes; use data_batch_1 .. 5 and test_batch of the original archive")
    with open(path, "rb") as file:
        reader = Reader(file.read())
    wrong = lambda reason: UserError(f"[dataset] {path} is no CIFAR-10 batch: {reason}; use data_batch_1 .. 5 and test_batch of the original archive")
    try:
        batch = reader.load()
    except Exception as error:  # of each kind: a damaged pickle calls what it may with anything
        raise wrong(first_line(error)) from None
    batch = batch if type(batch) is dict else {}
    data, labels = (batch.get(key, batch.get(key.encode())) for key in ("data", "labels"))
    if type(data) is not Array or type(labels) is not list or data.shape != (len(labels), PIXELS) or len(data.data) != len(labels) * PIXELS:
        raise wrong(f"it has no array \"data\" with {PIXELS} bytes for each of its \"labels\"")
    for number, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < CLASSES:
            raise wrong(f"record {number} has the label {label}, and labels go from 0 to {CLASSES - 1}")
    return b"".join(bytes([label]) + data.data[i * PIXELS:(i + 1) * PIXELS] for i, label in enumerate(labels))
