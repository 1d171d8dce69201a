"""The only place that writes a token file (docs/data.md): a safetensors file of ids, offsets, mask bits and flags.

Ids are written as they come; mask, offsets and flags go to nameless files beside it, 1/16 of its size, until all is
there. The name appears when the file is complete, synced and hashed. Memory is one batch.
"""

import json
import os
import tempfile

import numpy
import xxhash

from prepare import leftovers

FORMAT = "tandem-tokens"
VERSION = "1"
MOST_SHORT_IDS = 1 << 16
COPY_BYTES = 1 << 22
ALIGNMENT = 64
# The header may grow by so much, from what is known before the first record: by counts, and by names that are short.
ROOM_TO_GROW = 4096

CUT, LOST_BY_CUT, HAS_PROMPT = 1, 2, 4  # a record's flags


class TokenFileWriter:
    """with TokenFileWriter(...) as file: file.add(encoded...); file.finish(). Without finish() nothing is left."""

    def __init__(self, path, vocab_size, start_id, metadata, coming=()):
        """`coming`: texts of which one or more may be added to the metadata before finish()."""
        self.path = path
        self.room = ROOM_TO_GROW + sum(len(json.dumps(text)) for text in coming)
        self.metadata = {"format": FORMAT, "version": VERSION, "vocab_size": str(vocab_size), **metadata}
        self.dtype = numpy.dtype("<u2" if vocab_size <= MOST_SHORT_IDS else "<i4")
        # As models/data/mask_check.hpp counts them.
        self.counts = dict.fromkeys(("records", "cut", "longest", "tokens", "learnt", "whole", "nothing", "double_start"), 0)
        self.counts |= {"prompts": 0, "lost_by_cut": 0}
        self.start_id = start_id
        self.bits = numpy.empty(0, bool)  # of the mask, fewer than 8: they have no byte yet
        self.temporary = leftovers.temporary_path(path)
        self.sides = {name: tempfile.TemporaryFile(dir=path.parent) for name in ("offsets", "mask", "flags")}
        self.file = leftovers.create(self.temporary)
        self.data_begin = self.header_bytes()
        self.file.seek(self.data_begin)
        self.hasher = xxhash.xxh3_128()
        self.add_side("offsets", numpy.zeros(1, "<i8"))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for file in (self.file, *self.sides.values()):
            file.close()
        self.temporary.unlink(missing_ok=True)

    def add(self, encoded):
        """A batch of encoder.Encoded."""
        if not encoded:
            return
        lengths = numpy.array([len(record.ids) for record in encoded])
        flags = [CUT * record.was_cut | LOST_BY_CUT * record.lost_by_cut | HAS_PROMPT * bool(record.has_prompt) for record in encoded]
        ids = numpy.concatenate([record.ids for record in encoded]).astype(self.dtype)
        self.hasher.update(ids)
        self.file.write(ids)
        self.add_side("offsets", self.counts["tokens"] + numpy.cumsum(lengths, dtype="<i8"))
        self.add_mask(numpy.concatenate([record.learnt for record in encoded]))
        self.add_side("flags", numpy.array(flags, numpy.uint8))
        self.count(encoded, lengths)

    def count(self, encoded, lengths):
        # A record's first token has nothing before it from which it could be learnt.
        learnt = numpy.array([numpy.count_nonzero(record.learnt[1:]) for record in encoded])
        self.counts["longest"] = max(self.counts["longest"], int(lengths.max()))
        for name, more in (("records", len(encoded)), ("tokens", lengths.sum()), ("learnt", learnt.sum()),
                           ("whole", numpy.count_nonzero((learnt > 0) & (learnt == lengths - 1))), ("nothing", numpy.count_nonzero(learnt == 0)),
                           ("double_start", sum(self.begins_twice(record.ids) for record in encoded)),
                           ("cut", sum(record.was_cut for record in encoded)), ("lost_by_cut", sum(record.lost_by_cut for record in encoded)),
                           ("prompts", sum(bool(record.has_prompt) for record in encoded))):
            self.counts[name] += int(more)

    def begins_twice(self, ids):
        return self.start_id is not None and len(ids) > 2 and ids[0] == ids[1] == self.start_id

    def add_side(self, name, values):
        self.sides[name].write(values)

    def add_mask(self, mask):
        bits = numpy.concatenate([self.bits, mask])
        whole = len(bits) // 8 * 8
        self.add_side("mask", numpy.packbits(bits[:whole], bitorder="little"))
        self.bits = bits[whole:]

    def finish(self):
        self.add_side("mask", numpy.packbits(self.bits, bitorder="little"))
        for file in self.sides.values():
            file.seek(0)
            while block := file.read(COPY_BYTES):
                self.hasher.update(block)
                self.file.write(block)
        header = self.header()
        if len(header) > self.data_begin:
            raise AssertionError("the header outgrew its place")
        self.file.seek(0)
        self.file.write((self.data_begin - 8).to_bytes(8, "little") + header.ljust(self.data_begin - 8))
        self.file.flush()
        os.fsync(self.file.fileno())
        os.replace(self.temporary, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def header_bytes(self):
        """The place to leave for the header, whose counts are not known yet."""
        self.hasher = xxhash.xxh3_128()
        return (8 + len(self.header()) + self.room + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def header(self):
        counts = {name: str(count) for name, count in self.counts.items()}
        tensors, end = {"__metadata__": {**self.metadata, **counts, "xxh3_128": self.hasher.hexdigest()}}, 0
        records, tokens = self.counts["records"], self.counts["tokens"]
        for name, dtype, size, count in (("ids", {2: "U16", 4: "I32"}[self.dtype.itemsize], self.dtype.itemsize, tokens),
                                         ("offsets", "I64", 8, records + 1), ("mask", "U8", 1, (tokens + 7) // 8), ("flags", "U8", 1, records)):
            tensors[name] = {"dtype": dtype, "shape": [count], "data_offsets": [end, end + size * count]}
            end += size * count
        return json.dumps(tensors, separators=(",", ":")).encode()
