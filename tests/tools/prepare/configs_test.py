#!/usr/bin/env python3
"""A data set with several configs: the one that is asked for is read, or the names are said."""

import json
import unittest

from support import DEMO, PrepareTest

from prepare import configs, files, for_training
from prepare.errors import UserError

README = """---
license: mit
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: other{default}
  data_files:
  - split: train
    path: ["other/b.jsonl", "other/a.jsonl"]
- config_name: folder
  data_dir: folder
- config_name: tests
  data_files:
  - split: test
    path: main/test-*
---
# A data set
configs: none of these
"""
FILES = ("main/train-0.jsonl", "main/train-1.jsonl", "main/test-0.jsonl", "other/a.jsonl", "other/b.jsonl", "folder/train.jsonl", "folder/test.jsonl")


class Configs(PrepareTest):
    def setUp(self):
        super().setUp()
        self.set = self.folder / "set"
        for name in FILES:
            path = self.set / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"text": name}) + "\n")
        self.readme()

    def readme(self, default="", text=README):
        (self.set / "README.md").write_text(text.replace("{default}", default))

    def names(self, config=None):
        return [str(path.relative_to(self.set)) for path in files.data_files(str(self.set), config)]

    def test_the_config_decides_which_files_are_read(self):
        self.assertEqual(self.names("main"), ["main/train-0.jsonl", "main/train-1.jsonl"])
        self.assertEqual(self.names("other"), ["other/b.jsonl", "other/a.jsonl"])
        self.assertEqual(self.names("folder"), ["folder/train.jsonl"])
        for flag in ("--dataset_config", "--dataset_config_name"):
            code, out, err = self.run_command(self.set, flag, "main")
            self.assertEqual((code, err), (0, ""))
            self.assertIn("(its config main)", out)
            self.assertIn("2 records", out)

    def test_a_file_of_a_pattern_that_is_not_there(self):
        (self.set / "main" / "train-2.jsonl").symlink_to("../gone")
        with self.assertRaisesRegex(UserError, "train-2.jsonl is a link to a file that is not there"):
            self.names("main")
        self.assertEqual(self.names("folder"), ["folder/train.jsonl"])

    def test_several_and_none_chosen(self):
        self.assertIn("has several configs; choose one by --dataset_config: main, other, folder, tests", self.refused(self.set))
        self.assertIn("has no config mani; choose one by --dataset_config: main, other", self.refused(self.set, "--dataset_config", "mani"))

    def test_the_default_one_and_the_only_one(self):
        self.readme(default="\n  default: true")
        self.assertEqual(self.names(), ["other/b.jsonl", "other/a.jsonl"])
        self.readme(text=README.replace("config_name: main", "config_name: default"))
        self.assertEqual(self.names(), ["main/train-0.jsonl", "main/train-1.jsonl"])
        self.readme(text="---\nconfigs:\n- config_name: x\n  data_files: folder/train.jsonl\n---\n")
        self.assertEqual(self.names(), ["folder/train.jsonl"])
        self.readme(text='---\nconfigs:\n- config_name: x\n  data_files: {test: "folder/t*", train: "other/*"}\n---\n')
        self.assertEqual(self.names(), ["other/a.jsonl", "other/b.jsonl"])

    def test_what_cannot_be_read_is_said(self):
        self.assertIn("its config tests has no split train, but test", self.refused(self.set, "--dataset_config", "tests"))
        for text, expected in (("data_files: ../x.jsonl", "none below its folder"), ("data_files: gone-*", "no such file"), ("data_dir: /etc", "none below its folder"), ("data_files: 5", "is no list")):
            self.readme(text=f"---\nconfigs:\n- config_name: x\n  {text}\n---\n")
            self.assertIn(expected, self.refused(self.set))
        self.readme(text="---\nconfigs: [\n---\n")
        self.assertIn("no YAML", self.refused(self.set))
        self.readme(text="---\nconfigs:\n- name: x\n---\n")
        self.assertIn("config_name", self.refused(self.set))

    def test_without_configs_all_is_as_it_was(self):
        self.readme(text="configs:\n- config_name: x\n")  # no front matter
        self.assertFalse(configs.has_configs(self.set))
        self.assertIn("leave --dataset_config out", self.refused(self.set, "--dataset_config", "x"))
        (self.set / "README.md").unlink()
        self.assertEqual(self.names(), ["folder/train.jsonl", "main/train-0.jsonl", "main/train-1.jsonl"])

    def test_training_leaves_the_choice_to_prepare(self):
        flags, others = for_training.parse(["--dataset_config_name", "main", "--lr", "1"])
        self.assertEqual((flags, others), ({"--dataset_config": "main"}, ["--lr", "1"]))
        self.assertFalse(for_training.is_read_natively(str(self.set)))
        keys = {for_training.key_of(str(self.set), str(DEMO), {"--dataset_config": config}) for config in ("main", "other")}
        self.readme(default="\n  default: true")
        keys.add(for_training.key_of(str(self.set), str(DEMO), {"--dataset_config": "main"}))
        self.assertEqual(len(keys), 3)


if __name__ == "__main__":
    unittest.main()
