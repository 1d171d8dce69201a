#!/usr/bin/env python3
"""Files that were made to do harm: every one is refused in one line, and nothing happens."""

import random
import struct
import unittest
import zipfile

from support import (ConvertTest, Entry, UserError, archive, bound_resources, damaged, entries, number, numbers, pickle, storage, tensor, text,
                     torch_file)

DICT = b"ccollections\nOrderedDict\n"


class Pickles(ConvertTest):
    def test_a_good_file_of_this_kind_is_read(self):
        self.file.write_bytes(archive(entries(pickle(b"N"))))
        out = self.read()
        self.assertEqual(list(out.tensors), ["weight"])
        self.assertEqual(out.notes, ['"other": it is no tensor'])

    def test_names_of_tensors(self):
        def named(*names):
            return archive(entries(b"\x80\2}(" + b"".join(name + tensor(storage(), 0, [4], [1]) for name in names) + b"u."))

        self.file.write_bytes(named(text("ä/b"), text("b")))
        self.assertEqual(self.read().tied, {"b": "ä/b"})
        self.refused(named(text("")), "no name of a tensor")
        self.refused(named(text("a\nb")), r'"a\nb" is no name')
        self.refused(named(text(b"a\xff")), "is refused")
        self.refused(named(text(b"a\xed\xa0\x80")), "no name of a tensor")
        self.refused(named(number(7)), "no name of a tensor")
        self.refused(named(text("b"), text("c\x7f")), "no name of a tensor")

    def test_names_that_are_not_on_the_list(self):
        touch = b"(" + text(f"touch {self.folder}/executed") + b"tR"
        self.refused_pickle(b"cos\nsystem\n" + touch, "os.system", "nothing in it was executed")
        for name in ("posix\nsystem", "builtins\neval", "builtins\ngetattr", "builtins\nbytearray", "torch\nload", "torch.storage\n_load_from_bytes",
                     "torch.serialization\nload", "torch.serialization\n_get_layout", "torch._utils\n_rebuild_sparse_tensor",
                     "torch._utils\n_rebuild_device_tensor_from_numpy", "torch\ndevice", "_codecs\nencode", "numpy\nndarray",
                     "collections\nCounter", "collections\nOrderedDict.__init__", "torch\nSize.__class__"):
            self.refused_pickle(b"c" + name.encode() + b"\n" + touch, name.replace("\n", "."), "list of names")
        self.refused_pickle(b"c__builtin__\ngetattr\n" + touch, "builtins.getattr")
        self.refused_pickle(text("os") + text("system") + b"\x93" + touch, "is refused")
        self.refused_pickle(b"cos\nsystem\n", "os.system")  # named and never called
        self.refused_pickle(b"cos\x1b[31m\nsy\x07stem\n" + touch, r"os\x1b[31m.sy\x07stem")
        self.assertFalse((self.folder / "executed").exists())

    def test_allowed_names_used_for_something_else(self):
        self.refused_pickle(DICT + b"(" + text("a") + b"tR", "is refused")
        self.refused_pickle(b"ctorch\nFloatStorage\n)R", "is refused")
        self.refused_pickle(b"ctorch\nTensor\n(" + number(1 << 40) + b"tR", "is refused")
        self.refused_pickle(b"ctorch\nTensor\n(" + number(3) + b"tR", "do not lie in the file")
        self.refused_pickle(b"ctorch\nTensor\n)\x81(" + storage() + number(0) + numbers([1 << 40]) + numbers([1]) + b"tb", "is refused")
        self.refused_pickle(b"ctorch\nSize\n(" + text("a") + b"tR", "is refused")
        self.refused_pickle(b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nSize\nctorch\nTensor\n)}tR", "is refused")
        self.refused_pickle(b"cdeepspeed.runtime.fp16.loss_scaler\nLossScaler\n)\x81Nb", "is refused")
        self.refused_pickle(b"cdeepspeed.runtime.zero.config\nZeroStageEnum\n(" + text("a") + b"tR", "is refused")
        self.refused_pickle(b"N)R", "is refused")
        self.refused_pickle(text("os") + b"Q", "is refused")
        self.refused_pickle(b"(" + text("module") + b"cos\nsystem\nt", "os.system")
        self.refused_pickle(b"(" + text("module") + b"NNNNtQ", "is refused")

    def test_harmless_ones_change_nothing(self):
        """torch's unpickler gives a dict attributes, and lets a tensor be empty: no value of the checkpoint is another one for it."""
        for value in (DICT + b")R}(" + text("__class__") + b"Nub", b"N" + b"\x85" * 1000, b"]q\x01h\x01a",
                      tensor(storage(), 0, [4], [])):
            self.file.write_bytes(archive(entries(pickle(value))))
            out = self.read()
            self.assertEqual((next(iter(out.tensors)), len(out.notes) + len(out.tied)), ("weight", 1))

    def test_memory_is_bounded(self):
        """One text or list, repeated by sets: kilobytes that ask for gigabytes."""
        items = b"](" + b"".join(number(i) for i in range(20_000)) + b"eq\x07"
        bomb = b"](" + b"cbuiltins\nset\nh\x07\x85R" * 20_000 + b"e"
        self.refused_pickle(b"(" + items + bomb + b"t", "much more memory")

    def test_operations_that_are_not_ones_of_data(self):
        for op in (b"i", b"o", b"P", b"\x82", b"\x83", b"\x84", b"\x92", b"I", b"S", b"V", b"g", b"p", b"0", b"1", b"2", b"\x8b", b"\x8f", b"\x96",
                   b"\x97", b"\x98"):
            self.refused_pickle(op + b"a\nb\n", "is refused")
        self.refused_pickle(b"\x80\x05N", "protocol 5")

    def test_sizes_and_ends(self):
        self.refused_pickle(b"(" * 2000, "is refused")
        self.refused_pickle(b"h\x77", "is refused")
        self.refused_pickle(b"j\xff\xff\xff\xff", "is refused")
        self.refused_pickle(b"X\xff\xff\xff\xffa", "is refused")
        self.refused_pickle(b"\x8e" + b"\xff" * 8 + b"a", "is refused")
        self.refused(archive(entries(pickle(b"N") + b"N")), "more follows")
        self.refused(archive(entries(b"\x80\2NN.")), "other than one value")
        self.refused(archive(entries(b"\x80\2")), "is refused")
        self.refused(archive(entries(b"\x80\2].")), "no dict")

    def test_a_graph_is_not_spelt_as_a_tree(self):
        """A list of lists of lists ..., each ten times the one before: small as a pickle, huge as a text."""
        bomb = b"]q\x01"
        for i in range(2, 40):
            bomb += b"](" + b"h" + bytes([i - 1]) + (b"h" + bytes([i - 1])) * 9 + b"eq" + bytes([i])
        state = b"\x80\2}(" + text("module") + b"}(" + text("w") + tensor(storage(), 0, [4], [1]) + b"u" + text("bomb") + b"(" + bomb + b"tu."
        (self.folder / "mp_rank_00_model_states.pt").write_bytes(archive(entries(state)))
        out = self.read("deepspeed")
        self.assertEqual((out.fields["client_state"], len(out.tensors)), ("{}", 1))
        self.assertTrue(any("bomb" in note for note in out.notes), out.notes)


