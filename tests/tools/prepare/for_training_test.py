#!/usr/bin/env python3
"""What ./tandem train gives its program: data that it does not read itself is prepared once and replaced."""

import contextlib
import io
import os
import stat
import sys
import unittest
import unittest.mock
from pathlib import Path

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

    def run_prepare(self, command_line, umask, **_):
        """In place of ./tandem prepare, which would look after the packages first."""
        before = os.umask(umask)
        self.addCleanup(os.umask, before)
        self.assertEqual(command_line[:2], [*for_training.FRONT_DOOR, "prepare"])
        self.runs.append(command_line)
        answer = unittest.mock.Mock()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            answer.returncode = command.main(command_line[2:])
        answer.stdout = out.getvalue()
        os.umask(before)
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

    def text_of(self, *arguments):
        """(the token file of these arguments, what is said about it)"""
        with contextlib.redirect_stderr(io.StringIO()) as err:
            found = self.data_of(self.arguments(*arguments))
        return Path(found), err.getvalue()

    def test_the_key_is_the_content(self):
        data = self.write("t.txt", "a\nb\n")
        first, _ = self.text_of("--dataset_name", data)
        state = data.stat()
        data.write_text("c\nb\n")
        os.utime(data, ns=(state.st_atime_ns, state.st_mtime_ns))
        self.assertEqual((data.stat().st_size, data.stat().st_mtime_ns), (state.st_size, state.st_mtime_ns))
        second, _ = self.text_of("--dataset_name", data)
        self.assertNotEqual(first, second)
        os.utime(data, ns=(5, 5))
        self.assertEqual(self.text_of("--dataset_name", data), (second, f"prepare  {data}: {second} (made earlier)\n"))
        self.assertEqual(len(self.runs), 2)

    def test_what_is_not_whole_or_not_ones_own_is_made_anew(self):
        data = self.write("t.txt", "a\nb\n")
        path, _ = self.text_of("--dataset_name", data)
        whole = path.read_bytes()
        seal = path.with_name(path.name + ".sha256")
        self.assertEqual([stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path, seal)], [0o700, 0o600, 0o600])
        other = self.write("other", "x")

        def foreign():
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534)
            else:
                path.chmod(0o644)

        def link():
            path.rename(self.folder / "moved")
            path.symlink_to(self.folder / "moved")

        def seal_is_a_link():
            seal.unlink()
            seal.symlink_to(other)

        def fifo():
            path.unlink()
            os.mkfifo(path)

        for change, what in ((lambda: path.write_bytes(whole[:-1] + b"\1"), "is not what its hash says"), (lambda: path.write_bytes(whole[:-3]), "is not what its hash says"), (seal.unlink, "was not completed"),
                             (lambda: path.chmod(0o644), "is open to other users"), (foreign, "belongs to" if os.geteuid() == 0 else "is open to"), (link, "is a link"), (seal_is_a_link, "has a hash that is a link"),
                             (fifo, "is no file")):
            change()
            again, said = self.text_of("--dataset_name", data)
            self.assertEqual(again, path)
            self.assertIn(f"{what}", said)
            self.assertIn("so it is made anew", said)
            self.assertEqual(path.read_bytes(), whole)
            self.assertIn("(made earlier)", self.text_of("--dataset_name", data)[1])
        self.assertEqual(other.read_text(), "x")

    def test_the_folder_of_another_user_is_not_used(self):
        if os.geteuid() != 0:
            self.skipTest("only root makes a folder of another user")
        data, folder = self.write("t.txt", "a\nb\n"), self.folder / "cache" / "tokens"
        folder.mkdir(parents=True)
        os.chown(folder, 65534, 65534)
        path, said = self.text_of("--dataset_name", data)
        self.assertEqual(path.parent, folder.with_name(f"tokens-{os.geteuid()}"))
        self.assertIn(f"prepare  {folder} is not used", said)
        os.chown(path.parent, 65534, 65534)
        with self.assertRaisesRegex(UserError, "choose another place by TANDEM_CACHE"):
            self.text_of("--dataset_name", data)

    def test_a_folder_that_was_open_is_closed(self):
        folder = self.folder / "cache" / "tokens"
        folder.mkdir(parents=True, mode=0o755)
        self.text_of("--dataset_name", self.write("t.txt", "a\n"))
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)

    def test_data_that_change_meanwhile_are_not_kept(self):
        data = self.write("t.txt", "a\nb\n")
        make = self.run_prepare

        def change(*arguments, **options):
            data.write_text("c\n")
            return make(*arguments, **options)

        with unittest.mock.patch.object(self, "run_prepare", change):
            self.text_of("--dataset_name", data)
        data.write_text("a\nb\n")
        path, said = self.text_of("--dataset_name", data)
        self.assertIn("was not completed, or its data changed", said)
        self.assertEqual(len(Prepared(path).ids), 2)

    def test_what_the_reader_cannot_take_is_the_programs_to_say(self):
        for text in ("[" * 3000 + "]" * 3000, "[" + "1" * 5000 + "]", "{", '{"instruction": "a", "output": [' + "[" * 3000):
            for name in ("a.json", "a.jsonl"):
                data = self.write(name, text)
                self.assertEqual(self.data_of(self.arguments("--dataset_name", data)), str(data))
        self.assertEqual(self.runs, [])

    def test_data_of_evaluation_too(self):
        data = self.write("t.txt", "a\nb\n")
        found = self.arguments("--dataset_name", "x.tokens", "--eval_dataset", data)
        self.assertEqual(self.data_of(found), "x.tokens")
        self.assertEqual(len(Prepared(self.data_of(found, "--eval_dataset")).ids), 2)

    def test_a_recipe_decides_as_the_trainer_does(self):
        data = self.write("p.jsonl", [{"prompt": "moon, leaf ->", "completion": " leaf, moon"}])
        found = Prepared(self.data_of(self.arguments("--dataset_name", data, "--recipe", "deepspeed_example")))
        self.assertEqual((found.metadata["loss_on"], found.metadata["append_eos"], set(found.masks[0])), ("all", "off", {1}))

    def test_flags_are_checked_before_data_are_prepared(self):
        program = self.folder / "finetune_zero3"
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >'{self.folder}/asked'\ncase \"$*\" in *--lerning_rate*) exit 2;; esac\n")
        program.chmod(0o700)
        data = self.write("m.jsonl", [{"messages": CHAT}])
        given = ["--model_name", str(DEMO), "--dataset_name", str(data), "--chat_template", TEMPLATE]

        def check(found):
            for_training.check_flags(str(program), found)

        with unittest.mock.patch.object(for_training, "prepared") as prepared:
            with self.assertRaises(SystemExit) as ended:
                for_training.prepared_arguments([*given, "--lerning_rate", "3"], check)
            self.assertEqual((ended.exception.code, prepared.call_count), (2, 0))
            prepared.return_value = "x.tokens"
            self.assertEqual(self.data_of(for_training.prepared_arguments([*given, "--lr", "3"], check)), "x.tokens")
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual((asked[-1], self.data_of(asked)), ("--check_flags", str(data)))
        self.assertNotIn("--chat_template", asked)

    def started(self, *arguments):
        """The command that takes this program's place."""
        given = ["for_training", *map(str, arguments)]
        with unittest.mock.patch.object(sys, "argv", given), unittest.mock.patch.object(for_training.os, "execv") as execv, \
                unittest.mock.patch.object(for_training, "check_flags") as self.checked, unittest.mock.patch.object(for_training.subprocess, "run", self.run_prepare):
            for_training.run()
        self.assertEqual(execv.call_args.args[0], execv.call_args.args[1][0])
        return execv.call_args.args[1]

    def test_ranks_that_launch_starts_are_given_the_token_file(self):
        data = self.write("m.jsonl", [{"messages": CHAT}])
        trainer = ["bin/finetune_zero3", "--model_name", DEMO, "--dataset_name", data, "--chat_template", TEMPLATE]
        found = self.started("bin/tandem", "launch", "-n", 2, "--", *trainer)
        self.assertEqual(found[:6], ["bin/tandem", "launch", "-n", "2", "--", "bin/finetune_zero3"])
        self.assertEqual(len(Prepared(self.data_of(found)).ids), 1)
        self.assertEqual(self.checked.call_args.args[0], "bin/finetune_zero3")
        self.assertEqual(found[6:], self.started("bin/finetune_zero3", *trainer[1:])[1:])
        for own in (["-n", 2], ["--hosts", "a:2", "--"], ["-H", "hosts", "--"], ["--hostfile=hosts", "--"]):
            same = list(map(str, ["bin/tandem", "launch", *own, *trainer]))
            self.assertEqual(self.started(*same), same)
        other = list(map(str, ["bin/tandem", "launch", "-n", 2, "--", "bin/other", *trainer[1:]]))
        self.assertEqual(self.started(*other), other)

    def test_the_trainer_is_told_what_was_typed(self):
        data = self.write("m.jsonl", [{"messages": CHAT}])
        found = self.started("bin/finetune_zero3", "--model_name", DEMO, "--dataset_name", data, "--chat_template", TEMPLATE, "--steps", 3)
        self.assertEqual([word for word in found if word.startswith("--typed")], [f"--typed=--dataset_name={data}", f"--typed=--chat_template={TEMPLATE}"])
        as_it_is = ["bin/finetune_zero3", "--model_name", str(DEMO), "--dataset_name", "x.tokens"]
        self.assertEqual([word for word in self.started(*as_it_is) if word.startswith("--typed")], [])
        inspected = self.started("bin/tandem", "inspect", "--model_name", DEMO, "--dataset_name", data, "--chat_template", TEMPLATE)
        self.assertNotIn("--typed", " ".join(inspected))

    def test_a_refused_record_ends_it(self):
        data = self.write("m.jsonl", [{"messages": []}])
        with self.assertRaises(SystemExit) as ended, open(os.devnull, "w") as sys.stderr:
            self.arguments("--dataset_name", data, "--chat_template", TEMPLATE)
        sys.stderr = sys.__stderr__
        self.assertEqual(ended.exception.code, 2)

    def test_refused_records_may_be_left_out(self):
        data = self.write("m.jsonl", [{"messages": CHAT}, {"messages": []}])
        with contextlib.redirect_stderr(io.StringIO()) as err:
            found = self.arguments("--dataset_name", data, "--skip_refused", "--chat_template", TEMPLATE)
        self.assertEqual(len(Prepared(self.data_of(found)).ids), 1)
        self.assertNotIn("--skip_refused", found)
        self.assertIn("data     records refused and left out: 1, the first: ", err.getvalue())
        self.assertNotIn("wrote ", err.getvalue())

    def test_an_unknown_form_is_named(self):
        with self.assertRaisesRegex(UserError, "of no known format"):
            self.arguments("--dataset_name", self.write("x.jsonl", [{"a": 1}]))


if __name__ == "__main__":
    unittest.main()
