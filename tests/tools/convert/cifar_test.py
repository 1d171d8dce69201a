#!/usr/bin/env python3
"""CIFAR-10's Python archive as the binary one: every writer of it gives the same records, nothing is executed, and what is no batch is refused."""

import os
import pickle
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/fuzz")]
try:
    import numpy
except ImportError as missing:
    print(f"skipped: {missing}; ./tandem setup installs it")
    sys.exit(77)
from mutate import damaged  # noqa: E402

from convert.cifar import read_batch  # noqa: E402
from prepare.errors import UserError  # noqa: E402

ROWS = 13
RECORDS = b"".join(bytes([i % 10]) + bytes((i * 31 + p * 7) % 256 for p in range(3072)) for i in range(ROWS))
TABLE = numpy.frombuffer(RECORDS, numpy.uint8).reshape(ROWS, 3073)
LABELS = [int(label) for label in TABLE[:, 0]]
DATA = numpy.ascontiguousarray(TABLE[:, 1:])
NAMES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]


def text(value):
    return b"U" + bytes([len(value)]) + value


def of_python_2():
    """As Python 2's cPickle wrote the published files: byte strings throughout."""
    out = b"\x80\x02}q\x01(" + text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + b"]q\x04("
    out += b"".join(b"K" + bytes([label]) for label in LABELS) + b"e" + text(b"data")
    out += b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85" + text(b"b") + b"\x87Rq\x07"
    out += b"(K\x01M" + struct.pack("<H", ROWS) + b"M" + struct.pack("<H", 3072) + b"\x86"
    out += b"cnumpy\ndtype\nq\x08" + text(b"u1") + b"K\x00K\x01\x87Rq\x09(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    return out + b"T" + struct.pack("<I", ROWS * 3072) + DATA.tobytes() + b"tb" + text(b"filenames") + b"](" + text(b"a.png") + b"eu."


def swelling():
    """One text, encoded many times: bytes that ask for much more."""
    return (b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x01X\x06\x00\x00\x00latin1q\x02"
            + b"h\x00h\x01h\x02\x86R" * 700 + b".")


class Evil:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.system, (f"touch {self.folder}/executed",)


class Batches(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.folder = Path(held.name)

    def read(self, data):
        (self.folder / "batch").write_bytes(data)
        return read_batch(self.folder / "batch")

    def whole(self):
        both = {"batch_label": "one", "labels": LABELS, "data": DATA, "filenames": ["a.png"] * ROWS}
        return {**{f"p{protocol}": pickle.dumps(both, protocol) for protocol in (2, 3, 4)}, "python2": of_python_2(),
                "bytes_keys": pickle.dumps({b"labels": LABELS, b"data": DATA}, 2)}

    def test_every_writer_gives_the_same_records(self):
        for name, data in self.whole().items():
            with self.subTest(name):
                self.assertEqual(self.read(data), RECORDS)

    def test_nothing_is_executed_and_what_is_no_batch_is_refused(self):
        def dumped(labels=LABELS, data=DATA, protocol=2):
            return pickle.dumps({"labels": labels, "data": data}, protocol)

        for data, part in ((dumped(data=Evil(self.folder)), "system"), (dumped(data=DATA.astype(numpy.float32)), "array"),
                           (dumped(labels=LABELS[:-1]), "labels"), (dumped(labels=[*LABELS[:-1], 11]), "record 12 has the label 11"),
                           (pickle.dumps([1, 2], 2), "data"), (dumped(protocol=5), "names"), (swelling(), "more bytes than it has"),
                           (b"", "no CIFAR-10 batch"), (b"cos\nsystem\n(U\x02idtR.", "os.system")):
            with self.assertRaises(UserError) as caught:
                self.read(data)
            self.assertIn(part, str(caught.exception))
        self.assertFalse((self.folder / "executed").exists())

    def test_cut_or_changed_it_is_an_error_or_still_a_batch(self):
        import random

        source = random.Random(7)
        for data in self.whole().values():
            for length in [*range(0, 400, 7), *range(400, len(data) - 1, 1997)]:
                with self.assertRaises(UserError):
                    self.read(data[:length])
            for _ in range(100):
                try:
                    self.assertEqual(len(self.read(damaged(data[:600], source) + data[600:])) % 3073, 0)
                except UserError as error:
                    self.assertIn("; ", str(error))

    def test_the_command(self):
        archive = self.folder / "data/cifar-10-batches-py"
        archive.mkdir(parents=True)
        cache = self.folder / "cache"

        def fetch():
            return subprocess.run([sys.executable, ROOT / "tools/fetch.py", "dataset", "cifar10", "--from", archive.parent], capture_output=True,
                                  text=True, check=False, env={**os.environ, "TANDEM_CACHE": str(cache)})

        for name in NAMES[:-1]:
            (archive / name).write_bytes(of_python_2())
        done = fetch()
        self.assertEqual((done.returncode, list(cache.iterdir())), (2, []), done.stderr)
        self.assertIn("test_batch", done.stderr)
        (archive / NAMES[-1]).write_bytes(b"cos\nsystem\n.")
        done = fetch()
        self.assertEqual((done.returncode, done.stderr.count("\n"), list(cache.iterdir())), (2, 1, []), done.stderr)
        (archive / NAMES[-1]).write_bytes(of_python_2())
        done = fetch()
        self.assertEqual(done.returncode, 0, done.stderr)
        made = {path.name: path.read_bytes() for path in (cache / "cifar-10-batches-bin").iterdir()}
        self.assertEqual(made, {f"{name}.bin": RECORDS for name in NAMES})
        self.assertEqual(fetch().returncode, 2)


if __name__ == "__main__":
    unittest.main()
