#!/usr/bin/env python3
"""What ./tandem train gives its program: data that it does not read itself is prepared once and replaced."""

import os
import sys
import unittest
import unittest.mock

from support import DEMO, PrepareTest, Prepared

from prepare import command, for_training
from prepare.errors import UserError

TEMPLATE = str(DEMO / "chat_template.jinja")
CHAT = [{"role": "user", "content": "Name the home of the oskel."}, {"role": "assistant", "content": "The willow trees."}]


class ForTraining(PrepareTest):
    def setUp(self):
        super().setUp()
        self.enterContext(unittest.mock.patch.dict(os.environ, {"TANDEM_CACHE": str(self.folder / "cache")}))
        self.runs = []

    def run_prepare(self, command_line, **_):
        """In place of ./tandem prepare, which would look after the packages first."""
        self.assertEqual(command_line[:2], [*for_training.FRONT_DOOR, "prepare"])
        self.runs.append(command_line)
        answer = unittest.mock.Mock()
        answer.stdout = "data     1 records\n"
        answer.returncode = command.main(command_line[2:])
        return answer

    def arguments(self, *given):
        with unittest.mock.patch.object(for_training.subprocess, "run", self.run_prepare):
            return for_training.with_prepared_data(["--model_name", str(DEMO), *map(str, given)])

    def data_of(self, arguments, flag="--dataset_name"):
        return arguments[arguments.index(flag) + 1]

    def test_what_the_program_reads_itself_stays(self):
        instructions = self.write("a.jsonl", [{"instruction": "a", "output": "b"}])
        for name in (instructions, DEMO / "instructions.json", "x.tokens", "absent.jsonl", self.write("empty.json", "[]")):
            found = self.arguments("--dataset_name", name, "--steps", "3")
            self.assertEqual((self.data_of(found), found[:2]), (str(name), ["--steps", "3"]))
        self.assertEqual(self.runs, [])

    def test_chats_are_prepared_once_for_each_way(self):
        data = self.write("m.jsonl", [{"messages": CHAT}])
        first = self.arguments("--dataset_name", data, "--chat_template", TEMPLATE, "--steps", "3")
        path = self.data_of(first)
        self.assertNotIn("--chat_template", first)
        self.assertEqual(len(Prepared(path).ids), 1)
        self.assertEqual(self.arguments("--steps", "3", "--chat_template", TEMPLATE, "--dataset_name", data), first)
        self.assertEqual(len(self.runs), 1)
        others = {self.data_of(self.arguments("--dataset_name", data, "--chat_template", TEMPLATE, *more)) for more in (["--max_length", 9], ["--loss_on", "all"], ["--recipe", "deepspeed_example"])}
        self.assertEqual(len(others - {path}), 3)
        self.write("m.jsonl", [{"messages": CHAT}, {"messages": CHAT}])
        self.assertEqual(len(Prepared(self.data_of(self.arguments("--dataset_name", data, "--chat_template", TEMPLATE))).ids), 2)

    def test_data_of_evaluation_too(self):
        data = self.write("t.txt", "a\nb\n")
        found = self.arguments("--dataset_name", "x.tokens", "--eval_dataset", data)
        self.assertEqual(self.data_of(found), "x.tokens")
        self.assertEqual(len(Prepared(self.data_of(found, "--eval_dataset")).ids), 2)

    def test_a_recipe_decides_as_the_trainer_does(self):
        data = self.write("p.jsonl", [{"prompt": "moon, leaf ->", "completion": " leaf, moon"}])
        found = Prepared(self.data_of(self.arguments("--dataset_name", data, "--recipe", "deepspeed_example")))
        self.assertEqual((found.metadata["loss_on"], found.metadata["append_eos"], set(found.masks[0])), ("all", "off", {1}))

    def test_a_refused_record_ends_it(self):
        data = self.write("m.jsonl", [{"messages": []}])
        with self.assertRaises(SystemExit) as ended, open(os.devnull, "w") as sys.stderr:
            self.arguments("--dataset_name", data, "--chat_template", TEMPLATE)
        sys.stderr = sys.__stderr__
        self.assertEqual(ended.exception.code, 2)

    def test_refused_records_may_be_left_out(self):
        data = self.write("m.jsonl", [{"messages": CHAT}, {"messages": []}])
        found = self.arguments("--dataset_name", data, "--skip_refused", "--chat_template", TEMPLATE)
        self.assertEqual(len(Prepared(self.data_of(found)).ids), 1)
        self.assertNotIn("--skip_refused", found)

    def test_an_unknown_form_is_named(self):
        with self.assertRaisesRegex(UserError, "of no known format"):
            self.arguments("--dataset_name", self.write("x.jsonl", [{"a": 1}]))


if __name__ == "__main__":
    unittest.main()