class Tensors(ConvertTest):
    def test_outside_of_their_storage(self):
        half, most = 1 << 31, (1 << 63) - 1
        for offset, shape, stride in ((1, [4], [1]), (0, [half, half], [half, 1]), (0, [half, half, 4], [0, 0, 0]), (most, [2], [1]), (0, [2], [most]),
                                      (-1, [1], [1]), (3, [4], [-1]), (0, [-4], [1]), (0, [1] * 40, [1] * 40)):
            self.refused_pickle(tensor(storage(), offset, shape, stride), "is refused")
        self.refused_pickle(tensor(storage(), 0, [1 << 26], [0]), "out of a storage of 4")
        self.refused_pickle(tensor(storage("0", 5), 0, [5], [1]), "differ")
        self.refused_pickle(tensor(storage("1"), 0, [4], [1]), "a/data/1 is missing")
        self.refused_pickle(tensor(storage("../../data.pkl"), 0, [4], [1]), "missing")
        self.refused_pickle(tensor(storage("0", most), 0, [4], [1]), "elements")
        self.refused_pickle(tensor(storage("0", -4), 0, [0], [1]), "a storage of -4 elements")
        self.refused_pickle(tensor(storage("0", 4, b"ctorch\nSize\n"), 0, [4], [1]), "torch.Size")

    def test_checksums_are_compared(self):
        self.unpack()
        path = self.folder / "pytorch_bin/parameters/pytorch_model.bin"
        place = next(torch_file.place_of(tensor) for tensor in torch_file.TorchFile(str(path)).root.values())
        data = bytearray(path.read_bytes())
        data[place.begin] ^= 1
        self.refused(bytes(data), "storage 0", "checksum")


