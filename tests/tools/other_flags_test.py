#!/usr/bin/env python3
"""Every flag of Transformers, TRL and LLaMA-Factory is one of ours, or its refusal says what to give instead.

usage: other_flags_test.py BIN, the folder with the program finetune_zero3

tests/data/other_trainers.json has the flags of those that are not installed; of Transformers, and of TRL where it is
installed, the classes themselves are asked.
"""

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "trainer" / "program" / "foreign_flags.cpp"
FILE = ROOT / "tests" / "data" / "other_trainers.json"
PREPARES = ROOT / "tools" / "prepare" / "for_training.py"  # flags that ./tandem train takes before the program
PLANTED = "planted_flag"


def rows():
    """name -> hint of the table; a name may end with a star."""
    return dict(re.findall(r'ForeignFlag\{\s*"--([\w*]+)",\s*([^}]*)\}', TABLE.read_text(encoding="utf-8")))


def unanswered(names, ours, table):
    """Those that are no flag of ours and of no row."""
    stars = tuple(name[:-1] for name in table if name.endswith("*"))
    return sorted(name for name in set(names) if name not in ours and name not in table and not name.startswith(stars))


class OtherFlags(unittest.TestCase):
    program = None

    def setUp(self):
        text = subprocess.run([self.program, "--help"], capture_output=True, text=True, check=True).stdout
        self.known = set(re.findall(r"--(?:no-)?(\w+)", text))
        prepares = PREPARES.read_text(encoding="utf-8")
        self.ours = self.known | set(re.findall(r'"--(\w+)"', prepares))
        self.only_prepares = set(re.findall(r'"--(\w+)"', re.search(r"^ONLY_PREPARES = .*$", prepares, re.MULTILINE)[0]))
        self.table = rows()

    def names(self):
        """trainer -> its flags"""
        found = {name: trainer["flags"] for name, trainer in json.loads(FILE.read_text()).items()}
        if importlib.util.find_spec("transformers") is not None:
            from transformers import TrainingArguments

            found["transformers"] = [field.name for field in dataclasses.fields(TrainingArguments) if field.init]
        if importlib.util.find_spec("trl") is not None:
            import trl

            found["installed trl"] = [field.name for kind in (trl.SFTConfig, trl.ModelConfig, trl.ScriptArguments) for field in dataclasses.fields(kind) if field.init]
        return found

    def test_each_is_answered(self):
        for trainer, flags in self.names().items():
            self.assertGreater(len(flags), 40)
            self.assertEqual(unanswered(flags, self.ours, self.table), [], f"of {trainer}: give each of them a row in trainer/program/foreign_flags.cpp")

    def test_a_new_one_is_found(self):
        for flags in self.names().values():
            self.assertEqual(unanswered([*flags, PLANTED], self.ours, self.table), [PLANTED])

    def test_no_row_hides_a_flag_of_ours(self):
        hidden = {name for name in self.table if name in self.known} - {"warmup_steps"}
        self.assertEqual(hidden, set())

    def test_the_program_says_who_takes_a_flag_of_prepare(self):
        self.assertEqual({name for name, hint in self.table.items() if hint == "kPrepares"}, self.only_prepares)

    def why(self, *words):
        done = subprocess.run([self.program, "--model_name", "m", "--dataset_name", "d", "--lr", "1e-4", "--batch_size", "1", "--output_dir", "o", *words, "--check_flags"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        return done.stderr

    def test_what_the_program_says(self):
        for flag, hint in (("--lora_rank", "here it is --lora_r"), ("--galore_rank", "not in this version"), ("--swanlab_project", "report.html"), ("--hub_token", "nothing is sent"), ("--chat_template_path", "--chat_template"),
                           ("--dataset_train_split", "train split"), ("--ddp_timeout", "TANDEM_COLLECTIVE_TIMEOUT_S"), ("--ddp_backend", "the engine exchanges"), ("--eval_strategy", "--eval_every N")):
            self.assertIn(f"unknown flag {flag}; ", self.why(flag, "1"))
            self.assertIn(hint, self.why(flag, "1"))
        self.assertIn("here it is ZeRO's stage", self.why("--stage", "sft"))
        self.assertIn("unknown flag --galor; --help lists", self.why("--galor", "1"))

    def test_counts_or_shares(self):
        for flag in ("--save_steps", "--logging_steps"):
            self.assertIn("or below 1 a share of them", self.why(flag, "1.5"))
            done = subprocess.run([self.program, "--model_name", "m", "--dataset_name", "d", "--lr", "1e-4", "--batch_size", "1", "--output_dir", "o", flag, "0.25", "--check_flags"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    OtherFlags.program = sys.argv.pop(1) + "/finetune_zero3"
    unittest.main()
