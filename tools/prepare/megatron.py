"""Records of Megatron's pretokenised pair: X.idx says where each sequence of X.bin lies."""

import struct

import numpy

from prepare import bounds
from prepare.errors import Refused, UserError

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
TYPES = {1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64, 8: numpy.uint16}


def index_path(path):
    return path.with_suffix(".idx")


def records(path):
    """(0, {"input_ids": ids}) of each sequence; `path` is the .bin or the .idx."""
    index, tokens = index_path(path), path.with_suffix(".bin")
    for file in (index, tokens):
        if not file.is_file():
            raise UserError(f"[prepare] {path}: {file.name} is not beside it; Megatron's format is a pair")
    dtype, lengths, offsets = read_index(index)
    size = tokens.stat().st_size
    data = numpy.memmap(tokens, mode="r", dtype=numpy.uint8) if size else numpy.empty(0, numpy.uint8)
    width = numpy.dtype(dtype).itemsize
    for number, (length, offset) in enumerate(zip(lengths, offsets), 1):
        length, offset = int(length), int(offset)
        if length < 0 or offset < 0 or offset + length * width > size:
            raise UserError(f"[prepare] {index}: sequence {number} is {length} tokens at byte {offset}, the .bin has {size} bytes; use the pair that belongs together")
        if length > bounds.MOST_RECORD_TOKENS:
            yield 0, Refused(f"it has {length} tokens, at most {bounds.MOST_RECORD_TOKENS} are one record")
            continue
        yield 0, {"input_ids": data[offset : offset + length * width].view(dtype)}


def read_index(path):
    """The ids' type; lengths and byte offsets of all sequences, mapped."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or header[: len(MAGIC)] != MAGIC:
        raise UserError(f"[prepare] {path}: no Megatron index; it begins with MMIDIDX")
    _, version, code, sequences, _ = HEADER.unpack(header)
    if version != 1 or code not in TYPES:
        raise UserError(f"[prepare] {path}: version {version}, type {code}; known are version 1 and whole numbers ({', '.join(map(str, TYPES))})")
    if HEADER.size + 12 * sequences > size:
        raise UserError(f"[prepare] {path}: {sequences} sequences need {HEADER.size + 12 * sequences} bytes, the file has {size}; copy it again")
    if not sequences:
        return TYPES[code], [], []
    lengths = numpy.memmap(path, mode="r", dtype="<i4", offset=HEADER.size, shape=(sequences,))
    offsets = numpy.memmap(path, mode="r", dtype="<i8", offset=HEADER.size + 4 * sequences, shape=(sequences,))
    return TYPES[code], lengths, offsets