class Archives(ConvertTest):
    def test_archives(self):
        good = entries(pickle(b"N"))
        for entry, part in ((Entry("a/../../../../tmp/PWNED"), "leads out"), (Entry("/tmp/PWNED"), "leads out"), (Entry("a\\..\\b"), "leads out"),
                            (Entry("a/b\0c"), "leads out"), (Entry("a/data/0"), "twice"), (Entry("b/x"), "none of torch.save's"),
                            (Entry("a/x", b"12", method=8), "packed"), (Entry("a/x", b"12", local_name="a/y"), "disagree"),
                            (Entry("a/x", b"12", shift=-1), "disagree"), (Entry("a/x", b"12", grow=1 << 20), "outside of the file")):
            with self.subTest(entry=entry):
                self.refused(archive([*good, entry]), part)
        self.refused(archive([*good[:2], good[2]._replace(grow=8), good[3]]), "overlap")
        self.refused(archive([*good[:2], good[2]._replace(data=b"\x3d" * 15), good[3]]), "15 bytes", "need 16")
        self.refused(archive([good[0], Entry("a/byteorder", b"big"), *good[2:]]), "big-endian")
        self.refused(archive(good[1:]), "none of torch.save's")
        whole = archive(good)
        self.refused(whole + b"more", "does not end with the archive's directory")
        self.refused(b"more" + whole, "torch.save")
        self.refused(whole[:-22] + b"PK\5\6" + struct.pack("<HHHHIIH", 1, 0, 4, 4, 0, 0, 0), "torch.save")
        self.refused(b"\x80\2K\1.", "none of torch.save's")
        self.refused(b"<html>", "no file of torch.save")
        self.refused(b"", "no file of torch.save")

    def test_cut_anywhere(self):
        whole = archive(entries(pickle(b"N")))
        for length in range(len(whole)):
            self.refused(whole[:length], "pytorch_model.bin")


class AnyBytes(ConvertTest):
    def read_damaged(self, data, rounds, put, read):
        """Damaged copies are an error or fine; at least some must be refused."""
        source, refused = random.Random(20240611), 0
        for _ in range(rounds):
            copy = damaged(data, source)
            put(copy)
            try:
                read()
            except UserError as error:
                refused += 1
                self.assertTrue(escaped_line(error), copy)
        self.assertGreater(refused, rounds // 10)

    def test_damaged_files(self):
        self.unpack()
        for name in ("legacy", "views", "odd"):
            data = (self.folder / "pytorch_bin" / name / "pytorch_model.bin").read_bytes()
            self.read_damaged(data, 300, self.file.write_bytes, self.read)

    def test_damaged_pickles(self):
        """Damage behind the checksum: the pickle alone, in an archive that is whole."""
        self.unpack()
        for name, file in (("stage0_plain_groups", "mp_rank_00_model_states.pt"), ("stage1_bf16_w2_aligned_frozen", "mp_rank_00_model_states.pt"),
                           ("stage2_fp16_w2_round_robin", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
                           ("stage3_bf16_w3_tied_frozen", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
                           ("stage3_fp16_w2_sub_groups", "zero_pp_rank_0_mp_rank_00_model_states.pt")):
            path = next((self.folder / name).rglob(file))
            with zipfile.ZipFile(path) as whole:
                parts = [Entry(info.filename, whole.read(info)) for info in whole.infolist()]
            with self.subTest(name=name):
                self.read_damaged(
                    parts[0].data, 200,
                    lambda copy, path=path, parts=parts: path.write_bytes(archive([parts[0]._replace(data=copy), *parts[1:]])),
                    lambda path=path: self.read("deepspeed", path.parent))


def escaped_line(error):
    return str(error).startswith("[import] ") and "; " in str(error)


if __name__ == "__main__":
    bound_resources()
    unittest.main(warnings="ignore")
