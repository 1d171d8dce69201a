#!/usr/bin/env python3
"""Folders of DeepSpeed's: each case of tests/data/foreign/ against the values that it was made of, and folders that are not whole."""

import json
import os
import re
import subprocess
import sys
import unittest

from safetensors.torch import load_file

import torch
from support import ROOT, ConvertTest

from convert import module


class Folders(ConvertTest):
    def setUp(self):
        super().setUp()
        self.unpack()

    def test_every_master_and_moment_bit_for_bit(self):
        for record in sorted(self.folder.glob("*/record.json")):
            about, latest = json.loads(record.read_text()), next(record.parent.glob("latest*"))
            kind = "universal" if latest.name.endswith("universal") else "deepspeed"
            with self.subTest(record.parent.name):
                out = self.read(kind, record.parent / latest.read_text())
                expected = load_file(record.parent / "state_at_save.safetensors")
                for name, wanted in expected.items():
                    array, _, own = name.partition(".")
                    fields = out.tensors[out.tied.get(own, own)]
                    pieces = fields["arrays"][("fp32", "exp_avg", "exp_avg_sq").index(array)]
                    found = torch.cat([tensor.reshape(-1)[begin:begin + count] for tensor, begin, count in pieces]).float()
                    self.assertTrue(torch.equal(found, wanted.reshape(-1)), name)
                    self.assertEqual(fields["shape"], list(wanted.shape), name)
                self.assertEqual(len(out.notes), about["notes"], out.notes)
                self.assertEqual((out.fields["zero_stage"], out.fields["scaler"] is None), (about["zero_stage"], about["scaler"] is None))
                self.assertEqual(out.tied, about["tied"])

    def test_folders_that_are_not_whole(self):
        stage1 = self.folder / "stage1_fp32_w3_groups/global_step4"

        def refused(*parts):
            self.refused(None, *parts, kind="deepspeed", path=stage1)

        def optimizer(rank):
            return stage1 / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"

        for rank, parts in ((1, ("of rank 1", "copy the checkpoint again")), (2, ("number of ranks",))):
            optimizer(rank).rename(stage1 / "gone")
            refused(*parts)
            (stage1 / "gone").rename(optimizer(rank))
        for name, part in (("mp_rank_01_model_states.pt", "tensor parallelism"), ("layer_00-model_states.pt", None),
                           ("layer_0_expert_0_mp_rank_00_model_states.pt", "expert parallelism"), ("layer_00_model_states.pt", "pipeline parallelism"),
                           ("zero_pp_rank_0_mp_rank_00_model_states.pt", "of another stage")):
            (stage1 / name).write_bytes(b"")
            if part:
                refused(part)
            (stage1 / name).unlink()
        twice = stage1 / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
        twice.write_bytes(optimizer(0).read_bytes())
        refused("two kinds of files")
        twice.unlink()
        self.read("deepspeed", stage1)
        gone = self.folder / "universal_stage1_w2/global_step4/zero/layers.0.norm"
        for path in gone.iterdir():
            path.unlink()
        gone.rmdir()
        self.refused(None, "1 of the 2 parameters", kind="universal", path=gone.parents[1])

    def test_ranks_of_two_saves(self):
        for name, other in (("stage1_fp32_w3_groups", "stage2_fp16_w2_round_robin"), ("stage3_bf16_w3_tied_frozen", "stage3_fp16_w2_sub_groups")):
            path = next((self.folder / name).glob("*/*rank_1_*optim_states.pt"))
            path.write_bytes(next((self.folder / other).glob("*/*rank_1_*optim_states.pt")).read_bytes())
            self.refused(None, path.name, kind="deepspeed", path=path.parent)

    def test_an_index_of_shards(self):
        folder = self.folder / "shards"
        folder.mkdir()
        torch.save({"a": torch.ones(2)}, folder / "one.bin")
        torch.save({"b": torch.ones(3)}, folder / "two.bin")
        index = folder / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin"}}))
        self.assertEqual(list(self.read(path=folder).tensors), ["a", "b"])
        for text, part in (('{"weight_map": {"a": "one.bin", "c": "two.bin"}}', "which no file holds"), ('{"weight_map": {"a": "../one.bin"}}', "plain name"),
                           ('{"weight_map": {"a": "one.bin", "a": "two.bin"}}', "twice"), ('{"weight_map": 7}', "no index"), ("{", "no index"),
                           ("[" * 5000, "no index")):
            index.write_text(text)
            self.refused(None, part, path=folder)


class OwnKeys(unittest.TestCase):
    def test_both_lists_of_deepspeeds_keys_agree(self):
        source = (ROOT / "models/convert/open_tandem.cpp").read_text(encoding="utf-8")
        listed = re.search(r"kOwnKeys\[\] = \{(.*?)\};", source, re.DOTALL)[1]
        self.assertEqual(set(re.findall(r'"(\w+)"', listed)), module.OWN_KEYS)


class Program(ConvertTest):
    """In a process of its own, as models/foreign/converter.cpp starts it."""

    def run_it(self, *arguments, **more):
        done = subprocess.run([sys.executable, "-I", ROOT / "tools/run_module.py", "convert", *arguments], capture_output=True, check=False, **more)
        return done.returncode, done.stdout, done.stderr.decode()

    def test_the_index_and_errors(self):
        torch.save({"a": torch.ones(2)}, self.file)
        code, index, said = self.run_it("read", "pytorch", self.file, cwd=self.folder)
        self.assertEqual((code, said), (0, ""))
        self.assertEqual(json.loads(index)["files"], [["pytorch_model.bin", self.file.stat().st_size]])
        (self.folder / "torch.py").write_text("raise SystemExit('the folder of data was searched')")
        self.assertEqual(self.run_it("read", "pytorch", self.file, cwd=self.folder, env={**os.environ, "PYTHONPATH": str(self.folder)})[0], 0)
        for path in (self.folder / "no\nwhere", self.folder / "x.bin"):
            os.mkfifo(self.folder / "x.bin") if path.name == "x.bin" else None
            code, index, said = self.run_it("read", "pytorch", path)
            self.assertEqual((code, index, said.count("\n")), (2, b"", 1), said)
            self.assertTrue(said.startswith("error: [import] ") and "; " in said, said)

    def test_what_cannot_be_written_is_one_line(self):
        tensor = {"name": "a", "shape": [200_000], "type": "F32", "frozen": False, "buffer": False, "arrays": [True, False, False]}
        plan = {"global_steps": 1, "skipped_steps": 0, "optimizer_steps": 1, "global_samples": 1, "zero_stage": 1, "world_size": 1, "ds_version": "",
                "ds_config": "", "client_state": "", "tied": {}}
        for frozen, limit, code in ((False, 100, 1), (True, 100, 1), (False, None, 2), (True, None, 2)):
            stream = json.dumps({**plan, "tensors": [{**tensor, "frozen": frozen}]}).encode() + b"\n" + bytes(800_000 - (limit is None))
            folder = self.folder / f"{frozen}{limit}"
            folder.mkdir()
            # A limit of files' sizes stands for a full disk.
            command = ["bash", "-c", f"trap '' XFSZ; {f'ulimit -f {limit};' if limit else ''} exec \"$@\"", "-", sys.executable, "-I",
                       ROOT / "tools/run_module.py", "convert", "write", folder]
            done = subprocess.run(command, input=stream, capture_output=True, check=False)
            said = done.stderr.decode()
            self.assertEqual((done.returncode, said.count("\n"), said[:17]), (code, 1, "error: [convert] "), said)
            self.assertFalse((folder / ".module").exists())


if __name__ == "__main__":
    unittest.main(warnings="ignore")
